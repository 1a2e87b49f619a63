"""Records state changes and decisions with their cause (design D10).

Records are plain tuples for the sink, which formats them later. Refusals are also logged, a few by
name and all as a count: a line per partition would cost more than the election.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from klamm.controller.context.controller_context import ControllerContext, PartitionIndex
from klamm.controller.context.states import PartitionState, ReplicaState
from klamm.model.errors import ZNodeError, ZooKeeperError
from klamm.model.events import Decision, StateChanges
from klamm.model.ids import BrokerId, ControllerEpoch
from klamm.model.partition import LeaderAndIsr
from klamm.model.ports import Clock, EventSink

log = logging.getLogger(__name__)

NAMED_MAX: Final = 5


class Recorder:
    def __init__(self, sink: EventSink, clock: Clock, broker: BrokerId) -> None:
        self._sink = sink
        self._clock = clock
        self._broker = broker
        self._controller_epoch = ControllerEpoch(0)
        self._reported: set[tuple[str, str]] = set()

    def begin_term(self, controller_epoch: ControllerEpoch) -> None:
        """The epoch is 0 between terms. A new term reports bad znodes again."""
        self._controller_epoch = controller_epoch
        self._reported.clear()

    def decision(
        self,
        event: str,
        cause: str,
        *,
        started: float | None = None,
        counts: Mapping[str, int] | None = None,
        detail: str = "",
    ) -> None:
        duration_ms = 0.0 if started is None else (self._clock.monotonic() - started) * 1000
        log.info("%s: %s%s (%.1f ms)", event, cause, f", {detail}" if detail else "", duration_ms)
        record = Decision(
            self._clock.wall_ms(),
            self._broker,
            "controller",
            self._controller_epoch,
            event,
            cause,
            duration_ms,
            counts or {},
            detail,
        )
        self._sink.emit((record,))

    def state_changes(
        self,
        context: ControllerContext,
        partitions: Sequence[PartitionIndex],
        states: Sequence[LeaderAndIsr],
        zk_versions: Sequence[int],
        to: PartitionState | None,
        cause: str,
    ) -> None:
        """Call this before the context changes, since it still holds the former states."""
        if not partitions:
            return
        before, columns = context.partition_labels_of(partitions), context.columns
        changes = StateChanges(
            self._clock.wall_ms(),
            self._broker,
            "controller",
            self._controller_epoch,
            cause,
            topics=list(map(columns.topic.__getitem__, partitions)),
            partitions=list(map(columns.number.__getitem__, partitions)),
            from_states=before,
            to_states=before if to is None else [to.label] * len(partitions),
            states=states,
            zk_versions=zk_versions,
        )
        self._sink.emit(changes)

    def refused_partitions(
        self, context: ControllerContext, refused: Sequence[PartitionIndex], to: PartitionState
    ) -> None:
        if refused:
            names = [f"{context.name_of(i)} is {context.partition_state_of(i).name}" for i in refused[:NAMED_MAX]]
            log.error("%d partitions cannot become %s: %s", len(refused), to.name, ", ".join(names))

    def refused_replicas(
        self, context: ControllerContext, broker: BrokerId, refused: Sequence[PartitionIndex], to: ReplicaState
    ) -> None:
        if refused:
            names = [
                f"{context.name_of(i)} is {context.replicas.state_of(i, broker).name}" for i in refused[:NAMED_MAX]
            ]
            log.error("%d replicas on broker %d cannot become %s: %s", len(refused), broker, to.name, ", ".join(names))

    def not_elected(
        self, context: ControllerContext, refused: Sequence[tuple[PartitionIndex, str]], cause: str
    ) -> None:
        if refused:
            named = "; ".join(f"{context.name_of(i)}: {reason}" for i, reason in refused[:NAMED_MAX])
            self.decision("election-failed", cause, counts={"partitions": len(refused)}, detail=named)

    def znode_skipped(self, error: ZNodeError) -> None:
        """Reports once per path and reason, however often the bad znode is read."""
        if (error.path, error.reason) not in self._reported:
            self._reported.add((error.path, error.reason))
            self.decision("znode-skipped", error.path, detail=error.reason)

    def writes_refused(self, errors: Iterable[ZooKeeperError]) -> None:
        """ZooKeeper refuses to write these znodes. Reported once per path and reason in a term, however often it is
        tried again."""
        for error in errors:
            if (error.path, str(error)) not in self._reported:
                self._reported.add((error.path, str(error)))
                self.decision("write-refused", error.path, detail=str(error))

    def states_lost(self, context: ControllerContext, partitions: Sequence[PartitionIndex], cause: str) -> None:
        if partitions:
            named = ", ".join(str(context.name_of(i)) for i in partitions[:NAMED_MAX])
            self.decision("state-lost", cause, counts={"partitions": len(partitions)}, detail=named)

    def crashed(self, what: str, error: BaseException) -> None:
        """An exception that should not occur, in a part that goes on without the rest of the controller."""
        log.error("%s failed and is started again", what, exc_info=error)
        self.decision("part-failed", what, detail=f"{type(error).__name__}: {error}")

    def not_suspected(self, broker: BrokerId, objection: str) -> None:
        """To the log only: the question comes up every second as long as the broker refuses connections."""
        log.info("broker %d refuses connections but is not suspect: %s", broker, objection)

    def request_refused(self, request: str, broker: BrokerId, code: int) -> None:
        self.decision("request-refused", f"{request} to broker {broker}", detail=f"error code {code}")

    def answer_invalid(self, request: str, broker: BrokerId, reason: str) -> None:
        self.decision("answer-invalid", f"{request} to broker {broker}", detail=reason)

    def topic_deleted(self, topic: str, partitions: int, cause: str) -> None:
        self.decision("topic-deleted", cause, counts={"partitions": partitions}, detail=topic)

    def topic_gone(self, topic: str, partitions: int, cause: str) -> None:
        self.decision("topic-gone", cause, counts={"partitions": partitions}, detail=topic)
