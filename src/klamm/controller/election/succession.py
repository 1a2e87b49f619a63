"""Who shall hold the office next: the rule, pure. What this broker does about it, and when (design D12).

Candidates are the brokers that the operator prefers. In this order:

1. A persistent /controller belongs to a KRaft migration: hands off.
2. The office is free: candidates stand at once, and so does everybody where no candidate is alive. The others stand
   back while one is, for `patience_s` at most, since the office must not stay free; without fallback they never stand.
   A candidate that is unfit waits twice as long, so that whoever takes it for alive comes first.
3. Our own session holds the node although we do not lead (a lost answer, edited data): stand, and so replace it.
4. An operator asks us by name: take over at once.
5. The office is broken: data that cannot be read, that names a broker which is not registered or whose session is not
   the node's, or a /controller_epoch that is no epoch. Its owner, if it is klamm, heals it at once; whoever else sees
   it takes over after the settle time, candidates first.
6. The holder is no candidate and we are: take over after the settle time. Candidates leave each other alone.

A take-over names the czxid that was judged: if two want it, the second finds another node and leaves it.
"""

from __future__ import annotations

from collections.abc import Set
from enum import Enum
from typing import Final, NamedTuple

from klamm.controller.election.controller_election import NOBODY, PERSISTENT, Epoch, Holder
from klamm.model.ids import BrokerId

PATIENCE_MAX_S: Final = 5.0
"""How long a broker that is no candidate leaves the office free for one that is alive, at most."""


class Action(Enum):
    STAND = "stand"
    TAKE_OVER = "take over"


class Verdict(NamedTuple):
    action: Action
    after_s: float
    """Counted from the moment at which this verdict was first reached."""
    cause: str
    czxid: int = 0
    """Of the node to replace."""
    healing: bool = False


class Policy(NamedTuple):
    settle_s: float
    patience_s: float
    fallback: bool
    heal: bool


class Situation(NamedTuple):
    """As one broker that does not lead sees it."""

    me: BrokerId
    session_id: int
    holder: Holder | None
    epoch: Epoch | None
    candidates: Set[BrokerId]
    """Configured, alive or not. Empty: no preference."""
    live: Set[BrokerId]
    holder_session_id: int | None = None
    """Of the registration of the broker that /controller names; None: not registered."""
    unfit: bool = False
    """We failed our fail-over again and again, and count as dead for a while."""
    asked_for: BrokerId = NOBODY

    @property
    def is_candidate(self) -> bool:
        return self.me in self.candidates and not self.unfit


def decide(now: Situation, policy: Policy) -> Verdict | None:
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
        return Verdict(Action.STAND, 0.0, cause, holder.czxid, healing=edited)
    if now.asked_for == now.me:
        return Verdict(Action.TAKE_OVER, 0.0, "asked for by an operator", holder.czxid)
    broken = _what_is_broken(now, holder)
    if broken is not None and policy.heal:
        first = now.is_candidate or not now.candidates
        delay = policy.settle_s if first else 2 * policy.settle_s
        return Verdict(Action.TAKE_OVER, delay, broken, holder.czxid, healing=True)
    if now.is_candidate and holder.broker not in now.candidates:
        cause = f"candidate, and broker {holder.broker} is none"
        return Verdict(Action.TAKE_OVER, policy.settle_s, cause, holder.czxid)
    return None


def _when_free(now: Situation, policy: Policy) -> Verdict | None:
    if not now.candidates or now.is_candidate:
        return Verdict(Action.STAND, 0.0, "/controller was free")
    if now.me in now.candidates:  # but unfit
        others = now.live - {now.me} if policy.fallback else now.candidates & now.live - {now.me}
        delay = 2 * policy.patience_s if others else 0.0
        return Verdict(Action.STAND, delay, "/controller stayed free although we failed before")
    if not policy.fallback:
        return None
    preferred = sorted(now.candidates & now.live)
    if not preferred:
        return Verdict(Action.STAND, 0.0, "/controller was free and no candidate is alive")
    cause = f"/controller stayed free although candidates {preferred} are alive"
    return Verdict(Action.STAND, policy.patience_s, cause)


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
