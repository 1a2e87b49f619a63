"""Which broker should be controller next: what this broker does about it, and when. A pure rule (design D12).

Candidates are the brokers that the operator prefers. In this order:

1. A persistent /controller belongs to a KRaft migration: do nothing.
2. There is no controller: candidates stand at once, and so do all brokers if no candidate is alive. Otherwise the
   others wait, at most `patience_s`, since the cluster must not stay without a controller; without fallback they never
   stand. A candidate that is unfit waits twice as long, so that a broker that waits for it stands first.
3. Our own session owns /controller although we do not lead (a lost answer, edited data): stand, and so replace it.
4. An operator asks for this broker by name: take over at once.
5. The election is broken: /controller cannot be read, names a broker that is not registered or whose session does not
   own the node, or /controller_epoch is not an epoch. If the owner is klamm it heals this at once; any other broker
   takes over after the settle time, candidates first.
6. The controller is not a candidate and this broker is: take over after the settle time. Candidates do not replace each
   other.

A take-over names the czxid of the node that was judged: if two brokers try, the second finds another node and gives up.
"""

from __future__ import annotations

from collections.abc import Set
from enum import Enum
from typing import Final, NamedTuple

from klamm.controller.election.controller_election import NO_BROKER, PERSISTENT, Epoch, Holder
from klamm.model.ids import BrokerId

PATIENCE_MAX_S: Final = 5.0
"""The longest time for which a broker that is not a candidate waits for one that is alive."""


class Action(Enum):
    STAND = "stand"
    TAKE_OVER = "take over"


class SuccessionDecision(NamedTuple):
    action: Action
    after_s: float
    """Counted from the moment at which this decision was first made."""
    cause: str
    czxid: int = 0
    """The /controller node to replace."""
    healing: bool = False


class Policy(NamedTuple):
    settle_s: float
    patience_s: float
    fallback: bool
    heal: bool


class Situation(NamedTuple):
    """The election as seen by one broker that is not the controller."""

    me: BrokerId
    session_id: int
    holder: Holder | None
    epoch: Epoch | None
    candidates: Set[BrokerId]
    """Configured candidates, alive or not. Empty means no preference."""
    live: Set[BrokerId]
    holder_session_id: int | None = None
    """The session that registered the broker named by /controller; None if it is not registered."""
    unfit: bool = False
    """Our fail-over failed repeatedly, so we do not count as a candidate for a while."""
    asked_for: BrokerId = NO_BROKER

    @property
    def is_candidate(self) -> bool:
        return self.me in self.candidates and not self.unfit


def decide(now: Situation, policy: Policy) -> SuccessionDecision | None:
    holder = now.holder
    if holder is None:
        return _when_free(now, policy)
    if holder.owner == PERSISTENT:
        return None
    if holder.owner == now.session_id:
        edited = holder.broker != now.me
        if edited and not policy.heal:
            return None
        cause = "edited /controller healed" if edited else "our own session holds /controller"
        return SuccessionDecision(Action.STAND, 0.0, cause, holder.czxid, healing=edited)
    if now.asked_for == now.me:
        return SuccessionDecision(Action.TAKE_OVER, 0.0, "asked for by an operator", holder.czxid)
    broken = _what_is_broken(now, holder)
    if broken is not None and policy.heal:
        first = now.is_candidate or not now.candidates
        delay = policy.settle_s if first else 2 * policy.settle_s
        return SuccessionDecision(Action.TAKE_OVER, delay, broken, holder.czxid, healing=True)
    if now.is_candidate and holder.broker not in now.candidates:
        cause = f"a candidate replaces broker {holder.broker}, which is not one"
        return SuccessionDecision(Action.TAKE_OVER, policy.settle_s, cause, holder.czxid)
    return None


def _when_free(now: Situation, policy: Policy) -> SuccessionDecision | None:
    if not now.candidates or now.is_candidate:
        return SuccessionDecision(Action.STAND, 0.0, "/controller was free")
    if now.me in now.candidates:  # an unfit candidate
        others = now.live - {now.me} if policy.fallback else now.candidates & now.live - {now.me}
        delay = 2 * policy.patience_s if others else 0.0
        return SuccessionDecision(Action.STAND, delay, "/controller stayed free although this broker failed before")
    if not policy.fallback:
        return None
    preferred = sorted(now.candidates & now.live)
    if not preferred:
        return SuccessionDecision(Action.STAND, 0.0, "/controller was free and no candidate is alive")
    cause = f"/controller stayed free although candidates {preferred} are alive"
    return SuccessionDecision(Action.STAND, policy.patience_s, cause)


def _what_is_broken(now: Situation, holder: Holder) -> str | None:
    if holder.problem is not None:
        return f"/controller cannot be read: {holder.problem.reason}"
    if now.holder_session_id is None:
        return f"/controller names broker {holder.broker}, which is not registered"
    if now.holder_session_id != holder.owner:
        return f"/controller names broker {holder.broker}, but another session owns it"
    if now.epoch is None:
        return "/controller_epoch was deleted"
    if now.epoch.problem is not None:
        return f"/controller_epoch cannot be read: {now.epoch.problem.reason}"
    return None
