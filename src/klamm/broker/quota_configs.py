"""Client quotas in ZooKeeper: /config/users/<u>, /config/users/<u>/clients/<c> and /config/clients/<c> (KIP-55).

Names are percent-encoded in paths. `<default>` stands for all users or clients. A value that is not a positive number
is reported and left out.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from klamm.model.config import BrokerConfig
from klamm.model.errors import ZNodeError
from klamm.model.ports import ZooKeeper
from klamm.model.settings import LONG_MAX
from klamm.security.quotas import DEFAULT, FETCH_RATE, KEYS, PRODUCE_RATE, ClientQuotas, Entity, Name
from klamm.zookeeper.znodes import config

log = logging.getLogger(__name__)


def entity_of(path: str) -> Entity | None:
    """From a path below /config: `users/alice`, `users/alice/clients/app`, `clients/<default>`."""
    match path.split("/"):
        case [config.CLIENTS, client]:
            return Entity(None, _name(client))
        case [config.USERS, user]:
            return Entity(_name(user), None)
        case [config.USERS, user, config.CLIENTS, client]:
            return Entity(_name(user), _name(client))
    return None


def path_of(entity: Entity) -> str:
    """The path below /config."""
    client = None if entity.client is None else f"{config.CLIENTS}/{_part(entity.client)}"
    if entity.user is None:
        assert client is not None, "a quota belongs to a user, a client or both"
        return client
    user = f"{config.USERS}/{_part(entity.user)}"
    return user if client is None else f"{user}/{client}"


def _name(part: str) -> Name:
    return DEFAULT if part == config.DEFAULT_ENTITY else config.unsanitised(part)


def _part(name: Name) -> str:
    return config.sanitised(name) if isinstance(name, str) else config.DEFAULT_ENTITY


class QuotaConfigs:
    def __init__(self, zk: ZooKeeper, quotas: ClientQuotas, defaults: BrokerConfig) -> None:
        """quota.producer.default and quota.consumer.default limit each client id without any other quota."""
        self._zk = zk
        self._quotas = quotas
        rates = {PRODUCE_RATE: defaults.quota_producer_default, FETCH_RATE: defaults.quota_consumer_default}
        self._defaults = {key: float(rate) for key, rate in rates.items() if rate != LONG_MAX}

    async def load(self) -> None:
        """Read every quota."""
        users, clients = await self._zk.children_many(
            [config.type_path(kind) for kind in (config.USERS, config.CLIENTS)]
        )
        paths = [f"{config.CLIENTS}/{client}" for client in clients or ()]
        users_paths = [f"{config.USERS}/{user}" for user in users or ()]
        below = await self._zk.children_many([f"{config.PARENT}/{path}/{config.CLIENTS}" for path in users_paths])
        for path, names in zip(users_paths, below, strict=True):
            paths += [path, *(f"{path}/{config.CLIENTS}/{name}" for name in names or ())]
        nodes = await self._zk.get_many([f"{config.PARENT}/{path}" for path in paths])
        found = {Entity(None, DEFAULT): self._defaults}
        for path, node in zip(paths, nodes, strict=True):
            entity = entity_of(path)
            if entity is not None:
                found[entity] = self._limits(entity, path, node.data if node is not None else None)
        self._quotas.replace_limits(found)

    async def apply(self, path: str) -> None:
        """The entity at this path below /config changed."""
        entity = entity_of(path)
        if entity is None:
            return
        (node,) = await self._zk.get_many([f"{config.PARENT}/{path}"])
        self._quotas.set_limits(entity, self._limits(entity, path, node.data if node is not None else None))

    def _limits(self, entity: Entity, path: str, data: bytes | None) -> dict[str, float]:
        base = dict(self._defaults) if entity == Entity(None, DEFAULT) else {}
        try:
            return base | usable_limits(path, config.decode(f"{config.PARENT}/{path}", data))
        except ZNodeError as error:
            log.error("ignoring a quota: %s", error)
            return base


def usable_limits(path: str, overrides: Mapping[str, str]) -> dict[str, float]:
    limits = {}
    for key in KEYS:
        if key in overrides:
            try:
                limits[key] = float(overrides[key])
            except ValueError:
                limits[key] = 0.0
            if not limits[key] > 0:
                log.warning("%s: %s=%s has no effect: it must be a positive number", path, key, overrides[key])
                del limits[key]
    return limits
