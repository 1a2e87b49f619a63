"""When brokers were lost: the true time of each fault, how it was noticed, and when the broker was back.

The last line of a killed broker says nothing, because an idle broker is silent. The time comes from the others: from
the last fetch that they answered (`lastCaughtUpTimeMs`, since 3.6), from the first connection that broke, or from the
ISRs that shrank, in this order of trust (`_fault`).
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from klamm.pipelines.incidents.analysis.settings import Settings
from klamm.pipelines.incidents.record import Record

STOPPED: Final = "stopped"
KILLED: Final = "killed"
PAUSED: Final = "paused"
SILENT: Final = "silent"
"""Paused or cut off for less than its session: no broker change, but it gave no answers."""

CUT_OFF: Final = "cut off"
"""Its session expired while it ran on: it lost touch with ZooKeeper, or woke up too late to save the session."""

_OUT_OF_SYNC: Final = re.compile(r"brokerId: (\d+), endOffset: -?\d+(?:, lastCaughtUpTimeMs: (-?\d+))?")
_WOKE_MS: Final = 5_000
"""A broker that complains about its session has just woken up: its view of the others is as old as its pause."""
_SAME_FAULT_MS: Final = 3_000
_PAUSE_MS: Final = 500
_LATE_MS: Final = 100
OWN_LOG: Final = "its own log"
ESTIMATED: Final = "an estimate: when it was noticed, the session timeout and its pings"
LEFT_ISRS: Final = "the first ISRs that it left, less the allowed lag"
LAST_WORD: Final = "an estimate: its last word from ZooKeeper, and half of the time to the next one"
_BOUNDS_MARGIN: Final = 1.5


class Loss(NamedTuple):
    broker: int
    how: str
    fault: int
    earliest: int
    """The fault was not before this, as far as the logs say."""
    noticed: int
    """When the controller, or the next one, learnt of it. For a silent broker: when it complained itself."""
    back: int | None
    evidence: str
    was_controller: bool


class _Notice(NamedTuple):
    """Somebody learnt that a broker was lost."""

    t: int
    was_controller: bool
    certain: bool = True
    """False: only inferred, because another broker is controller now."""
    at_once: bool = False
    """klamm suspects a broker as soon as its connection breaks; a session takes its timeout."""


class _Facts:
    """What the records say about one broker, in order of time."""

    def __init__(self, broker: int) -> None:
        self.broker = broker
        self.own: list[int] = []
        self.starts: list[int] = []
        self.started: list[int] = []
        """When a start was complete."""
        self.took_over: list[int] = []
        """When it ended the session that its former process had left behind."""
        self.asked: list[int] = []
        self.broken: list[int] = []
        self.waking: list[tuple[int, int, bool]] = []
        """When it complained about its session or its own pause, how long that was, and whether this is exact."""
        self.expelled: list[tuple[int, int | None, int]] = []
        """When a leader found it out of sync, the last time it was in sync if the leader says so, and the leader."""
        self.noticed: list[_Notice] = []
        self.expired: list[int] = []
        """When it found out that its session had expired."""
        self.answered: list[int] = []
        """When a suspected broker answered again."""


def out_of_sync(text: str) -> list[tuple[int, int | None]]:
    """The brokers that a leader drops from the ISR, and when each was last in sync.

    >>> out_of_sync("(brokerId: 2, endOffset: 404, lastCaughtUpTimeMs: 17), (brokerId: 3, endOffset: 9)")
    [(2, 17), (3, None)]
    """
    return [(int(broker), int(t) if t else None) for broker, t in _OUT_OF_SYNC.findall(text)]


def broker_losses(records: Sequence[Record], settings: Settings, end: int) -> list[Loss]:
    facts = _facts(records, settings)
    losses: list[Loss] = []
    for broker in sorted(facts):
        losses += _losses_of(facts[broker], facts, settings, end)
    return sorted(losses, key=lambda loss: (loss.fault, loss.broker))


def _facts(records: Sequence[Record], settings: Settings) -> dict[int, _Facts]:
    alone_ms = settings.session_timeout_ms * 2 // 3 + _LATE_MS if settings.session_is_known else 0
    facts: dict[int, _Facts] = {}

    def of(broker: int) -> _Facts:
        return facts.setdefault(broker, _Facts(broker))

    for record in records:
        if record.broker is not None:
            of(record.broker).own.append(record.t)
        match record.kind:
            case "srv.start" if record.broker is not None:
                of(record.broker).starts.append(record.t)
            case "srv.started" if record.broker is not None:
                of(record.broker).started.append(record.t)
            case "session.ended" if record.broker is not None:
                of(record.broker).took_over.append(record.t)
            case "srv.stop" | "cs.start" if record.broker is not None:
                of(record.broker).asked.append(record.t)
            case "cs.asked" if record.other is not None:
                of(record.other).asked.append(record.t)
            case "net.lost" if record.other is not None and record.other >= 0 and record.other != record.broker:
                of(record.other).broken.append(record.t)
            case "zk.timeout" if record.broker is not None and (record.number or 0) > alone_ms:
                # A client that runs complains after two thirds of its session: then ZooKeeper did not answer.
                of(record.broker).waking.append((record.t, record.number or 0, False))
            case "zk.expired" if record.broker is not None:
                of(record.broker).expired.append(record.t)
            case "held" if record.broker is not None and (record.number or 0) >= _PAUSE_MS:
                of(record.broker).waking.append((record.t, record.number or 0, True))
            case "isr.shrink" if record.broker is not None:
                for broker, t in out_of_sync(record.text or ""):
                    of(broker).expelled.append((record.t, t, record.broker))
            case "suspicion.ended" if record.other is not None:
                of(record.other).answered.append(record.t)
    for broker, notice in _noticed(records):
        of(broker).noticed.append(notice)
    return facts


def _noticed(records: Iterable[Record]) -> Iterable[tuple[int, _Notice]]:
    """Each broker that was lost. The loss of the controller is noticed by the next one."""
    live: set[int] = set()
    elected: dict[int, int] = {}
    resigned: set[int] = set()
    controller: int | None = None
    for record in records:
        match record.kind:
            case "ctl.elected" if record.broker is not None:
                elected[record.broker] = record.t
                before, controller = controller, record.broker
                if record.text is not None and before not in (None, controller) and before not in resigned:
                    # klamm does not list the live brokers when it is elected
                    yield before, _Notice(record.t, was_controller=True, certain=False)
                resigned.discard(controller)
            case "ctl.resigned" | "ctl.resigning" if record.broker is not None:
                resigned.add(record.broker)
            case "ctl.live" if record.broker is not None and record.brokers is not None:
                for broker in sorted(live - set(record.brokers)):
                    yield broker, _Notice(elected.get(record.broker, record.t), was_controller=True)
                live = set(record.brokers)
            case "brokers.changed":
                for broker in record.brokers or ():
                    yield broker, _Notice(record.t, was_controller=False)
                if record.replicas:
                    live = set(record.replicas)
            case "suspected" if record.other is not None:
                yield record.other, _Notice(record.t, record.other == controller, at_once=True)


def _losses_of(facts: _Facts, everyone: dict[int, _Facts], settings: Settings, end: int) -> list[Loss]:
    found: list[Loss] = []
    for notice in sorted(facts.noticed):
        if found and (found[-1].back is None or notice.t <= found[-1].back):
            continue  # the same fault, noticed again: by suspicion and by the session, or by the next controller
        if not notice.certain and _wrote_on(facts, notice.t):
            continue  # it gave the role away
        after = found[-1].back or 0 if found else 0
        loss = _judge(facts, notice, after, everyone, settings)
        if loss.fault < end:
            found.append(loss)
    for t, silence, exact in facts.waking:
        if any(loss.fault <= t and (loss.back is None or t - silence <= loss.back) for loss in found):
            continue  # the pause is part of that loss
        if t - silence < end:
            found.append(_silence(facts, t, silence, everyone, settings, exact=exact))
    return _merged(found)


def _wrote_on(facts: _Facts, t: int) -> bool:
    """The broker wrote something soon after, and did not have to start for it."""
    later = _next_after(facts.own, t)
    started = _next_after(facts.starts, t)
    return later is not None and later < t + _SAME_FAULT_MS and (started is None or later < started)


def _judge(facts: _Facts, notice: _Notice, after: int, everyone: dict[int, _Facts], settings: Settings) -> Loss:
    noticed = notice.t
    window = int(settings.session_timeout_ms * _BOUNDS_MARGIN) + _SAME_FAULT_MS
    restarted = _restarted_before(facts, noticed, after)
    if restarted is not None:
        noticed = restarted  # its next process told the others
    earliest = max(after, noticed - window, _last_before(facts.starts, noticed) or 0)
    back = restarted or _next_after(facts.starts, noticed)
    asked = [t for t in facts.asked if earliest <= t <= noticed]
    if asked:
        return Loss(facts.broker, STOPPED, asked[0], asked[0], noticed, back, OWN_LOG, notice.was_controller)
    woke = next(
        (w for w in facts.waking if restarted is None and noticed - _PAUSE_MS <= w[0] < (back or w[0] + 1)), None
    )
    answered = _next_after(facts.answered, noticed)
    how = KILLED
    if woke is not None:
        how, back = PAUSED, woke[0]
    elif answered is not None and (back is None or answered < back):
        how, back = SILENT, answered
    ran_on = None if woke is not None or restarted is not None else _found_expired(facts, noticed, back)
    if ran_on is not None and how == KILLED:
        return Loss(facts.broker, CUT_OFF, noticed, earliest, noticed, ran_on, OWN_LOG, notice.was_controller)
    if woke is not None and woke[2]:
        began = woke[0] - woke[1]
        return Loss(facts.broker, how, began, began, max(began, noticed), back, OWN_LOG, notice.was_controller)
    fault, evidence = _fault(facts, earliest, noticed, everyone, settings, lived_on=woke is not None)
    if evidence == ESTIMATED and woke is not None:
        heard = woke[0] - woke[1]
        fault, evidence = _after_the_last_ping(facts, heard, noticed, settings), LAST_WORD
        return Loss(facts.broker, how, fault, min(heard, fault), noticed, back, evidence, notice.was_controller)
    if notice.at_once and evidence == ESTIMATED:
        fault, evidence = noticed, "the suspicion of the controller"
    alive = _last_before(facts.own, fault) or earliest
    known = max(earliest, min(alive, fault))
    return Loss(facts.broker, how, fault, known, noticed, back, evidence, notice.was_controller)


def _found_expired(facts: _Facts, noticed: int, back: int | None) -> int | None:
    """When it found its session expired, if that was about the time when the controller did."""
    found = next((t for t in facts.expired if abs(t - noticed) <= _SAME_FAULT_MS), None)
    return None if found is None or (back is not None and back < found) else max(found, noticed)


def _fault(
    facts: _Facts, earliest: int, noticed: int, everyone: dict[int, _Facts], settings: Settings, *, lived_on: bool
) -> tuple[int, str]:
    """The time of an unplanned fault, and where it comes from."""
    expelled = [
        (t, last)
        for t, last, leader in facts.expelled
        if earliest <= t <= noticed + 2 * settings.replica_lag_ms and not _just_woke(everyone[leader], t)
    ]
    last_fetches = [last for _, last in expelled if last is not None and earliest <= last <= noticed]
    if last_fetches:
        return max(last_fetches), "the last fetch that its leaders answered"
    late = _late_since([t for t, _ in expelled], settings.replica_lag_ms, earliest, noticed)
    broken = [t for t in facts.broken if earliest <= t <= noticed]
    if lived_on and late is not None:
        return late, LEFT_ISRS
    alive = _last_before(facts.own, noticed) or earliest
    silent = [t for t in broken if t >= alive]
    if silent:
        return silent[0], "the first connection to it that broke"
    if late is not None:
        return late, LEFT_ISRS
    heard = max(earliest, noticed - settings.session_timeout_ms)
    return _after_the_last_ping(facts, heard, noticed, settings), ESTIMATED


def _late_since(expelled: Sequence[int], lag_ms: int, earliest: int, noticed: int) -> int | None:
    """When a follower that leaders dropped at these times had fallen silent.

    A leader looks every half of the allowed lag, so the follower was silent for the lag and up to a half of it more.
    Each leader looks at times of its own, so several narrow it down: the middle of what is left has the smallest error.
    """
    latest = min((t - lag_ms for t in expelled if earliest <= t - lag_ms <= noticed), default=None)
    if latest is None:
        return None
    first = max(low for t in expelled if (low := t - lag_ms - lag_ms // 2) <= latest)
    return max(earliest, (first + latest) // 2)


def _after_the_last_ping(facts: _Facts, heard: int, noticed: int, settings: Settings) -> int:
    """A client pings three times in a session timeout, so the fault was up to a third of it after the last ping: the
    middle has the smallest error. The broker lived at least until its last entry."""
    middle = heard + settings.session_timeout_ms // 6
    alive = _last_before(facts.own, min(noticed, heard + settings.session_timeout_ms // 3)) or heard
    return min(noticed, max(middle, alive))


def _restarted_before(facts: _Facts, noticed: int, after: int) -> int | None:
    """The start of its next process, if the loss was noticed only because of that: the start was not complete then,
    or it had just ended the session of the former process."""
    start = _last_before(facts.starts, noticed)
    if start is None or start <= after or _last_before(facts.own, start) is None:
        return None
    if any(start <= t <= noticed + _PAUSE_MS for t in facts.took_over):
        return start
    complete = _next_after(facts.started, start)
    return start if complete is None or complete > noticed else None


def _silence(
    facts: _Facts, t: int, silence: int, everyone: dict[int, _Facts], settings: Settings, *, exact: bool
) -> Loss:
    earliest = t - silence
    if exact:
        return Loss(facts.broker, SILENT, earliest, earliest, t, t, OWN_LOG, was_controller=False)
    fault, evidence = _fault(facts, earliest, t, everyone, settings, lived_on=True)
    if evidence == ESTIMATED:
        fault, evidence = _after_the_last_ping(facts, earliest, t, settings), LAST_WORD
    return Loss(facts.broker, SILENT, fault, earliest, t, t, evidence, was_controller=False)


def _just_woke(leader: _Facts, t: int) -> bool:
    return any(woke - _WOKE_MS / 5 <= t <= woke + _WOKE_MS for woke, _, _ in leader.waking)


def _merged(losses: Sequence[Loss]) -> list[Loss]:
    merged: list[Loss] = []
    for loss in sorted(losses):
        if merged and abs(loss.fault - merged[-1].fault) < _SAME_FAULT_MS:
            continue
        merged.append(loss)
    return merged


def _last_before(times: Sequence[int], t: int) -> int | None:
    position = bisect_left(times, t)
    return times[position - 1] if position else None


def _next_after(times: Sequence[int], t: int) -> int | None:
    position = bisect_right(times, t)
    return times[position] if position < len(times) else None
