"""Which brokers are suspect (design D11): probably dead although their ZooKeeper session is still alive. Pure rules.

Waiting for the session (6 to 18 s) is the largest part of an outage. A process that was killed gives itself away at
once: its kernel resets our connection and refuses the next one. Nothing less counts. Four guards must all hold:

1. Our established connection to the broker broke.
2. Two probes, 100 ms apart, were *refused* at the address registered under the same broker epoch. A timeout, an
   unreachable host or a reset during the handshake is not a refusal: it says something about the network.
3. Our ZooKeeper answered within the last second, so this process is not the one that is cut off.
4. Fewer than half of the brokers refuse or are suspect, this one included: a process that sees most brokers dead is
   more likely to be wrong itself.

A wrong suspicion costs availability, never a record acknowledged with acks=all: leaders come from the ISR only, the
suspect is fenced by the leader epoch, and what only the suspect holds stays with it until its session ends.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from klamm.model.ids import BrokerEpoch

PROBES: Final = 2
PROBE_PAUSE_S: Final = 0.1
FRESH_S: Final = 1.0
REMIND_EVERY: Final = 10
"""After this many refusals a broker that a guard protected is judged again: about once a second."""


class Evidence(NamedTuple):
    """What this process saw of a broker at one address, under one broker epoch."""

    broke: bool = False
    """An established connection broke, and no attempt has succeeded since."""
    refusals: int = 0
    """Probes refused in a row since then."""
    refused_at: float = 0.0

    def refused(self, now: float) -> Evidence:
        return Evidence(self.broke, self.refusals + 1, now)

    def unanswered(self) -> Evidence:
        """A silent host cancels earlier refusals: silence says nothing about the process."""
        return Evidence(self.broke)

    @property
    def is_complete(self) -> bool:
        return self.broke and self.refusals >= PROBES

    @property
    def is_news(self) -> bool:
        """It has just become complete, or it is time to judge again."""
        return self.is_complete and (self.refusals == PROBES or self.refusals % REMIND_EVERY == 0)


UNHARMED: Final = Evidence()
BROKEN: Final = Evidence(broke=True)
ALL_BUT_ONE: Final = Evidence(broke=True, refusals=PROBES - 1)
"""The watchdog of this process has seen complete evidence: one more refused probe confirms it."""


class Observation(NamedTuple):
    """Everything that the judgement depends on, at one moment."""

    evidence: Evidence
    now: float
    epoch: BrokerEpoch
    """The broker epoch that the evidence is about."""
    registered_epoch: BrokerEpoch | None
    """As ZooKeeper has it; None if the broker is not registered."""
    zookeeper_silence: float
    refusing: int
    """Brokers that refuse or are suspect, including this one."""
    brokers: int
    """Registered brokers."""

    def __str__(self) -> str:
        return (
            f"connection broke, {self.evidence.refusals} probes refused, registered with epoch {self.registered_epoch},"
            f" ZooKeeper answered {self.zookeeper_silence:.3f} s ago,"
            f" {self.refusing} of {self.brokers} brokers refuse or are suspect"
        )


def objection(seen: Observation) -> str:
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
        return f"it is registered with epoch {seen.registered_epoch}, but epoch {seen.epoch} refused"
    if seen.zookeeper_silence > FRESH_S:
        return f"ZooKeeper has been silent for {seen.zookeeper_silence:.1f} s: this broker may be cut off"
    if seen.refusing * 2 >= seen.brokers:
        return f"{seen.refusing} of {seen.brokers} brokers refuse: that many do not die at once"
    return ""
