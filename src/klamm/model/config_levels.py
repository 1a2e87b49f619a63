"""The levels of a broker's configuration and what is in effect (KIP-226).

A value of /config/brokers/<id> comes before one of /config/brokers/<default>, which comes before the properties file,
which comes before the built-in default. A key of a higher level also replaces its aliases of a lower one: a dynamic
log.retention.ms beats log.retention.hours of the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any, Final, NamedTuple

from klamm.model.config import TOPIC_DEFAULTS_FROM_BROKER, BrokerConfig, BrokerThrottles, TopicConfig, topic_config
from klamm.model.errors import ConfigError, ErrorCode, KafkaError
from klamm.model.setting_texts import SETTINGS
from klamm.model.settings import ConfigType, Scope, Setting, as_text, settings_of

Overrides = Mapping[str, str]

RESIZED_BY_TWO: Final = ("num.recovery.threads.per.data.dir", "num.replica.fetchers", "log.cleaner.threads")
"""One change may at most double or halve these: Kafka's rule for the number of threads."""


class Source(IntEnum):
    """Where a value comes from: the numbers of DescribeConfigs."""

    TOPIC = 1
    BROKER = 2
    ALL_BROKERS = 3
    FILE = 4
    BUILT_IN = 5
    LOGGER = 6


class Synonym(NamedTuple):
    key: str
    value: str | None
    source: Source


class ConfigEntry(NamedTuple):
    """One key as DescribeConfigs answers it."""

    key: str
    value: str | None
    source: Source
    read_only: bool = False
    sensitive: bool = False
    synonyms: tuple[Synonym, ...] = ()
    type: ConfigType = ConfigType.STRING
    documentation: str = ""


@dataclass(frozen=True, slots=True)
class ConfigLevels:
    file: BrokerConfig
    all_brokers: Overrides
    broker: Overrides
    config: BrokerConfig
    """What is in effect."""
    throttles: BrokerThrottles

    def entries(self) -> list[ConfigEntry]:
        """Every key of this broker, also the unknown ones of its file, whose values may be secrets."""
        found = [self._entry(setting, getattr(self.config, name)) for name, setting in _BROKER.values()]
        aliases = [(alias, setting) for _, setting in _BROKER.values() for alias, _ in setting.aliases]
        given = self.file.given
        found += [ConfigEntry(alias, given[alias], Source.FILE, True) for alias, _ in aliases if alias in given]
        throttles = [item for item in _THROTTLES.values() if item[1].key in self.broker]
        found += [self._entry(setting, getattr(self.throttles, name)) for name, setting in throttles]
        known = {entry.key for entry in found}
        found += [ConfigEntry(key, None, Source.FILE, True, True) for key in given if key not in known]
        return sorted(found)

    def all_brokers_entries(self) -> list[ConfigEntry]:
        return [
            ConfigEntry(key, value, Source.ALL_BROKERS, False, False, self.synonyms_of(key), *_about(key))
            for key, value in sorted(self.all_brokers.items())
        ]

    def topic_entries(self, defaults: TopicConfig, overrides: Overrides) -> list[ConfigEntry]:
        effective = topic_config(defaults, overrides)
        entries = []
        for key, (name, setting) in settings_of(TopicConfig).items():
            synonyms = self._broker_synonyms(name)
            if key in overrides:
                synonyms = (Synonym(key, overrides[key], Source.TOPIC), *synonyms)
            value = overrides.get(key, as_text(getattr(effective, name)))
            source = synonyms[0].source if synonyms else Source.BUILT_IN
            about = (setting.type, SETTINGS.get(key, ""))
            entries.append(ConfigEntry(key, value, source, False, False, synonyms, *about))
        return sorted(entries)

    def synonyms_of(self, key: str) -> tuple[Synonym, ...]:
        """The values of a broker's key and its aliases, in order of precedence, from the first that has the key's own
        name: Kafka leaves out those before it."""
        _, setting = _BROKER.get(key) or _THROTTLES.get(key) or (None, None)
        if setting is None:
            return ()
        names = (key, *(alias for alias, _ in setting.aliases))
        found: list[Synonym] = []
        for source, overrides in ((Source.BROKER, self.broker), (Source.ALL_BROKERS, self.all_brokers)):
            found += [Synonym(name, overrides[name], source) for name in names if name in overrides]
        found += [Synonym(name, self._given(name), Source.FILE) for name in names if self._is_given(name)]
        if key in _BROKER and not setting.aliases:  # with aliases the coarsest unit has the default
            found.append(Synonym(key, _default(key), Source.BUILT_IN))
        while found and found[0].key != key:
            del found[0]
        return tuple(hidden(synonym) if setting.is_sensitive else synonym for synonym in found)

    def _entry(self, setting: Setting, value: Any) -> ConfigEntry:
        synonyms = self.synonyms_of(setting.key)
        return ConfigEntry(
            setting.key,
            None if setting.is_sensitive else as_text(value),
            synonyms[0].source if synonyms else Source.BUILT_IN,
            setting.scope is Scope.READ_ONLY,
            setting.is_sensitive,
            synonyms,
            *_about(setting.key),
        )

    def _broker_synonyms(self, topic_field: str) -> tuple[Synonym, ...]:
        broker_field = TOPIC_DEFAULTS_FROM_BROKER.get(topic_field)
        return self.synonyms_of(_KEYS[broker_field]) if broker_field is not None else ()

    def _is_given(self, key: str) -> bool:
        """A configuration that was built in code has no file: what differs from the default counts as given."""
        return key in self.file.given or (not self.file.given and key in _BROKER and self._given(key) != _default(key))

    def _given(self, key: str) -> str | None:
        given = self.file.given.get(key)
        return given if given is not None else as_text(getattr(self.file, _BROKER[key][0]))


_BROKER: Final = settings_of(BrokerConfig)
_THROTTLES: Final = settings_of(BrokerThrottles)
_KEYS: Final = {name: key for key, (name, _) in _BROKER.items()}
_DEFAULTS: Final = BrokerConfig()


def _default(key: str) -> str | None:
    return as_text(getattr(_DEFAULTS, _BROKER[key][0]))


def _about(key: str) -> tuple[ConfigType, str]:
    _, setting = _BROKER.get(key) or _THROTTLES.get(key) or (None, None)
    return (setting.type if setting is not None else ConfigType.STRING), SETTINGS.get(key, "")


def hidden(synonym: Synonym) -> Synonym:
    return synonym._replace(value=None)


def levels_of(file: BrokerConfig, all_brokers: Overrides, broker: Overrides) -> ConfigLevels:
    """Raises ConfigError for a value or a combination that is not valid."""
    values: dict[str, Any] = {}
    for overrides in (all_brokers, broker):
        for name, setting in _BROKER.values():
            for value in setting.values_in(overrides):
                values[name] = value
    rates = {name: value for name, setting in _THROTTLES.values() for value in setting.values_in(broker)}
    config = replace(file, **values)
    if values:
        config.validate()
    return ConfigLevels(file, all_brokers, broker, config, BrokerThrottles(**rates))


def usable_overrides(found: Overrides, *, for_one_broker: bool) -> tuple[dict[str, str], dict[str, str]]:
    """What may be applied of overrides that another program wrote, and why each of the others may not."""
    usable, refused = {}, {}
    for key, raw in found.items():
        try:
            _check_changeable(key, for_one_broker=for_one_broker).read(raw)
        except KafkaError as error:
            refused[key] = str(error.message)
        except ConfigError as error:
            refused[key] = str(error)
        else:
            usable[key] = raw
    return usable, refused


def check_broker_overrides(current: ConfigLevels, overrides: Overrides, *, for_one_broker: bool) -> None:
    """Whether these may become the overrides of this broker, or of all brokers. Raises INVALID_REQUEST: in Kafka only
    topics and loggers have INVALID_CONFIG."""
    for key in overrides:
        _check_changeable(key, for_one_broker=for_one_broker)
    try:
        if for_one_broker:
            wanted = levels_of(current.file, current.all_brokers, overrides)
        else:
            wanted = levels_of(current.file, overrides, {})
    except ConfigError as error:
        raise KafkaError(ErrorCode.INVALID_REQUEST, str(error)) from None
    for key in RESIZED_BY_TWO:
        name, _ = _BROKER[key]
        before, after = getattr(current.config, name), getattr(wanted.config, name)
        if key in overrides and not before / 2 <= after <= before * 2:
            reason = f"{key}={after} is not valid: one change may at most double or halve the current {before}"
            raise KafkaError(ErrorCode.INVALID_REQUEST, reason)


def _check_changeable(key: str, *, for_one_broker: bool) -> Setting:
    _, setting = _BROKER.get(key) or _THROTTLES.get(key) or (None, None)
    if setting is None:
        reason = f"Unknown broker config name: {key}"
    elif setting.scope is Scope.READ_ONLY:
        reason = f"{key} cannot be changed while the broker runs: it is read from the properties file"
    elif setting.scope is Scope.PER_BROKER and not for_one_broker:
        reason = f"{key} can be set for one broker, not for all brokers"
    else:
        return setting
    raise KafkaError(ErrorCode.INVALID_REQUEST, reason)
