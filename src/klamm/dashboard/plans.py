"""Plans that visitors have made and not yet executed: what was shown is what is executed. Bounded."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from typing import Final, NamedTuple

from klamm.admin.balancing.load import BrokerLoad, Plan

PLANS_MAX: Final = 10


class KeptPlan(NamedTuple):
    name: str
    plan: Plan
    document: bytes
    """The plan as a file, with cluster, state and digest."""
    made_at_ms: int

    def per_broker(self) -> list[tuple[BrokerLoad, BrokerLoad, int]]:
        """Before, after, and the bytes that the broker must receive."""
        incoming = self.plan.incoming_bytes()
        pairs = zip(self.plan.before, self.plan.after, strict=True)
        return [(before, after, incoming.get(before.broker, 0)) for before, after in pairs]


class Plans:
    def __init__(self) -> None:
        self._plans: OrderedDict[str, KeptPlan] = OrderedDict()

    def keep(self, plan: Plan, document: bytes, made_at_ms: int) -> KeptPlan:
        kept = KeptPlan(secrets.token_urlsafe(9), plan, document, made_at_ms)
        self._plans[kept.name] = kept
        if len(self._plans) > PLANS_MAX:
            self._plans.popitem(last=False)
        return kept

    def get(self, name: str) -> KeptPlan | None:
        return self._plans.get(name)

    def forget(self, name: str) -> None:
        self._plans.pop(name, None)
