"""What changed in a cluster between two looks at ZooKeeper, for the timeline.

Apache Kafka says nowhere why it did something, so the cause is what the two looks show: a broker that is gone, a
reassignment, a replica that fell behind. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final, NamedTuple

from klamm.dashboard.snapshot import ClusterSnapshot, PartitionRow
from klamm.model.wording import count

ENTRIES_MAX: Final = 5_000
"""Entries that are kept; the oldest go first."""
CHANGES_MAX: Final = 500
"""Entries that one comparison may add. A broker's death can change tens of thousands of partitions."""


class Entry(NamedTuple):
    time_ms: int
    kind: str
    """partition, broker, controller, topic or decision."""
    text: str
    cause: str
    topic: str | None = None
    partition: int | None = None
    brokers: tuple[int, ...] = ()
    folded: int = 1
    """How many entries this one stands for."""


def summarized(entries: Iterable[Entry], most: int = ENTRIES_MAX) -> list[Entry]:
    """The first `most` entries. Neighbours that are partitions with the same cause count as one: a broker's death
    changes many."""
    groups: list[list[Entry]] = []
    for entry in entries:
        if groups and entry.kind == "partition" and _kind(entry) == _kind(groups[-1][0]):
            groups[-1].append(entry)
        elif len(groups) == most:
            break
        else:
            groups.append([entry])
    return [_summary(group) for group in groups]


def _kind(entry: Entry) -> tuple[str, str]:
    return entry.kind, entry.cause


def _summary(group: list[Entry]) -> Entry:
    first, *others = group
    if not others:
        return first
    topic = first.topic if all(entry.topic == first.topic for entry in others) else None
    text = f"{count(len({(entry.topic, entry.partition) for entry in group}), 'partition')}, such as {first.text}"
    return first._replace(text=text, topic=topic, partition=None, folded=len(group))


def compare(before: ClusterSnapshot, after: ClusterSnapshot, *, only_isr: bool = False) -> list[Entry]:
    """The changes between two looks. `only_isr` leaves out the decisions of a controller that writes its own events;
    what the leaders write (the ISR) and what brokers do is still compared."""
    at = after.read_at_ms
    entries = [*_brokers(before, after, at)]
    if not only_isr:
        entries += _controller(before, after, at)
    entries += _topics(before, after, at)
    changed = _partitions(before, after, only_isr)
    entries += islice(changed, CHANGES_MAX)
    rest = sum(1 for _ in changed)
    if rest:
        entries.append(Entry(at, "partition", f"and {count(rest, 'partition')} more", "the same moment"))
    return entries


def _brokers(before: ClusterSnapshot, after: ClusterSnapshot, at: int) -> Iterator[Entry]:
    old, new = set(before.registered), set(after.registered)
    for broker in sorted(old - new):
        yield Entry(at, "broker", f"broker {broker} is gone", "its session in ZooKeeper ended", brokers=(broker,))
    for broker in sorted(new - old):
        since = after.brokers[broker].since_ms or at
        yield Entry(since, "broker", f"broker {broker} is there", "it registered in ZooKeeper", brokers=(broker,))
    for broker in sorted(old & new):
        again = after.brokers[broker].since_ms
        if again != before.brokers[broker].since_ms:
            yield Entry(again or at, "broker", f"broker {broker} is back", "it registered again", brokers=(broker,))


def _controller(before: ClusterSnapshot, after: ClusterSnapshot, at: int) -> Iterator[Entry]:
    if (before.controller, before.controller_since_ms) == (after.controller, after.controller_since_ms):
        return
    if after.controller is None:
        yield Entry(at, "controller", "no broker is the controller", why_controller_ended(before, after))
        return
    text = f"broker {after.controller} is the controller, epoch {after.controller_epoch}"
    since = after.controller_since_ms or at
    yield Entry(since, "controller", text, why_controller_ended(before, after), brokers=(after.controller,))


def why_controller_ended(before: ClusterSnapshot, after: ClusterSnapshot) -> str:
    if before.controller is None:
        return "the cluster had no controller"
    if before.controller not in after.registered:
        return f"broker {before.controller} is gone"
    return f"broker {before.controller} resigned or was replaced"


def _topics(before: ClusterSnapshot, after: ClusterSnapshot, at: int) -> Iterator[Entry]:
    for name in sorted(after.topics.keys() - before.topics.keys()):
        number = count(len(after.topics[name].partitions), "partition")
        created = after.topics[name].created_ms or at
        yield Entry(created, "topic", f"topic {name} exists, with {number}", "it was created", name)
    for name in sorted(before.topics.keys() - after.topics.keys()):
        yield Entry(at, "topic", f"topic {name} no longer exists", "it was deleted", name)
    for name in sorted(set(_marked(after)) - set(_marked(before))):
        yield Entry(at, "topic", f"topic {name} is to be deleted", "it was marked for deletion", name)


def _marked(snapshot: ClusterSnapshot) -> list[str]:
    return [marked.topic for marked in snapshot.deletions]


def _partitions(before: ClusterSnapshot, after: ClusterSnapshot, only_isr: bool) -> Iterator[Entry]:
    gone = set(before.registered) - set(after.registered)
    for name, new in after.topics.items():
        old = before.topics.get(name)
        if old is None or old.partitions == new.partitions:
            continue
        known = {row.number: row for row in old.partitions}
        for row in new.partitions:
            former = known.get(row.number)
            if former is None or former == row or (only_isr and not _is_of_leader(former, row)):
                continue
            text, cause = _difference(former, row, gone)
            if text:
                brokers = tuple(sorted({former.leader, row.leader, *former.isr, *row.isr} - {-1}))
                yield Entry(
                    after.read_at_ms, "partition", f"{name}-{row.number}: {text}", cause, name, row.number, brokers
                )


def _is_of_leader(former: PartitionRow, row: PartitionRow) -> bool:
    """Whether the leader wrote this change. Each change of the controller has a new leader epoch."""
    if former.state is None or row.state is None:
        return False
    return former.state.leader_epoch == row.state.leader_epoch and former.isr != row.isr


def _difference(former: PartitionRow, row: PartitionRow, gone: set[int]) -> tuple[str, str]:
    isr = ",".join(map(str, row.isr))
    if former.leader != row.leader:
        leads = f"broker {row.leader} leads, in sync {isr}" if row.leader >= 0 else f"no leader, in sync {isr}"
        if former.leader in gone:
            return leads, f"broker {former.leader} is gone"
        if former.leader < 0:
            return leads, "it had no leader"
        preferred = row.assignment.replicas[:1] == (row.leader,)
        return leads, "the preferred leader took over" if preferred else f"broker {former.leader} gave up leadership"
    if former.assignment != row.assignment:
        to = ",".join(map(str, row.assignment.target_replicas))
        if row.assignment.is_being_reassigned:
            return f"moves to {to}", "a reassignment was started"
        return f"is on {to}", "a reassignment ended"
    lost, won = sorted(set(former.isr) - set(row.isr)), sorted(set(row.isr) - set(former.isr))
    if lost:
        why = "gone" if set(lost) <= gone else "behind, stopped or gone"
        return f"in sync {isr}", f"{_listed(lost)} {'is' if len(lost) == 1 else 'are'} {why}"
    if won:
        return f"in sync {isr}", f"{_listed(won)} caught up"
    return "", ""


def _listed(brokers: list[int]) -> str:
    return f"broker{'' if len(brokers) == 1 else 's'} {', '.join(map(str, brokers))}"
