"""The loggers of this process and their levels, which clients may change while it runs (KIP-412). Not persistent."""

from __future__ import annotations

import logging
from typing import Final

from klamm.model.config_levels import ConfigEntry, Source, Synonym
from klamm.model.errors import ErrorCode, KafkaError

ROOT: Final = "root"
LEVELS: Final = {
    "FATAL": logging.CRITICAL,
    "ERROR": logging.ERROR,
    "WARN": logging.WARNING,
    "INFO": logging.INFO,
    "DEBUG": logging.DEBUG,
    "TRACE": logging.DEBUG // 2,
}
"""Kafka's names, the highest level first."""


def entries() -> list[ConfigEntry]:
    names = sorted(name for name, found in logging.root.manager.loggerDict.items() if isinstance(found, logging.Logger))
    return [_entry(name) for name in (ROOT, *names)]


def _entry(name: str) -> ConfigEntry:
    level = level_of(name)
    return ConfigEntry(name, level, Source.LOGGER, synonyms=(Synonym(name, level, Source.LOGGER),))


def level_of(name: str) -> str:
    number = _logger(name).getEffectiveLevel()
    return next((level for level, least in LEVELS.items() if number >= least), "TRACE")


def check(name: str, level: str | None) -> None:
    """Whether this level may be set, or removed if it is None. Raises the error for the client."""
    if name != ROOT and name not in logging.root.manager.loggerDict:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"Logger {name} does not exist!")
    if level is None and name == ROOT:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "The level of the root logger can be changed, but not removed.")
    if level is not None and level not in LEVELS:
        allowed = ", ".join(LEVELS)
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"{name}={level!r} is not valid: it must be one of {allowed}")


def change(name: str, level: str | None) -> None:
    """Without a level the logger takes that of its parent."""
    _logger(name).setLevel(logging.NOTSET if level is None else LEVELS[level])


def _logger(name: str) -> logging.Logger:
    return logging.getLogger(None if name == ROOT else name)
