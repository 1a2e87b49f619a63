"""Describes and changes configurations for clients: topics, brokers, all brokers, and loggers (KIP-133, 226, 339, 412).

A change is validated as a whole before anything is written. The answer does not wait until the brokers have applied it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from functools import partial
from typing import NamedTuple

from klamm.broker import loggers
from klamm.broker.config_writer import ConfigWriter
from klamm.broker.dynamic_configs import DynamicConfigs
from klamm.broker.topic_configs import TopicConfigs, usable_overrides
from klamm.broker.topics import validate_name
from klamm.model.config import BrokerConfig, BrokerThrottles, TopicConfig, topic_config
from klamm.model.config_levels import ConfigEntry, check_broker_overrides
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ports import ZooKeeper
from klamm.model.settings import as_text, settings_of
from klamm.zookeeper.znodes import config, topic


class ResourceType(IntEnum):
    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8


class ConfigResource(NamedTuple):
    type: ResourceType
    name: str


class Op(IntEnum):
    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class KeyChange(NamedTuple):
    key: str
    op: Op
    value: str | None


_Overrides = Mapping[str, str]
_Changed = Callable[[dict[str, str]], _Overrides]


def _items(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


class ConfigAdmin:
    def __init__(self, zk: ZooKeeper, dynamic: DynamicConfigs, topics: TopicConfigs) -> None:
        self._writer = ConfigWriter(zk)
        self._dynamic = dynamic
        self._topics = topics

    # --- describe ---

    async def describe(self, resource: ConfigResource) -> list[ConfigEntry]:
        if resource.type is ResourceType.TOPIC:
            return self.describe_topic(await self._writer.read(self._entity(resource)))
        if resource.type is ResourceType.BROKER_LOGGER:
            self._check_is_me(resource.name)
            return loggers.entries()
        if not resource.name:
            return self._dynamic.levels.all_brokers_entries()
        self._check_is_me(resource.name)
        return self._dynamic.levels.entries()

    def describe_topic(self, overrides: Mapping[str, str]) -> list[ConfigEntry]:
        """Leaves out what cannot be used, for instance a key that a newer version of Kafka wrote."""
        usable, _ = usable_overrides(self._topics.defaults, overrides)
        return self._dynamic.levels.topic_entries(self._topics.defaults, usable)

    # --- change ---

    async def replace(self, resource: ConfigResource, wanted: Mapping[str, str | None], *, validate_only: bool) -> None:
        """AlterConfigs: keys that are not named return to their defaults."""
        if resource.type is ResourceType.BROKER_LOGGER:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "AlterConfigs does not support broker loggers.")
        values = {}
        for key, value in wanted.items():
            if value is None:
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"{key} has no value")
            values[key] = value
        await self._write(resource, lambda _: values, validate_only)

    async def change(self, resource: ConfigResource, changes: Sequence[KeyChange], *, validate_only: bool) -> None:
        """IncrementalAlterConfigs: only the named keys change."""
        twice = [key for key, count in Counter(change.key for change in changes).items() if count > 1]
        if twice:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"{', '.join(sorted(twice))} appears more than once")
        for change in changes:
            if change.value is None and change.op is not Op.DELETE:
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"{change.key} has no value")
        if resource.type is ResourceType.BROKER_LOGGER:
            self._check_is_me(resource.name)
            self._change_loggers(changes, validate_only)
        else:
            await self._write(resource, partial(self._changed, resource, changes), validate_only)

    async def _write(self, resource: ConfigResource, change: _Changed, validate_only: bool) -> None:
        entity = self._entity(resource)
        owner = topic.path(resource.name) if resource.type is ResourceType.TOPIC else None

        def validated(stored: dict[str, str]) -> Mapping[str, str]:
            wanted = change(stored)
            self._validate(resource, stored, wanted)
            return wanted

        await self._writer.change(entity, validated, owner=owner, validate_only=validate_only)

    def _validate(self, resource: ConfigResource, stored: Mapping[str, str], wanted: Mapping[str, str]) -> None:
        """What is stored already may stay, also a key of a newer version of Kafka."""
        new = {key: value for key, value in wanted.items() if stored.get(key) != value}
        if resource.type is ResourceType.TOPIC:
            known = {key: value for key, value in wanted.items() if key in new or key in settings_of(TopicConfig)}
            topic_config(self._topics.defaults, known)
        else:
            check_broker_overrides(self._dynamic.levels, wanted, for_one_broker=bool(resource.name))

    def _changed(self, resource: ConfigResource, changes: Sequence[KeyChange], stored: Mapping[str, str]) -> _Overrides:
        wanted = dict(stored)
        for key, op, value in changes:
            if op is Op.DELETE:
                wanted.pop(key, None)
            elif op is Op.SET:
                wanted[key] = str(value)
            else:
                wanted[key] = self._changed_list(resource, key, op, str(value), stored.get(key))
        return wanted

    def _changed_list(self, resource: ConfigResource, key: str, op: Op, value: str, stored: str | None) -> str:
        """Append or subtract. A key without an override starts from its default."""
        kinds = (TopicConfig,) if resource.type is ResourceType.TOPIC else (BrokerConfig, BrokerThrottles)
        found = next((settings_of(kind)[key] for kind in kinds if key in settings_of(kind)), None)
        if found is None or not found[1].is_list:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"{key} is not a list: nothing can be appended or subtracted")
        if stored is None:
            holder = self._topics.defaults if resource.type is ResourceType.TOPIC else self._dynamic.levels.config
            stored = as_text(getattr(holder, found[0])) or ""
        items, named = _items(stored), _items(value)
        if op is Op.APPEND:
            return ",".join(items + [item for item in named if item not in items])
        return ",".join(item for item in items if item not in named)

    def _change_loggers(self, changes: Sequence[KeyChange], validate_only: bool) -> None:
        for name, op, level in changes:
            if op in (Op.APPEND, Op.SUBTRACT):
                raise KafkaError(ErrorCode.INVALID_REQUEST, "A log level is not a list.")
            loggers.check(name, level if op is Op.SET else None)
        if not validate_only:
            for name, op, level in changes:
                loggers.change(name, level if op is Op.SET else None)

    # --- resources ---

    def _entity(self, resource: ConfigResource) -> str:
        if resource.type is ResourceType.TOPIC:
            validate_name(resource.name)
            return f"{config.TOPICS}/{resource.name}"
        if not resource.name:
            return f"{config.BROKERS}/{config.DEFAULT_ENTITY}"
        self._check_is_me(resource.name)
        return f"{config.BROKERS}/{resource.name}"

    def _check_is_me(self, name: str) -> None:
        """Clients send a request about one broker to that broker."""
        if name != str(self._dynamic.me):
            reason = f"Broker {name!r} is not this broker, {self._dynamic.me}: ask that broker."
            raise KafkaError(ErrorCode.INVALID_REQUEST, reason)
