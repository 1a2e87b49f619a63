"""How a configuration key is declared and read: key, type, default, range and scope in one place.

A warning names each key without effect. An error names an invalid value, its key and what is allowed (design D8).
DescribeConfigs and docs/configuration.md show the same declarations.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from enum import Enum, IntEnum
from functools import cache
from typing import Any, TypeVar

from klamm.model.errors import ConfigError

Parse = Callable[[str], Any]

SHORT_MAX = 2**15 - 1
INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1
LONG_MIN = -(2**63)


class Scope(Enum):
    """Where a broker's key may be changed while brokers run (KIP-226)."""

    READ_ONLY = "read-only"
    PER_BROKER = "per-broker"
    CLUSTER_WIDE = "cluster-wide"
    """For all brokers, and for one broker, which then comes first."""


class ConfigType(IntEnum):
    """The types of DescribeConfigs version 3."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


@dataclasses.dataclass(frozen=True, slots=True)
class Setting:
    key: str
    type: ConfigType
    parse: Parse
    allowed: str
    """What is allowed, in words, for the error message."""
    scope: Scope = Scope.READ_ONLY
    aliases: tuple[tuple[str, int], ...] = ()
    """Keys in coarser units (`log.retention.hours`), with their factors, finest first: the first present wins."""
    no_effect: str = ""
    """Why the key is accepted but changes nothing; empty for a key that is honoured."""

    def read(self, raw: str) -> Any:
        try:
            return self.parse(raw.strip())
        except ValueError:
            raise ConfigError(f"{self.key}={raw.strip()!r} is not valid: {self.allowed}") from None

    @property
    def is_sensitive(self) -> bool:
        return self.type is ConfigType.PASSWORD

    @property
    def is_list(self) -> bool:
        return self.type is ConfigType.LIST

    def values_in(self, properties: Mapping[str, str]) -> list[Any]:
        """The value that `properties` give it, by its key or the finest of its aliases; empty if they give none."""
        if self.key in properties:
            return [self.read(properties[self.key])]
        for alias, factor in self.aliases:
            if alias in properties:
                coarse = Setting(alias, ConfigType.INT, int, "it must be an integer").read(properties[alias])
                return [coarse if coarse < 0 else coarse * factor]
        return []


def as_text(value: Any) -> str | None:
    """A value as Kafka writes it in a properties file; None for a value that is not set."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ",".join(value)
    return None if value is None else str(value)


_INTEGERS = {LONG_MAX: ConfigType.LONG, SHORT_MAX: ConfigType.SHORT}


def _field(setting: Setting, default: Any) -> Any:
    return dataclasses.field(default=default, metadata={"setting": setting})


def _plain(digits: str) -> str:
    """Python reads 1_000 as a number, Kafka does not."""
    if "_" in digits:
        raise ValueError
    return digits


def integer(
    key: str,
    default: int,
    *,
    least: int = 0,
    most: int = LONG_MAX,
    aliases: Sequence[tuple[str, int]] = (),
    scope: Scope = Scope.READ_ONLY,
    kind: ConfigType | None = None,
) -> Any:
    """`kind` is the type that Kafka declares, where the range does not tell it."""

    def parse(raw: str) -> int:
        value = int(_plain(raw))
        if not least <= value <= most:
            raise ValueError
        return value

    bounds = f"an integer of at least {least}" if most == LONG_MAX else f"an integer from {least} to {most}"
    declared = kind or _INTEGERS.get(most, ConfigType.INT)
    return _field(Setting(key, declared, parse, f"it must be {bounds}", scope, tuple(aliases)), default)


def number(key: str, default: float, *, least: float = 0.0, most: float = 1.0, scope: Scope = Scope.READ_ONLY) -> Any:
    def parse(raw: str) -> float:
        value = float(_plain(raw))
        if not least <= value <= most:
            raise ValueError
        return value

    return _field(Setting(key, ConfigType.DOUBLE, parse, f"it must be a number from {least} to {most}", scope), default)


def boolean(key: str, default: bool, *, scope: Scope = Scope.READ_ONLY) -> Any:
    words = {"true": True, "false": False}

    def parse(raw: str) -> bool:
        if raw.lower() not in words:
            raise ValueError
        return words[raw.lower()]

    return _field(Setting(key, ConfigType.BOOLEAN, parse, "it must be true or false", scope), default)


def text(key: str, default: str | None) -> Any:
    return _field(Setting(key, ConfigType.STRING, lambda raw: raw, "any text"), default)


def matching(key: str, default: str, pattern: str, what: str) -> Any:
    def parse(raw: str) -> str:
        if not re.fullmatch(pattern, raw):
            raise ValueError
        return raw

    return _field(Setting(key, ConfigType.STRING, parse, f"it must be {what}"), default)


def password(key: str, default: str) -> Any:
    """No answer and no log shows its value."""
    return _field(Setting(key, ConfigType.PASSWORD, lambda raw: raw, "any text"), default)


def choice(key: str, default: str, values: Sequence[str], *, scope: Scope = Scope.READ_ONLY) -> Any:
    def parse(raw: str) -> str:
        if raw not in values:
            raise ValueError
        return raw

    return _field(Setting(key, ConfigType.STRING, parse, f"it must be one of {', '.join(values)}", scope), default)


def words(
    key: str,
    default: tuple[str, ...],
    *,
    allowed: Sequence[str] = (),
    pattern: str = ".*",
    type: ConfigType = ConfigType.LIST,
    scope: Scope = Scope.READ_ONLY,
) -> Any:
    """Each word is one of `allowed`, if given, and has the `pattern`. `type` is STRING where Kafka declares a
    comma-separated text."""

    def parse(raw: str) -> tuple[str, ...]:
        values = tuple(part.strip() for part in raw.split(",") if part.strip())
        if any((allowed and value not in allowed) or not re.fullmatch(pattern, value) for value in values):
            raise ValueError
        return values

    what = f"a comma-separated list of {', '.join(allowed)}" if allowed else "a comma-separated list"
    return _field(Setting(key, type, parse, f"it must be {what}", scope), default)


def without_effect(field: Any, reason: str) -> Any:
    """Declares a key of Kafka that is accepted and changes nothing here; setting it causes a warning."""
    return _field(dataclasses.replace(field.metadata["setting"], no_effect=reason), field.default)


def settings_of(cls: type) -> Mapping[str, tuple[str, Setting]]:
    """key -> (field name, setting) of a dataclass declared with the functions above."""
    return _settings_of(cls)


@cache
def _settings_of(cls: Hashable) -> Mapping[str, tuple[str, Setting]]:
    assert isinstance(cls, type)
    return {
        field.metadata["setting"].key: (field.name, field.metadata["setting"])
        for field in dataclasses.fields(cls)
        if "setting" in field.metadata
    }


def keys_without_effect(cls: type, keys: Iterable[str]) -> dict[str, str]:
    """The keys among `keys` that `cls` accepts but that change nothing, with the reason."""
    settings = settings_of(cls)
    return {key: settings[key][1].no_effect for key in keys if key in settings and settings[key][1].no_effect}


C = TypeVar("C")


def read_settings(cls: type[C], properties: Mapping[str, str]) -> tuple[C, list[str]]:
    """Build `cls` from Kafka-style properties; returns it with the unknown keys, sorted."""
    values: dict[str, Any] = {}
    known: set[str] = set()
    for key, (name, setting) in settings_of(cls).items():
        known.update((key, *(alias for alias, _ in setting.aliases)))
        for value in setting.values_in(properties):
            values[name] = value
    return cls(**values), sorted(key for key in properties if key not in known)


def parse_properties(content: str) -> dict[str, str]:
    """The part of Java's properties format that server.properties files use.

    >>> parse_properties("# c\\na = 1\\nlist=x,\\\\\\n  y\\nb:2")
    {'a': '1', 'list': 'x,y', 'b': '2'}
    """
    properties: dict[str, str] = {}
    logical = ""
    for line in content.splitlines():
        stripped = line.strip()
        if not logical and (not stripped or stripped[0] in "#!"):
            continue
        if stripped.endswith("\\") and not stripped.endswith("\\\\"):
            logical += stripped[:-1]
            continue
        logical += stripped
        split_at = min((i for i in (logical.find("="), logical.find(":")) if i >= 0), default=-1)
        key, value = (logical, "") if split_at < 0 else (logical[:split_at], logical[split_at + 1 :])
        properties[key.strip()] = value.strip()
        logical = ""
    return properties
