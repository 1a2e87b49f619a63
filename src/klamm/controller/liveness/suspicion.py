"""Who is suspect (design D11): a broker that is gone although its ZooKeeper session still lives. Pure rules.

Waiting for the session (6 to 18 s) is the largest part of an outage, and a process that was killed gives itself away at
once: its kernel resets our connection and refuses the next one. Nothing less counts. Four guards, all of them:

1. our established connection to it broke;
2. two probes, 100 ms apart, were *refused* at the address registered under the same broker epoch. A timeout, an
   unreachable host, a reset in the middle of the handshake are no refusal: they say something about the network;
3. our ZooKeeper answered within the last second, so that it is not we who are cut off;
4. fewer than half of the brokers refuse or are suspect, this one included: one who sees most of them dead is more
   likely wrong himself.

A wrong suspicion costs availability, never a record acknowledged with acks=all: leaders come from the ISR only, the
suspect is fenced by the leader epoch, and what it alone holds stays with it until its session ends.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from klamm.model.ids import BrokerEpoch

PROBES: Final = 2
PROBE_PAUSE_S: Final = 0.1
FRESH_S: Final = 1.0
REMIND_EVERY: Final = 10
"""Refusals after which one that no guard let pass is looked at again: about once a second."""


class Evidence(NamedTuple):
    """What we saw ourselves of one life of a broker at one address."""

    broke: bool = False
    """An established connection broke, and none has come about since."""
    refusals: int = 0
    """Probes refused in a row since then."""
    refused_at: float = 0.0

    def refused(self, now: float) -> Evidence:
        return Evidence(self.broke, self.refusals + 1, now)

    def unanswered(self) -> Evidence:
        """Silence after a refusal takes it back: whoever refused is not the one that is silent now."""
        return Evidence(self.broke)

    @property
    def is_complete(self) -> bool:
        return self.broke and self.refusals >= PROBES

    @property
    def is_news(self) -> bool:
        """Complete just now, or time to look again."""
        return self.is_complete and (self.refusals == PROBES or self.refusals % REMIND_EVERY == 0)


UNHARMED: Final = Evidence()
BROKEN: Final = Evidence(broke=True)
ALL_BUT_ONE: Final = Evidence(broke=True, refusals=PROBES - 1)
"""Somebody in this process saw it all before: our own probe confirms it."""


class Hearing(NamedTuple):
    """Everything that the verdict depends on, as it is at one moment."""

    evidence: Evidence
    now: float
    epoch: BrokerEpoch
    """Of the life that the evidence is about."""
    registered_epoch: BrokerEpoch | None
    """As ZooKeeper has it; None when it is not registered."""
    zookeeper_silence: float
    accused: int
    """Brokers that refuse or are suspect, this one included."""
    brokers: int
    """Registered ones."""

    def __str__(self) -> str:
        return (
            f"connection broke, {self.evidence.refusals} probes refused, registered with epoch {self.registered_epoch},"
            f" ZooKeeper answered {self.zookeeper_silence:.3f} s ago, {self.accused} of {self.brokers} brokers accused"
        )


def objection(seen: Hearing) -> str:
    """Why the broker is not suspect; empty when it is."""
    if not seen.evidence.broke:
        return "no established connection to it broke"
    if seen.evidence.refusals < PROBES:
        return f"{seen.evidence.refusals} of {PROBES} probes were refused"
    if seen.now - seen.evidence.refused_at > FRESH_S:
        return f"the last refusal was {seen.now - seen.evidence.refused_at:.1f} s ago"
    if seen.registered_epoch is None:
        return "its registration has ended"
    if seen.registered_epoch != seen.epoch:
        return f"it is registered with epoch {seen.registered_epoch}, what refused had {seen.epoch}"
    if seen.zookeeper_silence > FRESH_S:
        return f"ZooKeeper has been silent for {seen.zookeeper_silence:.1f} s: we may be the one who is cut off"
    if seen.accused * 2 >= seen.brokers:
        return f"{seen.accused} of {seen.brokers} brokers refuse: that many do not die at once"
    return ""
