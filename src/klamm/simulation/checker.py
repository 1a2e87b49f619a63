"""What must hold after every event of a simulation (reliability: S4-S7), checked on ZooKeeper's own writes and on what
brokers accept. A violation raises in the middle of the run, with the moment and the seed that lead back to it.

    one-controller    the writes of one controller epoch come from one session
    no-zombie         no write under a controller epoch takes effect once a later one was elected
    one-leader        one replica acts as leader per (partition, leader epoch)
    leader-in-isr     leader = -1, or a member of the ISR
    isr-in-ar         the ISR is not empty and within the assignment
    epochs-rise       controller epoch and leader epochs only grow
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

from klamm.model.errors import KlammError
from klamm.model.ids import NO_LEADER, BrokerId, ControllerEpoch, LeaderEpoch, TopicPartition
from klamm.model.partition import LeaderAndIsr
from klamm.model.ports import Clock
from klamm.zookeeper.znodes import partition_state
from klamm.zookeeper.znodes import topic as topic_znode

CONTROLLER_EPOCH = "/controller_epoch"


class Violation(KlammError):
    """An invariant is broken: a bug, by definition."""


class Checker:
    def __init__(self, clock: Clock, read: Callable[[str], bytes | None]) -> None:
        self._clock = clock
        self._read = read
        self._trace = hashlib.sha256()
        self.events = 0
        self.controller_epoch = ControllerEpoch(0)
        self._elected: dict[ControllerEpoch, int] = {}
        self._states: dict[TopicPartition, LeaderAndIsr] = {}
        self._leaders: dict[tuple[TopicPartition, LeaderEpoch], BrokerId] = {}
        self._lives: dict[str, int] = {}
        self.elections = 0
        self.refused_leaders = 0

    @property
    def trace_hash(self) -> str:
        return self._trace.hexdigest()

    def note(self, *words: Any) -> None:
        """One line of the trace: equal traces have equal hashes."""
        self.events += 1
        self._trace.update(f"{self._clock.monotonic():.6f} {' '.join(map(str, words))}\n".encode())

    def on_write(self, kind: str, path: str, session: int) -> None:
        data = self._read(path) if path else None
        self.note(kind, path, session, data)
        if path == CONTROLLER_EPOCH and kind in {"create", "set"}:
            self._on_controller_epoch(ControllerEpoch(int(data or b"0")), session)
        elif path.endswith("/state") and kind in {"create", "set"}:
            self._on_state(path, data, session)
        elif path.startswith(f"{topic_znode.PARENT}/") and path.count("/") == 3 and kind == "delete":
            self._forget(path.rpartition("/")[2])

    def on_leader(self, name: TopicPartition, epoch: LeaderEpoch, broker: BrokerId) -> None:
        self.note("leads", broker, name, epoch)
        life = self._lives.get(name.topic, 0)
        key = (TopicPartition(f"{name.topic}#{life}", name.partition), epoch)
        first = self._leaders.setdefault(key, broker)
        self._require(first == broker, "one-leader", f"{name} epoch {epoch}: brokers {first} and {broker} both lead")

    def on_request_accepted(self, broker: BrokerId, controller_epoch: ControllerEpoch) -> None:
        self.note("accepts", broker, controller_epoch)
        self._require(
            controller_epoch in self._elected, "one-controller", f"epoch {controller_epoch} was never elected"
        )

    def _on_controller_epoch(self, epoch: ControllerEpoch, session: int) -> None:
        if epoch == 0:
            return
        self._require(
            epoch == self.controller_epoch + 1,
            "epochs-rise",
            f"controller epoch went from {self.controller_epoch} to {epoch}",
        )
        self.controller_epoch = epoch
        self._elected[epoch] = session
        self.elections += 1

    def _on_state(self, path: str, data: bytes | None, session: int) -> None:
        state = partition_state.decode(path, data)
        _, _, _, topic, _, number, _ = path.split("/")
        name = TopicPartition(topic, int(number))
        before = self._states.get(name)
        self._states[name] = state
        self._require(state.leader == NO_LEADER or state.leader in state.isr, "leader-in-isr", f"{name}: {state}")
        assigned = topic_znode.decode(topic, self._read(topic_znode.path(topic))).partitions[name.partition].replicas
        self._require(
            bool(state.isr) and set(state.isr) <= set(assigned), "isr-in-ar", f"{name}: {state}, AR {assigned}"
        )
        if before is not None:
            self._require(
                state.leader_epoch >= before.leader_epoch and state.controller_epoch >= before.controller_epoch,
                "epochs-rise",
                f"{name}: from {before} to {state}",
            )
            if state.leader_epoch == before.leader_epoch:
                return  # the leader's own ISR write
        writer = self._elected.get(state.controller_epoch)
        self._require(
            writer == session,
            "one-controller",
            f"{name}: epoch {state.controller_epoch} is session {writer}'s, not {session}'s",
        )
        self._require(
            state.controller_epoch == self.controller_epoch,
            "no-zombie",
            f"{name}: written under epoch {state.controller_epoch}, {self.controller_epoch} is elected",
        )

    def _forget(self, topic: str) -> None:
        """A topic that is created again has a new life, with leader epochs from 0."""
        self._lives[topic] = self._lives.get(topic, 0) + 1
        for name in [name for name in self._states if name.topic == topic]:
            del self._states[name]

    def _require(self, holds: bool, invariant: str, about: str) -> None:
        if not holds:
            raise Violation(f"{invariant} at {self._clock.monotonic():.3f} s: {about}")
