"""What this broker sees of the succession while it does not lead, and since when it sees it.

Reads are watched, so that each change is judged again: /config/extension/candidates, /brokers/ids and a request to move
the office, beside the office itself. A verdict that must wait (`succession`) is kept with the moment it was first
reached; as long as the same one is reached again its time runs on, and any other starts anew. Nobody sleeps on the
event queue: one timer puts an event on it.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Final

from klamm.controller.election.controller_election import NOBODY, Epoch, Holder
from klamm.controller.election.succession import PATIENCE_MAX_S, Policy, Situation, Verdict, decide
from klamm.controller.recorder import Recorder
from klamm.model.config import BrokerConfig, broker_id_of
from klamm.model.errors import NoNode, ZNodeError
from klamm.model.ids import BrokerId
from klamm.model.ports import Clock, Watcher, ZooKeeper
from klamm.zookeeper.znodes import broker_id, candidates, controller_move

UNFIT_AFTER: Final = 2
"""Fail-overs in a row that failed."""
UNFIT_S: Final = 60.0
"""Nobody else learns of it: others see a live candidate, stand back for their patience, and then lead until we are fit
again. A message of our failure would be one more thing that fails."""


class Candidacy:
    def __init__(self, config: BrokerConfig, clock: Clock, zk: ZooKeeper, recorder: Recorder, watch: Watcher) -> None:
        self._me = broker_id_of(config)
        self._config = config
        self._clock = clock
        self._zk = zk
        self._recorder = recorder
        self._watch = watch
        self._unfit_until = 0.0
        self._verdict: Verdict | None = None
        self._since = 0.0

    def failed(self, times: int) -> None:
        if times >= UNFIT_AFTER:
            self._unfit_until = self._clock.monotonic() + UNFIT_S
            self._recorder.decision(
                "controller-unfit", f"{times} fail-overs failed in a row", detail=f"{UNFIT_S:.0f} s"
            )

    async def judge(self, holder: Holder | None, epoch: Epoch | None) -> tuple[Verdict | None, float | None]:
        """What to do, and when to judge again if it is not due yet."""
        situation = await self._observe(holder, epoch)
        verdict = decide(situation, self._policy())
        now = self._clock.monotonic()
        if _key(verdict) != _key(self._verdict):
            self._verdict, self._since = verdict, now
        due = None if verdict is None else self._since + verdict.after_s
        if due is not None and due <= now:
            return verdict, None
        if situation.unfit and situation.me in situation.candidates:
            due = self._unfit_until if due is None else min(due, self._unfit_until)
        return None, due

    def forget(self) -> None:
        """Acted upon, or no longer ours to judge."""
        self._verdict = None

    async def may_lead(self) -> bool:
        """Of a broker that has a reason to: not if it is none of the candidates and fallback is forbidden."""
        if self._config.controller_fallback:
            return True
        preferred = await self.candidates()
        return not preferred or self._me in preferred

    async def candidates(self) -> frozenset[BrokerId]:
        names = await self._names(candidates.PARENT)
        for name in names:
            if not candidates.ids_of([name]):
                path = f"{candidates.PARENT}/{name}"
                self._recorder.znode_skipped(ZNodeError(path, "its name is no broker id"))
        return frozenset(candidates.ids_of(names))

    # --- inside ---

    def _policy(self) -> Policy:
        config = self._config
        patience = min(self._zk.session_timeout_ms / 1000, PATIENCE_MAX_S)
        return Policy(config.controller_settle_ms / 1000, patience, config.controller_fallback, config.controller_heal)

    async def _observe(self, holder: Holder | None, epoch: Epoch | None) -> Situation:
        preferred = await self.candidates()
        live = await self._live()
        (request,) = await self._zk.get_many_and_watch([controller_move.PATH], self._watch)
        asked_for, holder_session_id = NOBODY, None
        if request is not None:
            try:
                asked_for = controller_move.decode(controller_move.PATH, request.data)
            except ZNodeError as error:
                self._recorder.znode_skipped(error)
        if holder is not None and holder.broker != NOBODY:
            (registered,) = await self._zk.get_many([broker_id.path(holder.broker)])
            holder_session_id = registered.stat.ephemeral_owner if registered else None
        return Situation(
            self._me,
            self._zk.session_id,
            holder,
            epoch,
            preferred,
            live,
            holder_session_id,
            self._clock.monotonic() < self._unfit_until,
            asked_for,
        )

    async def _live(self) -> Set[BrokerId]:
        """By name alone: a registration that cannot be read is still a broker's."""
        return frozenset(candidates.ids_of(await self._names(broker_id.PARENT)))

    async def _names(self, parent: str) -> list[str]:
        """Children, watched; of a parent that does not exist its creation is, for it is the operator's to create."""
        while True:
            try:
                return sorted(await self._zk.children(parent, self._watch))
            except NoNode:
                if await self._zk.exists(parent, self._watch) is None:
                    return []


def _key(verdict: Verdict | None) -> object:
    """What makes two verdicts one: a candidate more or less in the cause does not start the waiting anew."""
    return None if verdict is None else (verdict.action, verdict.czxid, verdict.after_s)
