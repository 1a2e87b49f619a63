"""Is the cluster healthy? One sentence, then each problem with a place to look and a cure. Pure.

The sentence never comes from an old look: if ZooKeeper has not answered for a while, health is unknown, and the
sentence says so and for how long.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from itertools import islice
from typing import Final, NamedTuple
from urllib.parse import quote

from klamm.admin.doctor.finding import Finding, Severity
from klamm.admin.doctor.partition_checks import ELECT, ELECT_UNCLEAN
from klamm.dashboard.load import Directory
from klamm.dashboard.snapshot import ClusterSnapshot, PartitionHealth
from klamm.model.wording import count

STALE_SECONDS: Final = 5.0
NAMED_MAX: Final = 3
SHOWN_ELSEWHERE: Final = frozenset({"broker-gone", "offline", "no-controller", "leader-missing"})
"""Findings of the doctor that the problems here already say."""


class Level(IntEnum):
    BAD = 0
    WARNING = 1
    NOTE = 2
    GOOD = 3

    @property
    def word(self) -> str:
        return self.name.lower()


class Problem(NamedTuple):
    level: Level
    text: str
    link: str
    cure: str


class Health(NamedTuple):
    level: Level
    sentence: str
    problems: list[Problem]


def health_of(
    snapshot: ClusterSnapshot | None,
    *,
    age_s: float,
    trouble: str = "",
    silent: Mapping[int, str] | None = None,
    findings: Sequence[Finding] | None = (),
    nearly_full: Sequence[Directory] = (),
    is_preview: bool = False,
) -> Health:
    """`age_s` is the time since ZooKeeper last answered, `trouble` why it does not. `silent` has the registered brokers
    that do not answer, with reasons. `findings` are None before the doctor has looked. A preview is what the brokers
    say before ZooKeeper has been read."""
    if snapshot is None:
        return Health(Level.WARNING, f"The cluster is being read for the first time{_because(trouble)}.", [])
    if age_s > STALE_SECONDS:
        sentence = f"Unknown: ZooKeeper has not answered for {age_s:.0f} s{_because(trouble)}."
        cure = "check ZooKeeper and the network; everything below is as it was then"
        return Health(Level.BAD, sentence, [Problem(Level.BAD, "ZooKeeper does not answer", "/doctor", cure)])
    found = [*_problems(snapshot, silent or {}, findings or ()), *_space(nearly_full)]
    if is_preview:
        found.append(_preview(trouble))
    elif findings is None:
        cure = "its findings appear by themselves"
        found.append(Problem(Level.NOTE, "the doctor has not looked yet", "/doctor", cure))
    problems = sorted(found, key=lambda problem: problem.level)
    if not problems or problems[0].level is Level.NOTE:
        return Health(Level.GOOD, _good(snapshot), problems)
    return Health(problems[0].level, f"{_sentence(problems)}.", problems)


def _because(trouble: str) -> str:
    return f" ({trouble})" if trouble else ""


def _good(snapshot: ClusterSnapshot) -> str:
    brokers, partitions = count(len(snapshot.registered), "broker"), count(snapshot.partitions, "partition")
    moving = snapshot.health.get(PartitionHealth.MOVING, 0)
    extra = f", {moving} on the move" if moving else ""
    return f"Healthy: {brokers}, {partitions}, all in sync{extra}."


def _sentence(problems: Sequence[Problem]) -> str:
    told = [problem.text for problem in problems if problem.level is not Level.NOTE]
    first = "; ".join(islice(told, 2))
    rest = len(told) - 2
    return first[:1].upper() + first[1:] + (f"; and {count(rest, 'more problem')}" if rest > 0 else "")


def _problems(snapshot: ClusterSnapshot, silent: Mapping[int, str], findings: Sequence[Finding]) -> list[Problem]:
    found: list[Problem] = []
    if snapshot.controller is None:
        cure = "start a broker that may be controller; klamm zk doctor says what keeps them"
        found.append(Problem(Level.BAD, "the cluster has no controller", "/controller", cure))
    found += _partition_problems(snapshot)
    for broker in snapshot.down:
        row = snapshot.brokers[broker]
        cure = f"start broker {broker}, or move its {count(row.replicas, 'replica')}: Reassignments, drain {broker}"
        found.append(Problem(Level.BAD, f"broker {broker} is down", f"/brokers/{broker}", cure))
    for broker, why in sorted(silent.items()):
        if broker in snapshot.registered:
            cure = f"look at its log and its host; until its session ends, its partitions hang ({why})"
            text = f"broker {broker} is registered but does not answer"
            found.append(Problem(Level.BAD, text, f"/brokers/{broker}", cure))
    if snapshot.not_preferred and snapshot.not_preferred * 10 > snapshot.partitions:
        text = f"{count(snapshot.not_preferred, 'partition')} not led by the preferred replica"
        found.append(Problem(Level.NOTE, text, "/topics?state=not-preferred", ELECT))
    others = [finding for finding in findings if finding.code not in SHOWN_ELSEWHERE]
    for severity, level in ((Severity.CRITICAL, Level.BAD), (Severity.ERROR, Level.WARNING)):
        of_level = [finding for finding in others if finding.severity is severity]
        if of_level:
            first = of_level[0]
            text = f"the doctor has {count(len(of_level), 'finding')} ({first.code} at {first.path})"
            found.append(Problem(level, text, "/doctor", first.cure))
    return found


def _preview(trouble: str) -> Problem:
    if trouble:
        return Problem(Level.WARNING, f"ZooKeeper could not be read{_because(trouble)}", "/doctor", "check ZooKeeper")
    cure = "this is what the brokers say; a replica that is being added counts as not in sync"
    return Problem(Level.NOTE, "ZooKeeper is still being read", "/doctor", cure)


def _space(nearly_full: Sequence[Directory]) -> list[Problem]:
    return [
        Problem(
            Level.NOTE,
            f"{directory.path} of broker {directory.broker} has {(directory.free_share or 0) * 100:.0f} % free space",
            f"/brokers/{directory.broker}",
            "make room, keep less (retention.bytes, retention.ms), or move replicas: Reassignments",
        )
        for directory in nearly_full
    ]


def _partition_problems(snapshot: ClusterSnapshot) -> list[Problem]:
    kinds = (
        (PartitionHealth.OFFLINE, Level.BAD, "without a leader", "offline"),
        (PartitionHealth.UNDER_MIN_ISR, Level.BAD, "below min.insync.replicas", "under-min-isr"),
        (PartitionHealth.UNDER_REPLICATED, Level.WARNING, "under-replicated", "under-replicated"),
    )
    found = []
    for health, level, words, state in kinds:
        number = snapshot.health.get(health, 0)
        if number:
            text = f"{count(number, 'partition')} {words}"
            found.append(Problem(level, text, f"/topics?state={quote(state)}", _cure(health, snapshot)))
    return found


def _cure(health: PartitionHealth, snapshot: ClusterSnapshot) -> str:
    rows = [row for row in snapshot.rows(health) if row.health is health]
    missing = sorted({broker for row in rows for broker in row.missing})
    needed = {broker for row in rows for broker in row.isr} if health is PartitionHealth.OFFLINE else missing
    down = sorted(broker for broker in needed if broker not in snapshot.registered)
    slow = [broker for broker in missing if broker in snapshot.registered]
    named = ", ".join(f"{row.topic}-{row.number}" for row in rows[:NAMED_MAX])
    steps = [f"start {_brokers(down)}"] if down else []
    if health is PartitionHealth.OFFLINE:
        return f"{steps[0] if steps else 'see Doctor'}; or lose data: {ELECT_UNCLEAN} ({named})"
    if slow:
        steps.append(f"wait until {_brokers(slow)} caught up")
    effect = "; until then producers with acks=all are refused" if health is PartitionHealth.UNDER_MIN_ISR else ""
    return f"{' and '.join(steps)}{effect} ({named})"


def _brokers(ids: Sequence[int]) -> str:
    """
    >>> _brokers([1]), _brokers([1, 2])
    ('broker 1', 'brokers 1, 2')
    """
    return f"broker{'' if len(ids) == 1 else 's'} {', '.join(map(str, ids))}"
