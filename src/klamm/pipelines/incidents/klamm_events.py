"""klamm's own events (`state-change.json`) as the same records that the entries of Kafka's logs give.

>>> line = (b'{"v":1,"kind":"decision","time_ms":1000,"broker":2,"role":"controller","controller_epoch":3,'
...         b'"event":"controller-elected","cause":"/controller was free"}')
>>> record = parse_event(line)
>>> record.t, record.broker, record.kind, record.epoch, record.text
(1000, 2, 'ctl.elected', 3, '/controller was free')
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import orjson

from klamm.pipelines.incidents.parser import UNKNOWN, shape
from klamm.pipelines.incidents.record import Record

_NUMBER_MAX: Final = 10**18
_TIME_MAX: Final = 253_402_300_800_000
"""The year 10000, which no calendar of Python knows."""
_PAUSE_MAX: Final = 10**9
_NUMBERS: Final = re.compile(r"\d{1,18}")
_CHANGES: Final = re.compile(r"(new|dead|bounced) \[([\d, ]*)\]")
_NAMES: Final = re.compile(r"'([^']*)'")


def parse_event(line: bytes) -> Record | None:
    """What an event says: None if it is not about the control plane, `unknown` if it is not understood."""
    try:
        event = orjson.loads(line)
        record = _state(event) if event["kind"] == "state-change" else _decision(event)
        return None if record is None else _checked(record)
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError, OverflowError):
        return Record(0, None, UNKNOWN, text=shape(line.decode(errors="replace"))) if line.strip() else None


def _checked(record: Record) -> Record:
    """JSON may hold anything: the analysis relies on the types of the fields."""
    t, broker, _, epoch, topic, partition, leader, leader_epoch, version, brokers, _, other, number, text, _ = record
    for n in (t, broker, epoch, partition, leader, leader_epoch, version, other, number, *(brokers or ())):
        if n is not None and (type(n) is not int or not -_NUMBER_MAX < n < _NUMBER_MAX):
            raise ValueError(f"{n!r} is not a number, or is too large")
    if broker is None or not 0 < t < _TIME_MAX:
        raise ValueError("there is no such broker or time")
    for words in (topic, text):
        if words is not None and type(words) is not str:
            raise TypeError("a text is not one")
    return record


def _state(event: Mapping[str, Any]) -> Record:
    if event["role"] == "controller":
        kind = "part.online"
    elif event["cause"].startswith("isr-"):
        kind = "isr.updated"
    else:
        kind = "lead.start" if event["to"] == "leader" else "follow.start"
    return Record(
        event["time_ms"],
        event["broker"],
        kind,
        epoch=event["controller_epoch"] if kind == "part.online" else None,
        topic=event["topic"],
        partition=event["partition"],
        leader=event["leader"],
        leader_epoch=event["leader_epoch"],
        version=event["zk_version"],
        brokers=tuple(event["isr"]) if kind != "follow.start" else None,
    )


def _decision(event: Mapping[str, Any]) -> Record | None:
    make = _DECISIONS.get(event["event"])
    return None if make is None else make(event)


def _plain(kind: str) -> Callable[[Mapping[str, Any]], Record]:
    def make(event: Mapping[str, Any]) -> Record:
        return Record(
            event["time_ms"],
            event["broker"],
            kind,
            epoch=event["controller_epoch"],
            text=event["cause"],
        )

    return make


def _about_broker(kind: str) -> Callable[[Mapping[str, Any]], Record]:
    def make(event: Mapping[str, Any]) -> Record:
        broker = _NUMBERS.search(event["cause"])
        other = None if broker is None else int(broker[0])
        return Record(event["time_ms"], event["broker"], kind, epoch=event["controller_epoch"], other=other)

    return make


def _suspicion_ended(event: Mapping[str, Any]) -> Record | None:
    """It answered again. If instead its registration ended, another event says so."""
    return _about_broker("suspicion.ended")(event) if "answers again" in event["detail"] else None


def _held(event: Mapping[str, Any]) -> Record:
    return Record(event["time_ms"], event["broker"], "held", number=min(_PAUSE_MAX, round(event["duration_ms"])))


def _brokers_changed(event: Mapping[str, Any]) -> Record:
    found = {word: tuple(map(int, _NUMBERS.findall(ids))) for word, ids in _CHANGES.findall(event["cause"])}
    return Record(
        event["time_ms"],
        event["broker"],
        "brokers.changed",
        epoch=event["controller_epoch"],
        brokers=(*found.get("dead", ()), *found.get("bounced", ())),
        text=",".join(map(str, found.get("new", ()))),
    )


def _topics_new(event: Mapping[str, Any]) -> Record:
    names = ", ".join(_NAMES.findall(event["cause"]))
    return Record(event["time_ms"], event["broker"], "topics.new", text=names)


def _topic_gone(event: Mapping[str, Any]) -> Record:
    return Record(event["time_ms"], event["broker"], "del.done", topic=event["detail"])


_DECISIONS: Final[Mapping[str, Callable[[Mapping[str, Any]], Record | None]]] = {
    "controller-elected": _plain("ctl.elected"),
    "controller-failover": _plain("ctl.ready"),
    "controller-resigned": _plain("ctl.resigned"),
    "controller-failed": _plain("ctl.error"),
    "broker-change": _brokers_changed,
    "broker-suspected": _about_broker("suspected"),
    "controller-suspected": _about_broker("suspected"),
    "loop-held": _held,
    "suspicion-ended": _suspicion_ended,
    "controlled-shutdown": _about_broker("cs.asked"),
    "topic-created": _topics_new,
    "topic-deleted": _topic_gone,
    "reassignment-started": _plain("reassign.begun"),
    "reassignment-completed": _plain("reassign.ended"),
}
