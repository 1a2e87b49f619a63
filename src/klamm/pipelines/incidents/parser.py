"""The parser: one entry of a log in, one record or nothing out. Pure, so both engines and every test use the same.

An entry is a line with a time, and the lines after it without one: a stack trace or a dump of the configuration.

>>> entry = "[2026-01-31 23:59:59,123] INFO [Controller id=3] Ready to serve as the new controller with epoch 7 (k.C)"
>>> record = parse(entry)
>>> record.t, record.broker, record.kind, record.epoch
(1769903999123, 3, 'ctl.ready', 7)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any, Final, NamedTuple

from klamm.pipelines.incidents.record import Record
from klamm.pipelines.incidents.rules import (
    IGNORED_LOGGERS,
    IGNORED_STARTS,
    NUMBER,
    RULES,
    SETTINGS,
    Rule,
    starts_by_word,
)

UNKNOWN: Final = "unknown"
ENTRY_START: Final = "[20"
DELETED_LEADER: Final = -2
"""UpdateMetadata of a topic that is being deleted carries this leader with the old version. It is not a state."""

_HEADER: Final = re.compile(
    r"\[(\d{4}-\d\d-\d\d[ T]\d\d:\d\d):([0-6]\d)[,.](\d{3})\d*(Z|[+-]\d\d:?\d\d)?\] +[A-Z]{4,8} +"
    r"(?:\[([^\]]*)\]:? ?)?(\S*)"
)
"""As Kafka ships it, `[%d] %p %m (%c)`. A time in ISO form, with or without its zone, is understood too."""
_AFTER_THREAD: Final = re.compile(r"\[([^\]]*)\]:? ?(\S*)")
"""The prefix and first word of a message before which a layout writes the thread, `[%d] %p [%t] %m`."""
_PREFIX: Final = re.compile(
    r"(?:Controller id=|Broker id=|KafkaServer id=|ReplicaFetcher replicaId=|ReplicaManager broker=|"
    r"Topic Deletion Manager |RequestSendThread controllerId=|NodeToControllerChannelManager id=)(\d{1,18})"
    r"(?: epoch=(\d{1,18}))?"
)
_PARTITION_PREFIX: Final = re.compile(r"Partition (.+)-(\d{1,18}) broker=(\d{1,18})$")
_DIGITS: Final = re.compile(NUMBER)
_BROKER_STATE: Final = re.compile(rf"brokerId=({NUMBER})")
_FIELDS: Final = Record._fields
_IGNORED: Final = starts_by_word(IGNORED_STARTS)
_SHAPE_CHARACTERS: Final = 160
_STATES_WITH_DELETIONS: Final = frozenset({"um.sent", "um.cached"})


class _Origin(NamedTuple):
    """What the prefix of an entry says."""

    broker: int | None
    epoch: int | None = None
    topic: str | None = None
    partition: int | None = None


def parse(entry: str) -> Record | None:
    """What an entry says: None if it says nothing about the control plane, `unknown` if it is not understood."""
    header = _HEADER.match(entry)
    if header is None:
        return _not_understood(entry) if entry.startswith(ENTRY_START) else None
    minute, second, millisecond, zone, prefix, word = header.groups()
    minute_ms = _minute_ms(minute, zone)
    if minute_ms is None:
        return _not_understood(entry)
    t = minute_ms + int(second) * 1000 + int(millisecond)
    start = header.start(6)
    if word[:1] == "[" and (message := _AFTER_THREAD.match(entry, start)) is not None:
        prefix, word = message.groups()
        start = message.start(2)
    origin = _origin(prefix)
    for rule in _RULES.get(word) or _rules_for(word, prefix):
        match = rule.pattern.match(entry, start)
        if match is not None:
            return _record(t, origin, rule, match)
    if _is_ignored(word, entry, start):
        return None
    return Record(t, origin.broker, UNKNOWN, text=shape(entry[start:].partition("\n")[0]))


def _not_understood(entry: str) -> Record:
    return Record(0, None, UNKNOWN, text=shape(entry.partition("\n")[0]))


def _rules_for(word: str, prefix: str | None) -> tuple[_CompiledRule, ...]:
    """The rules for messages that begin with a value instead of a word."""
    if word.isdigit():
        return _RULES["<number>"]
    if prefix is not None and prefix.startswith("Partition "):
        return _RULES["<partition>"]
    return ()


def _record(t: int, origin: _Origin, rule: _CompiledRule, match: re.Match[str]) -> Record | None:
    kind = rule.kind
    broker, epoch, topic, partition = origin
    values: list[Any] = [t, broker, kind, epoch, topic, partition, None, None, None, None, None, None, None, None, 1]
    texts = match.groups()
    for group, slot, convert in rule.fields:
        text = texts[group]
        if text is not None:
            values[slot] = convert(text)
    if kind in _STATES_WITH_DELETIONS and values[_LEADER] == DELETED_LEADER:
        return None
    if kind == "brokers.changed":
        values[_BROKERS] += _brokers(match["bounced"])
    elif kind == "config":
        values[_TEXT] = _settings(match["settings"])
    return Record._make(values)


def _is_ignored(word: str, entry: str, start: int) -> bool:
    starts = _IGNORED.get(word)
    if starts is not None and entry.startswith(starts, start):
        return True
    end = entry.find("\n", start)
    logger = entry.rfind(" (", start, end if end >= 0 else len(entry))
    return logger >= 0 and entry.startswith(IGNORED_LOGGERS, logger + 2)


def shape(line: str) -> str:
    """A line without its numbers, so that lines which differ only in them are counted together."""
    return _DIGITS.sub("N", line[:_SHAPE_CHARACTERS])


def split(text: str) -> list[str]:
    """The entries of a text. What stands before the first time belongs to no entry."""
    pieces = ("\n" + text).split("\n" + ENTRY_START)
    return [ENTRY_START + piece for piece in pieces[1:]]


@lru_cache(maxsize=4096)
def _minute_ms(minute: str, zone: str | None) -> int | None:
    """None if there is no such minute."""
    try:
        moment = datetime.fromisoformat(minute + (zone or "Z"))
    except ValueError:
        return None
    return int(moment.timestamp()) * 1000


@lru_cache(maxsize=65_536)
def _origin(prefix: str | None) -> _Origin:
    if prefix is None:
        return _Origin(None)
    partition = _PARTITION_PREFIX.match(prefix)
    if partition is not None:
        return _Origin(int(partition[3]), None, partition[1], int(partition[2]))
    named = _PREFIX.match(prefix)
    if named is None:
        return _Origin(None)
    return _Origin(int(named[1]), None if named[2] is None else int(named[2]))


@lru_cache(maxsize=65_536)
def _brokers(text: str) -> tuple[int, ...]:
    """Ids in any of the forms `1,2`, `1, 2` and `BrokerState(brokerId=1, brokerEpoch=-1), ...`."""
    if "brokerId=" in text:
        return tuple(map(int, _BROKER_STATE.findall(text)))
    return tuple(map(int, _DIGITS.findall(text)))


@lru_cache(maxsize=65_536)
def _name(text: str) -> str:
    return text


def _settings(text: str) -> str:
    return ",".join(f"{key}={value}" for key, value in SETTINGS.findall(text))


_CONVERT: Final[Mapping[str, Callable[[str], Any]]] = {
    "epoch": int,
    "topic": _name,
    "partition": int,
    "leader": int,
    "leader_epoch": int,
    "version": int,
    "brokers": _brokers,
    "replicas": _brokers,
    "other": int,
    "number": int,
    "text": str,
}
_LEADER: Final = _FIELDS.index("leader")
_BROKERS: Final = _FIELDS.index("brokers")
_TEXT: Final = _FIELDS.index("text")


class _CompiledRule(NamedTuple):
    kind: str
    pattern: re.Pattern[str]
    fields: tuple[tuple[int, int, Callable[[str], Any]], ...]
    """Which group of the pattern goes into which field of the record, and how."""


def _by_word(rules: Iterable[Rule]) -> Mapping[str, tuple[_CompiledRule, ...]]:
    """The rules to try, in order, by the first word of the message."""
    found: dict[str, list[_CompiledRule]] = {}
    for rule in rules:
        pattern = re.compile(rule.pattern.replace(r"\d+", NUMBER))
        fields = tuple(
            (group - 1, _FIELDS.index(name), _CONVERT[name])
            for name, group in pattern.groupindex.items()
            if name in _CONVERT
        )
        found.setdefault(rule.word, []).append(_CompiledRule(rule.kind, pattern, fields))
    return {word: tuple(rules) for word, rules in found.items()}


_RULES: Final = _by_word(RULES)
