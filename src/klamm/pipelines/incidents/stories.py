"""What happened, in sentences: one story for each fault and the outages that it caused."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple

from klamm.pipelines.incidents.analysis.findings import Findings
from klamm.pipelines.incidents.analysis.losses import CUT_OFF, KILLED, PAUSED, SILENT, STOPPED, Loss
from klamm.pipelines.incidents.analysis.outages import Outage, Split

TOGETHER_MS: Final = 2_000
NAMED_MAX: Final = 8
SHORT_SECONDS: Final = 1
WHAT: Final = {
    KILLED: "broker {} failed",
    PAUSED: "broker {} stopped answering, and lost its session",
    SILENT: "broker {} stopped answering for a while, and kept its session",
    STOPPED: "broker {} was asked to stop",
    CUT_OFF: "broker {} lost its session with ZooKeeper, but ran on",
}


class Story(NamedTuple):
    t: int
    title: str
    sentences: Sequence[str]
    outages: Sequence[Outage]

    @property
    def headline(self) -> str:
        return self.title[:1].upper() + self.title[1:]

    @property
    def is_short(self) -> bool:
        """A producer that tries again does not notice it."""
        return self.seconds < SHORT_SECONDS

    @property
    def seconds(self) -> float:
        """The longest outage."""
        return max((o.end - o.start for o in self.outages), default=0) / 1000


def tell(findings: Findings) -> list[Story]:
    """All stories, in order of time."""
    left = list(findings.outages)
    stories = []
    for loss in findings.losses:
        caused = [o for o in left if _belongs(o, loss)]
        left = [o for o in left if not _belongs(o, loss)]
        stories.append(_of_loss(loss, caused, findings))
    stories += [_of_group(group) for group in _together(left)]
    return sorted(stories, key=lambda story: (story.t, story.title))


def _belongs(outage: Outage, loss: Loss) -> bool:
    if (outage.broker, outage.how) != (loss.broker, loss.how):
        return False
    return loss.fault - TOGETHER_MS <= outage.start <= (loss.back or loss.noticed) + TOGETHER_MS


def _of_loss(loss: Loss, outages: Sequence[Outage], findings: Findings) -> Story:
    title = WHAT[loss.how].format(f"{loss.broker}, the controller," if loss.was_controller else loss.broker)
    sentences = [f"At {_time(loss.fault)} {title}."]
    if loss.how == STOPPED:
        sentences.append("It handed its partitions over first.")
    elif loss.evidence.startswith("an estimate"):
        sentences.append(f"The time is {loss.evidence}.")
    else:
        sentences.append(f"The time is known from {loss.evidence}.")
    if loss.how in (KILLED, PAUSED):
        who = "the next controller" if loss.was_controller else "the controller"
        sentences.append(f"{_seconds(loss.noticed - loss.fault)} later {who} noticed.")
    sentences += _effects(outages)
    if loss.back is None:
        sentences.append("It was not back before the logs end.")
    elif loss.back > loss.noticed:
        what = {PAUSED: "woke up", SILENT: "woke up", CUT_OFF: "registered again"}.get(loss.how, "started again")
        when = "the request" if loss.how == STOPPED else "the fault"
        sentences.append(f"It {what} at {_time(loss.back)}, {_seconds(loss.back - loss.fault)} after {when}.")
    sentences += [
        f"{u.place.topic}-{u.place.partition} then got a leader that was not in sync, broker {u.leader}: "
        "records may be lost."
        for u in findings.unclean
        if loss.broker in u.isr_before and loss.fault <= u.t <= (loss.back or findings.end)
    ]
    return Story(loss.fault, title, sentences, outages)


def _of_group(outages: Sequence[Outage]) -> Story:
    how = outages[0].how
    title = {
        "handed over": "leaders were handed over",
        "out of sync": "too few replicas were in sync",
    }.get(how, f"partitions were without leader: {how}")
    sentences = [f"At {_time(outages[0].start)} {title}.", *_effects(outages)]
    return Story(outages[0].start, title, sentences, outages)


def _effects(outages: Sequence[Outage]) -> Iterable[str]:
    if not outages:
        yield "No partition became unavailable."
        return
    leaderless = [o for o in outages if o.no_leader_ms]
    waited = [o for o in leaderless if _waited(o)]
    if waited:
        worst = max(waited, key=lambda o: o.no_leader_ms)
        longest = _seconds(worst.no_leader_ms)
        yield f"{_partitions(waited)} had no other replica to lead, and no leader for up to {longest}."
    leaderless = [o for o in leaderless if not _waited(o)]
    if leaderless:
        worst = max(leaderless, key=lambda o: o.no_leader_ms)
        yield f"{_partitions(leaderless)} had no leader for up to {_seconds(worst.no_leader_ms)}{_split(worst.split)}."
    few = [o for o in outages if o.under_min_isr_ms]
    if few:
        worst = max(few, key=lambda o: o.under_min_isr_ms)
        yield (
            f"{_partitions(few)} had fewer replicas in sync than min.insync.replicas for up to "
            f"{_seconds(worst.under_min_isr_ms)}, and refused records with acks=all."
        )
    stalled = [o for o in outages if o.stalled_ms]
    if stalled:
        worst = max(stalled, key=lambda o: o.stalled_ms)
        yield (
            f"{_partitions(stalled)} kept the leader, but records with acks=all waited for up to "
            f"{_seconds(worst.stalled_ms)}, until the broker left the ISR."
        )
    still = [o for o in outages if o.open]
    if still:
        yield f"{_partitions(still)} had not recovered when the logs end."


def _waited(outage: Outage) -> bool:
    """No other broker could lead, so the partition waited for the one that was killed."""
    own = outage.leader_before == outage.broker and outage.leader_after in (outage.broker, None)
    return own and outage.how == KILLED


def _split(split: Split) -> str:
    parts = [
        f"{_seconds(value)} to {word}"
        for value, word in zip(split, ("notice it", "elect a leader", "tell the new leader"), strict=True)
        if value
    ]
    return f" ({', '.join(parts)})" if parts else ""


def _partitions(outages: Sequence[Outage]) -> str:
    names = sorted({(o.place.topic, o.place.partition) for o in outages})
    shown = ", ".join(f"{topic}-{partition}" for topic, partition in names[:NAMED_MAX])
    rest = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
    return f"{len(names)} partition{'s' if len(names) != 1 else ''} ({shown}{rest})"


def _together(outages: Sequence[Outage]) -> Iterable[list[Outage]]:
    group: list[Outage] = []
    for outage in sorted(outages, key=lambda o: (o.how, o.start, o.place)):
        if group and (outage.how != group[0].how or outage.start > group[-1].start + TOGETHER_MS):
            yield group
            group = []
        group.append(outage)
    if group:
        yield group


def summary(findings: Findings) -> str:
    """The whole report in one or two sentences."""
    lost = [x for x in findings.losses if x.how != STOPPED]
    if not findings.outages and not lost:
        return "No partition was unavailable, and no broker was lost."
    brokers = sorted({x.broker for x in lost})
    times = _count(len(lost), "time", "times")
    which = f"{'Broker' if len(brokers) == 1 else 'Brokers'} {_listed(brokers)} "
    losses = f"{which}{'was' if len(brokers) == 1 else 'were'} lost {times}" if lost else "No broker was lost"
    told = f"{losses}, and the controller changed {_count(len(findings.terms) - 1, 'time', 'times')}."
    worst = max(findings.outages, key=lambda o: o.end - o.start, default=None)
    if worst is None:
        return f"{told} No partition was unavailable."
    partitions = {o.place[:2] for o in findings.outages}
    seconds = sum(o.end - o.start for o in findings.outages)
    told += (
        f" {_count(len(partitions), 'partition was', 'partitions were')} unavailable for {_seconds(seconds)} in total; "
        f"the worst outage, of {worst.place.topic}-{worst.place.partition}, lasted {_seconds(worst.end - worst.start)}."
    )
    waiting = sum(o.split.detect_ms or 0 for o in findings.outages)
    leaderless = sum(o.no_leader_ms for o in findings.outages)
    if leaderless and waiting:
        share = round(100 * waiting / leaderless)
        told += f" {share} % of the time without a leader passed before the fault was noticed."
    return told


def _listed(brokers: Sequence[int]) -> str:
    """
    >>> _listed([1]), _listed([1, 2, 3])
    ('1', '1, 2 and 3')
    """
    shown = [*map(str, brokers[:NAMED_MAX])]
    if len(brokers) > NAMED_MAX:
        shown.append(f"{len(brokers) - NAMED_MAX} more")
    return " and ".join(filter(None, (", ".join(shown[:-1]), shown[-1])))


def _count(number: int, one: str, many: str) -> str:
    return f"{max(0, number)} {one if number == 1 else many}"


def _seconds(milliseconds: int) -> str:
    return f"{milliseconds / 1000:.1f} s" if milliseconds >= 1000 else f"{milliseconds} ms"


def _time(t: int) -> str:
    return datetime.fromtimestamp(t / 1000, UTC).strftime("%H:%M:%S.%f")[:-3]
