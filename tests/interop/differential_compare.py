"""Makes both sides comparable: their znodes, and what each broker was sent about each partition.

Everything must be equal except timestamps, session ids, ports and zxids. Control requests to a broker are split into
one stream per partition, in the order of arrival; how partitions are batched into requests does not matter. What one
side has and the other lacks is a `Difference`.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from klamm.model.brokers import Broker, Endpoint, SecurityProtocol
from klamm.model.ids import BrokerId
from klamm.model.partition import Assignment, LeaderAndIsr
from klamm.testing.recording import Received, RecordingBroker
from klamm.wire.apis import ApiKey
from klamm.wire.control import encoders
from klamm.wire.control.schema_requests import iter_partition_states, iter_stopped_replicas
from klamm.wire.messages import decode_request

from .differential_sides import Tree, document

SideName = Literal["klamm", "kafka"]
Stream = tuple[int, str]
"""Broker and partition. The partition is empty for an UpdateMetadata that has only live brokers."""


class Told(NamedTuple):
    """What one request says about one partition."""

    api: str
    content: tuple[tuple[str, Any], ...]

    def __str__(self) -> str:
        return f"{self.api} " + " ".join(f"{key} {_short(value)}" for key, value in self.content if value != ())

    def said(self, key: str) -> Any:
        return dict(self.content).get(key)

    def without(self, key: str) -> Told:
        return Told(self.api, tuple(entry for entry in self.content if entry[0] != key))


class Difference(NamedTuple):
    step: str
    where: str
    side: SideName
    """The side that has it."""
    what: Any
    """A `Told` for a request, else the content of a znode or an answer."""
    broker: int | None = None
    """The broker that received it."""
    before: tuple[Told, ...] = ()
    """Everything that the side had sent to this broker about this partition before."""
    after: tuple[Told, ...] = ()
    """What it sent in the same step afterwards."""
    other_side: tuple[Told, ...] = ()
    """What the other side sent in the same step."""

    def __str__(self) -> str:
        return f"[{self.step}] {self.where}: only {self.side}: {self.what}"


def _short(value: Any) -> str:
    return ",".join(_short(item) for item in value) if isinstance(value, tuple) else str(value)


# --- control requests


def taken_apart(received: Received, stub: RecordingBroker) -> list[tuple[str, Told]]:
    request = decode_request(received.api_key, received.version, received.body)
    common = (
        ("version", received.version),
        ("controller", (request.controller_id, request.controller_epoch)),
        ("life", stub.life(request.broker_epoch)),
    )
    if received.api_key is ApiKey.STOP_REPLICA:
        return [
            (f"{p.topic}-{p.partition}", Told("StopReplica", (*common, ("epoch", epoch), ("delete", delete))))
            for p, epoch, delete in iter_stopped_replicas(request)
        ]
    if received.api_key is ApiKey.LEADER_AND_ISR:
        leaders = {leader.broker_id for leader in request.live_leaders}
        return [
            (f"{topic}-{s.partition_index}", Told("LeaderAndIsr", (*common, *_state(s), *_moving(s, leaders))))
            for topic, s in iter_partition_states(request)
        ]
    live = ("live", tuple(sorted(f"{b.id}{len(b.endpoints) * '+'}" for b in request.live_brokers)))
    entries = [
        (f"{t}-{s.partition_index}", (*common, *_state(s), ("offline", tuple(s.offline_replicas)), live))
        for t, s in iter_partition_states(request)
    ]
    return [(p, Told("UpdateMetadata", content)) for p, content in entries or [("", (*common, live))]]


def _state(state: Any) -> tuple[tuple[str, Any], ...]:
    return (
        ("leader", state.leader),
        ("epoch", state.leader_epoch),
        ("isr", tuple(state.isr)),
        ("zk", state.zk_version),
        ("by", state.controller_epoch),
        ("replicas", tuple(state.replicas)),
    )


def _moving(state: Any, leaders: set[int]) -> tuple[tuple[str, Any], ...]:
    return (
        ("adding", tuple(state.adding_replicas)),
        ("removing", tuple(state.removing_replicas)),
        ("new", state.is_new),
        ("leader's address", state.leader in leaders),
    )


class Streams:
    """The requests of one side from the start, with a mark where the current step starts."""

    def __init__(self) -> None:
        self.told: dict[Stream, list[Told]] = {}
        self._marks: dict[Stream, int] = {}
        self._taken: dict[int, int] = {}

    def mark(self) -> None:
        self._marks = {stream: len(told) for stream, told in self.told.items()}

    def take(self, stubs: Mapping[int, RecordingBroker]) -> None:
        """The requests that the stubs received since the last call."""
        for number, stub in stubs.items():
            fresh = stub.requests[self._taken.get(number, 0) :]
            self._taken[number] = len(stub.requests)
            for partition, told in [entry for request in fresh for entry in taken_apart(request, stub)]:
                self.told.setdefault((number, partition), []).append(told)

    def fresh(self, stream: Stream) -> list[Told]:
        return self.told.get(stream, [])[self._marks.get(stream, 0) :]

    def before(self, stream: Stream, number: int) -> tuple[Told, ...]:
        """Everything before the `number`th fresh request."""
        return tuple(self.told.get(stream, [])[: self._marks.get(stream, 0) + number])

    def count(self) -> int:
        return sum(len(self.fresh(stream)) for stream in self.told)


def unlike(step: str, klamm: Streams, kafka: Streams) -> list[Difference]:
    """Align both sides of each stream, and yield what is left over on either side."""
    found: list[Difference] = []
    for stream in sorted(klamm.told.keys() | kafka.told.keys()):
        ours, theirs = klamm.fresh(stream), kafka.fresh(stream)
        for kind, a1, a2, b1, b2 in difflib.SequenceMatcher(None, ours, theirs, autojunk=False).get_opcodes():
            if kind != "equal":
                found += [_difference(step, "klamm", klamm, kafka, stream, n) for n in range(a1, a2)]
                found += [_difference(step, "kafka", kafka, klamm, stream, n) for n in range(b1, b2)]
    return found


def _difference(
    step: str, side: SideName, streams: Streams, others: Streams, stream: Stream, number: int
) -> Difference:
    broker, partition = stream
    fresh = streams.fresh(stream)
    return Difference(
        step,
        f"broker {broker}, {partition or 'live brokers'}",
        side,
        fresh[number],
        broker,
        before=streams.before(stream, number),
        after=tuple(fresh[number + 1 :]),
        other_side=tuple(others.fresh(stream)),
    )


# --- bytes


def packed_again(received: Received) -> bytes:
    """The bytes that klamm's encoders produce for the content that was received."""
    request = decode_request(received.api_key, received.version, received.body)
    sender = (BrokerId(request.controller_id), request.controller_epoch, request.broker_epoch)
    if received.api_key is ApiKey.LEADER_AND_ISR:
        leaders = [encoders.LiveLeader(b.broker_id, b.host_name, b.port) for b in request.live_leaders]
        return encoders.leader_and_isr_body(received.version, *sender, _entries(received, request), leaders)
    if received.api_key is ApiKey.UPDATE_METADATA:
        brokers = [Broker(b.id, tuple(map(_endpoint, b.endpoints)), b.rack) for b in request.live_brokers]
        return encoders.update_metadata_body(received.version, *sender, _entries(received, request), brokers)
    topics = [
        (t.name.encode(), [encoders.StoppedPartition(n, -1, request.delete_partitions) for n in t.partition_indexes])
        for t in request.topics
    ]
    return encoders.stop_replica_body(received.version, *sender, topics)


def _entries(received: Received, request: Any) -> list[encoders.TopicEntries]:
    return [
        (t.topic_name.encode(), len(t.partition_states), b"".join(_entry(received, s) for s in t.partition_states))
        for t in request.topic_states
    ]


def _entry(received: Received, state: Any) -> bytes:
    leading = LeaderAndIsr(state.leader, state.leader_epoch, tuple(state.isr), state.controller_epoch)
    index = encoders.pack_index(state.partition_index)
    if received.api_key is ApiKey.UPDATE_METADATA:
        return index + encoders.update_metadata_suffix(
            received.version, leading, state.zk_version, state.replicas, state.offline_replicas
        )
    assignment = Assignment(tuple(state.replicas), tuple(state.adding_replicas), tuple(state.removing_replicas))
    return index + encoders.leader_and_isr_suffix(received.version, leading, state.zk_version, assignment, state.is_new)


def _endpoint(endpoint: Any) -> Endpoint:
    return Endpoint(endpoint.listener, endpoint.host, endpoint.port, SecurityProtocol(endpoint.security_protocol))


# --- znodes


def comparable(tree: Tree) -> dict[str, Any]:
    """Content, whether it is ephemeral, and the data version where it is sent or fences. The version of a document's
    format is a separate entry: the content must be equal whatever the format."""
    found: dict[str, Any] = {}
    for path, node in tree.items():
        data = document(node)
        if isinstance(data, dict):
            forms = {key: data.pop(key) for key in ("version", "kraftControllerEpoch", "klamm") if key in data}
            found[f"{path}, form"] = forms
            data |= dict.fromkeys(data.keys() & _FREE.get(path.rpartition("/")[0] or path, set()))
            if "endpoints" in data:
                data["endpoints"] = sorted(endpoint.partition(":")[0] for endpoint in data["endpoints"])
        versioned = path.endswith("/state") or path == "/controller_epoch"
        found[path] = data, bool(node.stat.ephemeral_owner), node.stat.version if versioned else None
    return found


_FREE = {"/brokers/ids": {"timestamp", "port"}, "/controller": {"timestamp"}, "/cluster": {"id"}}
"""Fields that may differ, in one znode or in all children of one."""


def unlike_znodes(step: str, klamm: Mapping[str, Any], kafka: Mapping[str, Any]) -> list[Difference]:
    found = []
    for path in sorted(klamm.keys() | kafka.keys()):
        if klamm.get(path) != kafka.get(path):
            found.append(Difference(step, path, "klamm", klamm.get(path, "absent")))
            found.append(Difference(step, path, "kafka", kafka.get(path, "absent")))
    return found
