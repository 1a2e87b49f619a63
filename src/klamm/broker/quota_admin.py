"""Describes and changes client quotas for clients (KIP-546). The quotas of all brokers are in ZooKeeper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Final, NamedTuple

from klamm.broker.config_writer import ConfigWriter
from klamm.broker.quota_configs import path_of
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ports import ZooKeeper
from klamm.security.quotas import DEFAULT, KEYS, REQUEST_PERCENTAGE, ClientQuotas, Entity, Limits, Name

USER: Final = "user"
CLIENT: Final = "client-id"
WHOLE_NUMBER_ERROR: Final = 1e-6


class Match(IntEnum):
    EXACT = 0
    DEFAULT = 1
    ANY = 2


class Component(NamedTuple):
    """One part of a filter: which users, or which client ids."""

    kind: str
    match: Match
    name: str | None = None

    def accepts(self, name: Name) -> bool:
        if self.match is Match.ANY:
            return name is not None
        return name is DEFAULT if self.match is Match.DEFAULT else name == self.name


class QuotaChange(NamedTuple):
    key: str
    value: float | None
    """None removes it."""


class QuotaAdmin:
    def __init__(self, zk: ZooKeeper, quotas: ClientQuotas) -> None:
        self._writer = ConfigWriter(zk)
        self._quotas = quotas

    def describe(self, components: Sequence[Component], *, strict: bool) -> dict[Entity, Limits]:
        """The quotas that all components accept. With `strict`, an entity has no part that no component names."""
        by_kind = _by_kind(components)
        return {
            entity: limits
            for entity, limits in self._quotas.limits.items()
            if limits
            and _matches(entity.user, by_kind.get(USER), strict)
            and _matches(entity.client, by_kind.get(CLIENT), strict)
        }

    async def alter(self, entity: Entity, changes: Sequence[QuotaChange], *, validate_only: bool) -> None:
        values = {change.key: None if change.value is None else as_text(change.key, change.value) for change in changes}
        if len(values) < len(changes):
            raise KafkaError(ErrorCode.INVALID_REQUEST, "A quota is named more than once.")
        for key in values:
            if key not in KEYS:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST, f"Unknown quota {key!r}: it must be one of {', '.join(KEYS)}"
                )

        def changed(stored: dict[str, str]) -> Mapping[str, str]:
            kept = {key: value for key, value in stored.items() if key not in values}
            return kept | {key: value for key, value in values.items() if value is not None}

        await self._writer.change(path_of(entity), changed, validate_only=validate_only)


def entity_from(parts: Sequence[tuple[str, str | None]]) -> Entity:
    """From pairs of type and name; no name means the default."""
    names: dict[str, Name] = {}
    for kind, name in parts:
        _check_kind(kind)
        if kind in names:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"The entity has {kind} more than once.")
        if name == "":
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"The name of {kind} is empty.")
        names[kind] = DEFAULT if name is None else name
    if not names:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "The entity is empty.")
    return Entity(names.get(USER), names.get(CLIENT))


def parts_of(entity: Entity) -> list[tuple[str, str | None]]:
    named = ((USER, entity.user), (CLIENT, entity.client))
    return [(kind, name if isinstance(name, str) else None) for kind, name in named if name is not None]


def as_text(key: str, value: float) -> str:
    """As Kafka stores it: rates in bytes are whole numbers."""
    if not value > 0:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"{key}={value} is not valid: it must be a positive number")
    if key == REQUEST_PERCENTAGE:
        return str(value)
    if abs(round(value) - value) > WHOLE_NUMBER_ERROR:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"{key}={value} is not valid: it must be a whole number")
    return str(round(value))


def _by_kind(components: Sequence[Component]) -> dict[str, Component]:
    by_kind = {}
    for component in components:
        _check_kind(component.kind)
        if component.kind in by_kind:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"The filter has {component.kind} more than once.")
        by_kind[component.kind] = component
    return by_kind


def _check_kind(kind: str) -> None:
    if not kind:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "An entity type is empty.")
    if kind not in (USER, CLIENT):
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"Entity type {kind!r} has no quotas: use {USER} or {CLIENT}.")


def _matches(name: Name, component: Component | None, strict: bool) -> bool:
    if component is None:
        return name is None or not strict
    return component.accepts(name)
