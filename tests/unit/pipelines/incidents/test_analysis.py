"""From records to what happened: small stories with known times, each told as the logs would tell it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from klamm.pipelines.incidents.analysis.clocks import QUARTER_MS
from klamm.pipelines.incidents.analysis.findings import Findings, analyse
from klamm.pipelines.incidents.analysis.history import Place
from klamm.pipelines.incidents.analysis.outages import Split
from klamm.pipelines.incidents.klamm_events import parse_event
from klamm.pipelines.incidents.record import Record
from klamm.pipelines.incidents.stories import summary, tell

HOUR = 1_800_000_000_000
"""The stories begin at this time. All other times are seconds after it."""
CONFIG = "zookeeper.session.timeout.ms=6000,replica.lag.time.max.ms=1500,min.insync.replicas=2"
PLACE = Place("t", 0, 0)


def at(seconds: float) -> int:
    return HOUR + round(seconds * 1000)


def state(seconds: float, version: int, leader: int, epoch: int, isr: tuple[int, ...], by: int = 9) -> Record:
    """The controller decided a state."""
    return Record(at(seconds), by, "part.online", 1, "t", 0, leader, epoch, version, isr, (1, 2, 3))


def leads(seconds: float, broker: int, epoch: int) -> Record:
    return Record(at(seconds), broker, "lead.start", topic="t", partition=0, leader_epoch=epoch)


def gone(seconds: float, broker: int) -> Record:
    return Record(at(seconds), 9, "brokers.changed", brokers=(broker,), replicas=(9,), text="")


BEGINNING = [
    Record(at(-10), 9, "ctl.elected", 1),
    Record(at(-9), 9, "config", text=CONFIG),
    state(-5, 0, 1, 0, (1, 2, 3)),
    leads(-4.9, 1, 0),
]
END = Record(at(100), 9, "ctl.ready", 1)


def story(*records: Record, writers: Sequence[int] = (1, 2, 3, 9)) -> Findings:
    return analyse([*BEGINNING, *records, END], writers)


def broken(seconds: float, broker: int, by: int = 2) -> Record:
    return Record(at(seconds), by, "net.lost", other=broker)


def shrink(seconds: float, out: str, by: int, isr: tuple[int, ...]) -> Record:
    return Record(at(seconds), by, "isr.shrink", topic="t", partition=0, brokers=isr, replicas=(1, 2, 3), text=out)


def wrote_isr(seconds: float, version: int, isr: tuple[int, ...], by: int) -> Record:
    return Record(at(seconds), by, "isr.updated", topic="t", partition=0, version=version, brokers=isr)


KILLED = [broken(10.1, 1), gone(16, 1), state(16.2, 1, 2, 1, (2, 3)), leads(16.5, 2, 1)]


def test_a_killed_leader_is_dated_by_the_first_broken_connection_and_its_outage_is_split() -> None:
    found = story(*KILLED)
    (loss,) = found.losses
    assert (loss.broker, loss.how, loss.fault, loss.noticed) == (1, "killed", at(10.1), at(16))
    (outage,) = found.outages
    assert (outage.place, outage.start, outage.end) == (PLACE, at(10.1), at(16.5))
    assert outage.split == Split(5900, 200, 300)
    assert (outage.no_leader_ms, outage.stalled_ms, outage.under_min_isr_ms) == (6400, 0, 0)
    assert (outage.broker, outage.how, outage.leader_before, outage.leader_after, outage.open) == (
        1,
        "killed",
        1,
        2,
        False,
    )


def test_the_last_fetch_that_a_leader_answered_is_better_evidence_than_a_connection() -> None:
    out = f"(brokerId: 3, endOffset: 4, lastCaughtUpTimeMs: {at(9.9)})"
    found = story(broken(10.1, 3), shrink(11.5, out, 1, (1, 2)), wrote_isr(11.6, 1, (1, 2), 1), gone(16, 3))
    assert [(x.broker, x.fault, x.how) for x in found.losses] == [(3, at(9.9), "killed")]


def test_a_lost_follower_stalls_the_partition_until_it_leaves_the_isr() -> None:
    found = story(broken(10, 3), wrote_isr(11.6, 1, (1, 2), 1), gone(16, 3))
    (outage,) = found.outages
    assert (outage.start, outage.end, outage.stalled_ms, outage.no_leader_ms) == (at(10), at(11.6), 1600, 0)
    assert (outage.broker, outage.leader_before, outage.leader_after) == (3, 1, 1)


def test_too_few_in_sync_is_an_outage_although_there_is_a_leader() -> None:
    found = story(wrote_isr(20, 1, (1,), 1), wrote_isr(27, 2, (1, 2), 1))
    (outage,) = found.outages
    assert (outage.start, outage.end, outage.under_min_isr_ms, outage.no_leader_ms) == (at(20), at(27), 7000, 0)


@pytest.mark.parametrize(("again", "count"), [(23.5, 1), (24.0, 2)])
def test_a_break_that_no_producer_can_use_is_none(again: float, count: int) -> None:
    few = [
        wrote_isr(20, 1, (1,), 1),
        wrote_isr(23, 2, (1, 2), 1),
        wrote_isr(again, 3, (1,), 1),
        wrote_isr(30, 4, (1, 2), 1),
    ]
    assert len(story(*few).outages) == count


def test_what_follows_without_a_break_is_one_outage() -> None:
    found = story(*KILLED[:2], state(16.2, 1, 2, 1, (2,)), leads(16.5, 2, 1), wrote_isr(20, 2, (2, 3), 2))
    (outage,) = found.outages
    assert (outage.start, outage.end) == (at(10.1), at(20))
    assert (outage.no_leader_ms, outage.under_min_isr_ms) == (6400, 3800)


def test_a_broker_that_complains_about_its_session_was_paused_and_not_killed() -> None:
    woke = Record(at(22), 1, "zk.timeout", number=13_000)
    found = story(shrink(11.6, "(brokerId: 1, endOffset: 4)", 2, (2, 3)), *KILLED[1:], woke)
    (loss,) = found.losses
    assert (loss.how, loss.fault, loss.back) == ("paused", at(9.725), at(22)), "between 9.35 and 10.1"


def test_several_leaders_date_a_pause_more_exactly() -> None:
    """Each looks every 0.75 s, at times of its own."""
    woke = Record(at(22), 1, "zk.timeout", number=13_000)
    first, second = (shrink(t, "(brokerId: 1, endOffset: 4)", by, (2, 3)) for t, by in ((11.6, 2), (12.25, 3)))
    (loss,) = story(first, second, *KILLED[1:], woke).losses
    assert loss.fault == at(10.05), "between 10.0 and 10.1"
    (loss,) = story(first, shrink(15, "(brokerId: 1, endOffset: 4)", 3, (2,)), *KILLED[1:], woke).losses
    assert loss.fault == at(9.725), "the second leader had trouble of its own"


def test_a_broker_that_wakes_up_alone_in_sync_leads_on() -> None:
    """The controller deposed it, but could not tell it. It takes records before it registers again."""
    found = story(
        wrote_isr(0, 1, (1,), 1),
        Record(at(0), 1, "min.isr", topic="t", number=1),
        gone(16, 1),
        state(16.1, 2, -1, 1, (1,)),
        Record(at(22), 1, "zk.timeout", number=12_000),
        state(23.5, 3, 1, 2, (1,)),
        leads(23.6, 1, 2),
    )
    assert [(o.end, o.how) for o in found.outages] == [(at(22), "paused")]


def test_a_silent_leader_keeps_its_session_and_is_dated_by_the_others() -> None:
    """It wakes after 3.4 s, finds everybody else late, and is wrong."""
    awake = [
        Record(at(13.4), 1, "zk.timeout", number=4_300),
        shrink(13.5, f"(brokerId: 2, endOffset: 4, lastCaughtUpTimeMs: {at(9.5)})", 1, (1, 3)),
        wrote_isr(13.6, 1, (1, 3), 1),
    ]
    other = Record(
        at(11.7), 2, "isr.shrink", topic="u", partition=1, brokers=(2, 3), replicas=(1, 2, 3),
        text="(brokerId: 1, endOffset: 9)",
    )  # fmt: skip
    found = story(other, *awake)
    (loss,) = found.losses
    assert (loss.broker, loss.how, loss.fault) == (1, "silent", at(9.825))
    (outage,) = found.outages
    assert (outage.start, outage.end, outage.no_leader_ms) == (at(9.825), at(13.6), 3775)
    assert [c.unexplained for c in found.churn if c.broker == 2] == [0], "the leader that slept is not to be believed"


def test_a_leader_that_slept_is_not_asked_when_another_broker_failed() -> None:
    woke = Record(at(13), 1, "zk.timeout", number=4_300)
    wrong = shrink(13.5, f"(brokerId: 2, endOffset: 4, lastCaughtUpTimeMs: {at(9.5)})", 1, (1, 3))
    found = story(woke, wrong, broken(14.5, 2, by=3), gone(20, 2))
    assert [x.fault for x in found.losses if x.broker == 2] == [at(14.5)]


def test_a_slow_broker_is_named() -> None:
    found = story(wrote_isr(20, 1, (1, 2), 1), wrote_isr(25, 2, (1, 2, 3), 1), wrote_isr(30, 3, (1, 2), 1))
    (churn,) = found.churn
    assert (churn.broker, churn.left, churn.joined, churn.unexplained, churn.partitions) == (3, 2, 1, 2, 1)
    assert churn.out_ms == 5_000 + 70_000


def test_a_requested_stop_hands_over_and_is_no_fault() -> None:
    asked = Record(at(10), 1, "cs.start")
    gave_up = Record(at(10.1), 1, "follow.start", topic="t", partition=0)
    found = story(asked, state(10.1, 1, 2, 1, (2, 3)), gave_up, leads(10.3, 2, 1), gone(11, 1))
    assert [(x.how, x.fault) for x in found.losses] == [("stopped", at(10))]
    (outage,) = found.outages
    assert (outage.how, outage.start, outage.end) == ("stopped", at(10.1), at(10.3))


def test_a_leader_outside_the_isr_was_elected_uncleanly() -> None:
    dead = [broken(10, 1), gone(16, 1), state(16.1, 1, -1, 1, (1,)), state(30, 2, 3, 2, (3,)), leads(30.1, 3, 2)]
    found = story(state(5, 0, 1, 0, (1,)), *dead)
    (election,) = found.unclean
    assert (election.t, election.leader, election.leader_before, election.isr_before) == (at(30), 3, 1, (1,))
    assert found.outages[0].end == at(100), "a single replica is fewer than min.insync.replicas"
    assert found.outages[0].no_leader_ms == 20_100


def test_an_election_within_the_isr_is_clean() -> None:
    assert story(*KILLED).unclean == []


def test_the_next_controller_notices_the_loss_of_the_one_before() -> None:
    found = story(
        Record(at(1), 9, "brokers.changed", brokers=(), replicas=(1, 2, 9), text="2"),
        broken(10, 9),
        Record(at(16), 2, "ctl.elected", 2),
        Record(at(16.1), 2, "ctl.live", brokers=(1, 2)),
        Record(at(16.4), 2, "ctl.ready", 2),
    )
    assert [(x.broker, x.fault, x.noticed, x.was_controller) for x in found.losses] == [(9, at(10), at(16), True)]
    first, second = found.terms
    assert (first.broker, first.until, first.gap_ms) == (9, at(16), None)
    assert (second.broker, second.since, second.ready) == (2, at(16), at(16.4))
    assert (second.cause, second.gap_ms) == ("broker 9 was killed", 6000)


def klamm_elected(seconds: float, broker: int, epoch: int) -> Record:
    """klamm says why, and does not list the live brokers."""
    return Record(at(seconds), broker, "ctl.elected", epoch, text="/controller was free")


def test_a_controller_of_klamm_that_is_replaced_without_a_word_was_lost() -> None:
    found = story(klamm_elected(1, 2, 2), broken(10, 2, by=1), klamm_elected(16, 3, 3))
    assert [(x.broker, x.fault, x.was_controller) for x in found.losses if x.broker == 2] == [(2, at(10), True)]


def test_a_controller_of_klamm_that_gave_the_role_away_was_not_lost() -> None:
    found = story(
        klamm_elected(1, 2, 2),
        klamm_elected(16, 3, 3),
        Record(at(16.1), 2, "ctl.resigned", 2),
        wrote_isr(17, 1, (1, 2), 2),
    )
    assert [x for x in found.losses if x.broker == 2] == []


def test_a_suspected_broker_is_lost_at_once() -> None:
    suspected = Record(at(10), 9, "suspected", other=1)
    found = story(suspected, state(10.1, 1, 2, 1, (2, 3)), leads(10.2, 2, 1), gone(16, 1))
    assert [(x.how, x.fault, x.noticed) for x in found.losses] == [("killed", at(10), at(10))]
    assert [(o.start, o.end) for o in found.outages] == [(at(10), at(10.2))]


def test_a_suspected_broker_that_answers_again_was_silent() -> None:
    found = story(Record(at(10), 9, "suspected", other=3), Record(at(12), 9, "suspicion.ended", other=3))
    assert [(x.how, x.back) for x in found.losses] == [("silent", at(12))]


def test_klamm_knows_its_own_pauses() -> None:
    found = story(Record(at(13), 1, "held", number=3000), Record(at(20), 1, "held", number=60))
    assert [(x.how, x.fault, x.back) for x in found.losses] == [("silent", at(10), at(13))]
    assert [(o.start, o.end, o.no_leader_ms) for o in found.outages] == [(at(10), at(13), 3000)]


def test_a_pause_before_a_kill_does_not_make_it_a_pause() -> None:
    found = story(Record(at(5), 1, "held", number=600), *KILLED)
    assert [(x.how, x.fault) for x in found.losses] == [("silent", at(4.4)), ("killed", at(10.1))]
    found = story(Record(at(9), 1, "held", number=600), *KILLED)
    assert [(x.how, x.fault) for x in found.losses] == [("killed", at(10.1))]


def test_an_epoch_of_the_dead_leader_does_not_end_its_outage() -> None:
    """Two brokers die. The controller handles the follower first, and bumps the epoch of a leader that is dead."""
    both = [broken(10.1, 1, by=9), broken(10.1, 3, by=9), gone(16, 3), state(16.1, 1, 1, 1, (1, 2)), gone(16.2, 1)]
    found = story(*both, state(16.4, 2, 2, 2, (2,)), leads(16.5, 2, 2), wrote_isr(30, 3, (2, 3), 2))
    (outage,) = found.outages
    assert (outage.start, outage.end, outage.no_leader_ms) == (at(10.1), at(30), 6400)


def test_a_controller_that_resigned_was_not_lost() -> None:
    resigned = [Record(at(9.99), 9, "ctl.resigning"), Record(at(10), 2, "ctl.elected", 2)]
    cause = "broker 9 resigned: /controller was deleted or given away"
    assert [(t.cause, t.gap_ms) for t in story(*resigned).terms[1:]] == [(cause, 10)]


def test_a_term_without_logs_is_listed_as_unknown() -> None:
    terms = story(Record(at(50), 2, "ctl.elected", 4)).terms
    assert [(t.epoch, t.broker) for t in terms] == [(1, 9), (2, None), (4, 2)]


def test_reassignments_and_deletions_have_a_start_and_an_end() -> None:
    found = story(
        Record(at(1), 9, "reassign.set", topic="t", partition=0, replicas=(4, 1, 2, 3), brokers=(4,), text="3"),
        Record(at(4), 9, "reassign.set", topic="t", partition=0, replicas=(4, 1, 2), brokers=(), text=""),
        Record(at(5), 9, "reassign.set", topic="t", partition=1, replicas=(4, 1), brokers=(4,), text=""),
        Record(at(6), 9, "reassign.set", topic="t", partition=1, replicas=(1,), brokers=(), text=""),
        Record(at(7), 9, "reassign.set", topic="t", partition=2, replicas=(4, 1), brokers=(4,), text=""),
        Record(at(8), 9, "del.asked", text="x,y"),
        Record(at(8.1), 9, "del.halted", topic="x", text="offline replicas"),
        Record(at(30), 9, "del.done", topic="x"),
    )
    moved, cancelled, running = found.reassignments
    assert (moved.what, moved.start, moved.end, moved.replicas_after, moved.cancelled) == (
        "t-0",
        at(1),
        at(4),
        (4, 1, 2),
        False,
    )
    assert moved.replicas_before == (1, 2, 3)
    assert (cancelled.what, cancelled.cancelled) == ("t-1", True)
    assert (running.what, running.end) == ("t-2", None)
    assert [(d.topic, d.end, d.waited_for) for d in found.deletions] == [
        ("x", at(30), "offline replicas"),
        ("y", None, ""),
    ]


def test_a_deleted_topic_has_no_outage_and_its_next_life_starts_over() -> None:
    found = story(
        Record(at(20), 9, "del.asked", text="t"),
        state(20.5, 1, -1, 1, (1,)),
        Record(at(40), 9, "topics.new", text="t"),
        state(40.1, 0, 2, 0, (2, 3)),
    )
    assert found.outages == []
    assert [(place.incarnation, [row.version for row in rows]) for place, rows in found.history.items()] == [
        (0, [0]),
        (1, [0]),
    ]


def test_the_stop_of_the_whole_cluster_is_no_outage() -> None:
    stops = [Record(at(50 + b), b, "srv.stop") for b in (1, 2, 3, 9)]
    found = story(*stops, state(52, 1, -1, 1, (1,)))
    assert (found.outages, found.end) == ([], at(51))


@pytest.mark.parametrize("skew", [2.5, -0.8])
def test_a_clock_that_is_wrong_is_found_and_corrected(skew: float) -> None:
    records = []
    for number, (broker, ahead) in enumerate([(1, skew), (2, 0.0)] * 5):
        sent = Record(at(number), 9, "lai.sent", 1, "u", number, 1, 0, 0, (1,), (1,), other=broker)
        records += [
            sent,
            sent._replace(t=at(number + 0.010 + ahead), broker=broker, kind="lai.recv", other=9),
            Record(at(number + 0.020 + ahead), broker, "lai.done", 1, other=9, number=number),
            Record(at(number + 0.030), 9, "resp", 1, other=broker, number=number),
        ]
    out = f"(brokerId: 3, endOffset: 4, lastCaughtUpTimeMs: {at(49 + skew)})"
    records += [shrink(51 + skew, out, 1, (1, 2)), gone(56, 3)]
    found = analyse([*records, END], (1, 2, 9))
    assert [loss.fault for loss in found.losses] == [at(49)], "a time inside of an entry is by the same clock"
    skewed, *others = found.skews
    assert (skewed.offset_ms, skewed.error_ms, skewed.pairs, skewed.corrected) == (round(skew * 1000), 10, 10, True)
    assert [other.corrected for other in others] == [False, False]
    assert [r.t for r in found.records if r.kind == "lai.recv"] == [at(n + 0.010) for n in range(10)]


def test_local_times_become_utc() -> None:
    zone = 7 * QUARTER_MS
    started = Record(at(-8) + zone, 2, "srv.zone", number=at(-8.01))
    late = [r._replace(t=r.t + zone) if r.broker == 2 else r for r in KILLED]
    assert story(started, *late).outages == story(*KILLED).outages
    assert story(started, *late).zones == {2: zone}


def test_what_the_logs_cannot_tell_is_said() -> None:
    missing = " ".join(story(Record(at(0), 1, "version", text="3.9.1"), writers=(1, 2)).missing)
    assert "Broker 3 is named in these logs, but its own logs are missing." in missing
    assert "No log is at TRACE" in missing
    assert "TRACE" not in " ".join(story().missing), "klamm has no such level"
    assert analyse([], []).missing == [
        "No log names zookeeper.session.timeout.ms: zookeeper.session.timeout.ms=18000 is assumed.",
        "No log names replica.lag.time.max.ms: replica.lag.time.max.ms=30000 is assumed.",
        "No log names min.insync.replicas: min.insync.replicas=1 is assumed.",
    ]


def test_only_the_asked_time_is_reported_but_all_of_it_explains() -> None:
    records = [*BEGINNING, *KILLED, wrote_isr(40, 2, (2,), 2), wrote_isr(45, 3, (2, 3), 2), END]
    found = analyse(records, (1, 2, 3, 9), start=at(12), end=at(30))
    assert [(o.start, o.end) for o in found.outages] == [(at(10.1), at(16.5))]
    assert (found.start, found.end) == (at(12), at(30))


EVENT = '"time_ms":7,"broker":2,"role":"%s","controller_epoch":3'
STATE_CHANGE = (
    '{"v":1,"kind":"state-change",' + EVENT + ',"topic":"t","partition":0,"from":"none","to":"%s","leader":1,'
    '"leader_epoch":4,"isr":[1,2],"zk_version":5,"cause":"%s"}'
)
DECISION = '{"v":1,"kind":"decision",' + EVENT % "controller" + ',"event":"%s","cause":"%s","detail":"%s"}'
OBEYED = "leader-and-isr from controller 2"
FACTS = {"topic": "t", "partition": 0, "leader": 1, "leader_epoch": 4, "version": 5}


@pytest.mark.parametrize(
    ("line", "kind", "fields"),
    [
        (STATE_CHANGE % ("controller", "Online", "x"), "part.online", {**FACTS, "epoch": 3, "brokers": (1, 2)}),
        (STATE_CHANGE % ("broker", "leader", OBEYED), "lead.start", {**FACTS, "brokers": (1, 2)}),
        (STATE_CHANGE % ("broker", "follower", OBEYED), "follow.start", FACTS),
        (STATE_CHANGE % ("broker", "leader", "isr-shrink"), "isr.updated", {**FACTS, "brokers": (1, 2)}),
        (DECISION % ("controller-elected", "free", ""), "ctl.elected", {"epoch": 3, "text": "free"}),
        (DECISION % ("controller-failover", "free", ""), "ctl.ready", {"epoch": 3, "text": "free"}),
        (DECISION % ("controller-resigned", "stopped", ""), "ctl.resigned", {"epoch": 3, "text": "stopped"}),
        (DECISION % ("broker-change", "new [4], dead [1, 3], bounced [5]", ""), "brokers.changed",
         {"epoch": 3, "brokers": (1, 3, 5), "text": "4"}),
        (DECISION % ("broker-suspected", "broker 1 suspected", ""), "suspected", {"epoch": 3, "other": 1}),
        (DECISION % ("controlled-shutdown", "shutdown of broker 1", ""), "cs.asked", {"epoch": 3, "other": 1}),
        (DECISION % ("suspicion-ended", "broker 1", "it answers again under the same broker epoch"), "suspicion.ended",
         {"epoch": 3, "other": 1}),
        (DECISION[:-1] % ("loop-held", "x", "") + ',"duration_ms":612.4}', "held", {"number": 612}),
        (DECISION % ("topic-created", "topic creation ['a', 'b']", ""), "topics.new", {"text": "a, b"}),
        (DECISION % ("topic-deleted", "x", "a"), "del.done", {"topic": "a"}),
    ],
)  # fmt: skip
def test_events_of_klamm_say_the_same(line: str, kind: str, fields: dict[str, object]) -> None:
    assert parse_event(line.encode()) == Record(7, 2, kind)._replace(**fields)  # type: ignore[arg-type]


def test_events_that_say_nothing_and_lines_that_are_no_events() -> None:
    assert parse_event((DECISION % ("znode-skipped", "x", "")).encode()) is None
    assert parse_event((DECISION % ("suspicion-ended", "broker 1", "its registration ended")).encode()) is None
    assert parse_event(b"") is None
    torn = parse_event(b'{"v":1,"kind":"deci')
    assert torn is not None
    assert torn.kind == "unknown"


def told(found: Findings) -> list[str]:
    return [" ".join(story.sentences) for story in tell(found)]


def test_the_story_of_a_kill_names_cause_parts_and_partitions() -> None:
    restarted = Record(at(30), 1, "srv.start")
    assert told(story(*KILLED, restarted)) == [
        "At 08:00:10.100 broker 1 failed. The time is known from the first connection to it that broke. 5.9 s later "
        "the controller noticed. 1 partition (t-0) had no leader for up to 6.4 s (5.9 s to notice it, 200 ms to elect "
        "a leader, 300 ms to tell the new leader). It started again at 08:00:30.000, 19.9 s after the fault."
    ]


def test_the_story_of_a_single_replica_says_that_it_waited() -> None:
    one_is_enough = Record(at(0), 9, "min.isr", topic="t", number=1)
    alone = [one_is_enough, state(5, 1, 1, 0, (1,)), broken(10, 1), gone(16, 1), state(16.1, 2, -1, 1, (1,))]
    (text,) = told(story(*alone, Record(at(30), 1, "srv.start"), state(31, 3, 1, 2, (1, 2)), leads(31.5, 1, 2)))
    assert "1 partition (t-0) had no other replica to lead, and no leader for up to 21.5 s." in text


def test_the_story_of_a_lost_follower_and_of_an_unclean_election() -> None:
    (text,) = told(story(broken(10, 3), wrote_isr(11.6, 1, (1, 2), 1), gone(16, 3)))
    assert "1 partition (t-0) kept the leader, but records with acks=all waited for up to 1.6 s" in text
    assert text.endswith("It was not back before the logs end.")
    dead = [broken(10, 1), gone(16, 1), state(16.1, 1, -1, 1, (1,)), state(30, 2, 3, 2, (3,))]
    (text,) = told(story(*dead))
    assert text.endswith("t-0 then got a leader that was not in sync, broker 3: records may be lost.")


def test_a_quiet_cluster_has_no_story() -> None:
    assert told(story()) == []
    assert summary(story()) == "No partition was unavailable, and no broker was lost."


def test_a_pause_shortly_before_a_kill_is_a_loss_of_its_own() -> None:
    """The kill at 12 must not swallow the pause from 8 to 10.5."""
    found = story(
        Record(at(10.5), 1, "held", number=2500),
        broken(12, 1),
        gone(16, 1),
        state(16.2, 1, 2, 1, (2, 3)),
        leads(16.3, 2, 1),
    )
    assert [(x.how, x.fault, x.back) for x in found.losses] == [
        ("silent", at(8), at(10.5)),
        ("killed", at(12), None),
    ]
    assert [(o.start, o.end) for o in found.outages] == [(at(8), at(10.5)), (at(12), at(16.3))]


@pytest.mark.parametrize(
    "proof",
    [Record(at(11.55), 1, "session.ended"), Record(at(13), 1, "srv.started")],
    ids=["the new process ended the old session", "the start was not complete"],
)
def test_a_loss_that_is_noticed_by_the_restart_happened_before_it(proof: Record) -> None:
    started_before = Record(at(-5), 1, "srv.started")
    found = story(
        started_before,
        broken(10, 1),
        Record(at(11.5), 1, "srv.start"),
        gone(11.6, 1),
        state(11.7, 1, 2, 1, (2, 3)),
        leads(11.8, 2, 1),
        proof,
    )
    (loss,) = found.losses
    assert (loss.how, loss.fault, loss.noticed, loss.back) == ("killed", at(10), at(11.5), at(11.5))
    (outage,) = found.outages
    assert (outage.start, outage.end) == (at(10), at(11.8))


def test_a_pause_is_dated_between_two_pings_if_nothing_else_tells() -> None:
    """The last ping was answered at 9, the next one would have been sent two seconds later."""
    found = story(*KILLED[1:], Record(at(22), 1, "zk.timeout", number=13_000))
    (loss,) = found.losses
    assert (loss.how, loss.earliest, loss.fault) == ("paused", at(9), at(10))
    wrote = Record(at(10.7), 1, "min.isr", topic="t", number=2)
    (later,) = story(wrote, *KILLED[1:], Record(at(22), 1, "zk.timeout", number=13_000)).losses
    assert later.fault == at(10.7), "it lived at least until its last entry"


def test_a_broker_that_loses_its_session_and_runs_on_was_not_killed() -> None:
    """It woke at 12.9, served again, and lost its session at 16 because it had not reached ZooKeeper in time."""
    woke = Record(at(12.9), 1, "zk.timeout", number=4500)
    found = story(woke, *KILLED[1:], Record(at(16.05), 1, "zk.expired"))
    assert [(x.how, x.fault, x.back) for x in found.losses] == [
        ("silent", at(9.4), at(12.9)),
        ("cut off", at(16), at(16.05)),
    ]
    assert [(o.start, o.end) for o in found.outages] == [(at(9.4), at(12.9)), (at(16), at(16.5))]


def test_a_broker_whose_zookeeper_does_not_answer_was_not_paused() -> None:
    """A client that runs complains after two thirds of its session, one that was paused later."""
    assert story(Record(at(14), 1, "zk.timeout", number=4020)).losses == []
    assert [x.how for x in story(Record(at(14), 1, "zk.timeout", number=4600)).losses] == ["silent"]


def test_a_partition_that_cannot_be_handed_over_is_lost_when_its_broker_stops_listening() -> None:
    found = story(
        Record(at(10), 1, "srv.stop"),
        Record(at(11), 1, "srv.deaf"),
        gone(13, 1),
        state(13.1, 1, -1, 1, (1,)),
        state(20, 2, 1, 2, (1,)),
        leads(20.1, 1, 2),
        Record(at(18), 1, "srv.start"),
    )
    (outage,) = [o for o in found.outages if o.no_leader_ms]
    assert (outage.start, outage.how) == (at(11), "stopped")


def test_no_outage_is_counted_across_missing_logs() -> None:
    """The partition lost its leader, then a day of logs is missing; afterwards it is at version 9 and fine."""
    day = 24 * 3600.0
    lost = [broken(10.1, 1), gone(16, 1), state(16.2, 1, -1, 1, (1,)), broken(40, 1)]
    after = [state(day, 9, 2, 7, (2, 3)), Record(at(day + 100), 9, "ctl.ready", 1)]
    found = analyse([*BEGINNING, *lost, *after], (1, 2, 3, 9))
    (outage,) = [o for o in found.outages if o.no_leader_ms]
    assert outage.end == at(40)
    assert "these logs hold nothing" in found.missing[0]
    known = analyse([*BEGINNING, *lost, state(day, 2, 2, 2, (2, 3)), after[1]], (1, 2, 3, 9))
    assert max(o.end for o in known.outages) == at(day), "the next version: nothing is missing, it lasted so long"
