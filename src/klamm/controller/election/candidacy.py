"""What this broker sees of the election while it is not the controller, and since when.

Every read sets a watch, so that each change leads to a new decision: /config/extension/candidates, /brokers/ids and a
request to move the controller, in addition to /controller. A decision that must wait (see `succession`) is kept with
the time at which it was first made. Making the same decision again does not restart its wait; any other decision does.
The event queue never waits: a timer puts an event on it.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Final

from klamm.controller.election.controller_election import NO_BROKER, Epoch, Holder
from klamm.controller.election.succession import PATIENCE_MAX_S, Policy, Situation, SuccessionDecision, decide
from klamm.controller.recorder import Recorder
from klamm.model.config import BrokerConfig, broker_id_of
from klamm.model.errors import ZNodeError
from klamm.model.ids import BrokerId
from klamm.model.ports import Clock, Watcher, ZooKeeper
from klamm.zookeeper.retries import children_or_none
from klamm.zookeeper.znodes import broker_id, candidates, controller_move

UNFIT_AFTER: Final = 2
"""A candidate is unfit after this many failed fail-overs in a row."""
UNFIT_S: Final = 60.0
"""Other brokers do not learn of it: they see a live candidate, wait for `patience_s`, and then lead until this one is
fit again. Telling them would be one more thing that can fail."""


class Candidacy:
    def __init__(self, config: BrokerConfig, clock: Clock, zk: ZooKeeper, recorder: Recorder, watch: Watcher) -> None:
        self._me = broker_id_of(config)
        self._config = config
        self._clock = clock
        self._zk = zk
        self._recorder = recorder
        self._watch = watch
        self._unfit_until = 0.0
        self._decision: SuccessionDecision | None = None
        self._since = 0.0

    def failed(self, times: int) -> None:
        if times >= UNFIT_AFTER:
            self._unfit_until = self._clock.monotonic() + UNFIT_S
            self._recorder.decision(
                "controller-unfit", f"{times} fail-overs failed in a row", detail=f"{UNFIT_S:.0f} s"
            )

    async def decide(
        self, holder: Holder | None, epoch: Epoch | None
    ) -> tuple[SuccessionDecision | None, float | None]:
        """What to do now, or when to decide again if it is not due yet."""
        situation = await self._observe(holder, epoch)
        decision = decide(situation, self._policy())
        now = self._clock.monotonic()
        if _key(decision) != _key(self._decision):
            self._decision, self._since = decision, now
        due = None if decision is None else self._since + decision.after_s
        if due is not None and due <= now:
            return decision, None
        if situation.unfit and situation.me in situation.candidates:
            due = self._unfit_until if due is None else min(due, self._unfit_until)
        return None, due

    def forget(self) -> None:
        """The decision was carried out."""
        self._decision = None

    async def may_lead(self) -> bool:
        """False if there are candidates, this broker is not one of them, and fallback is forbidden."""
        if self._config.controller_fallback:
            return True
        preferred = await self.candidates()
        return not preferred or self._me in preferred

    async def candidates(self) -> frozenset[BrokerId]:
        names = await self._names(candidates.PARENT)
        for name in names:
            if not candidates.ids_of([name]):
                path = f"{candidates.PARENT}/{name}"
                self._recorder.znode_skipped(ZNodeError(path, "its name is not a broker id"))
        return frozenset(candidates.ids_of(names))

    # --- internals ---

    def _policy(self) -> Policy:
        config = self._config
        patience = min(self._zk.session_timeout_ms / 1000, PATIENCE_MAX_S)
        return Policy(config.controller_settle_ms / 1000, patience, config.controller_fallback, config.controller_heal)

    async def _observe(self, holder: Holder | None, epoch: Epoch | None) -> Situation:
        preferred = await self.candidates()
        live = await self._live()
        (request,) = await self._zk.get_many_and_watch([controller_move.PATH], self._watch)
        asked_for, holder_session_id = NO_BROKER, None
        if request is not None:
            try:
                asked_for = controller_move.decode(controller_move.PATH, request.data)
            except ZNodeError as error:
                self._recorder.znode_skipped(error)
        if holder is not None and holder.broker != NO_BROKER:
            (registered,) = await self._zk.get_many([broker_id.path(holder.broker)])
            holder_session_id = registered.stat.ephemeral_owner if registered else None
        return Situation(
            me=self._me,
            session_id=self._zk.session_id,
            holder=holder,
            epoch=epoch,
            candidates=preferred,
            live=live,
            holder_session_id=holder_session_id,
            unfit=self._clock.monotonic() < self._unfit_until,
            asked_for=asked_for,
        )

    async def _live(self) -> Set[BrokerId]:
        """By name alone: a broker whose registration cannot be read is still alive."""
        return frozenset(candidates.ids_of(await self._names(broker_id.PARENT)))

    async def _names(self, parent: str) -> list[str]:
        """Children, watched. If the parent does not exist, its creation is watched; the operator creates it."""
        while True:
            names = await children_or_none(self._zk, parent, self._watch)
            if names is not None:
                return names
            if await self._zk.exists(parent, self._watch) is None:
                return []


def _key(decision: SuccessionDecision | None) -> object:
    """Equal for decisions that mean the same: another candidate in the cause does not restart the wait."""
    return None if decision is None else (decision.action, decision.czxid, decision.after_s)
