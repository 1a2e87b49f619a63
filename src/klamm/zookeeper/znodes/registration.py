"""Registers a broker by one multi: create the ephemeral node with null data, set the document at version 0.

A client that lists /brokers/ids never sees the node without its document, and a registered node has data version 1, as
Kafka's nodes have. The czxid is the broker epoch. If the node exists already, its owner decides:

- This session: an earlier attempt succeeded and only its reply was lost. That node is the registration.
- The session of our previous registration: ZooKeeper is slow to end it (KAFKA-7165). Delete the node and try again.
- Another session: raise NodeExists with that session's id.
- No owner, because the node is gone by now: try again.
"""

from __future__ import annotations

from klamm.model.errors import BadVersion, NodeExists, NoNode, RuntimeInconsistency, ZooKeeperError
from klamm.model.ids import BrokerEpoch, BrokerId
from klamm.model.ports import OPEN_ACL, Acl, Create, CreateMode, Set, Stat, ZooKeeper
from klamm.zookeeper.retries import until_connected
from klamm.zookeeper.znodes import broker_id


async def register(
    zookeeper: ZooKeeper,
    broker: BrokerId,
    document: bytes,
    *,
    previous_session_id: int | None = None,
    acl: tuple[Acl, ...] = OPEN_ACL,
) -> BrokerEpoch:
    """`document` comes from `broker_id.encode`. Returns the broker epoch, or raises NodeExists or SessionExpired."""
    path = broker_id.path(broker)
    ops = (Create(path, None, CreateMode.EPHEMERAL, acl), Set(path, document, 0))

    async def attempt() -> BrokerEpoch:
        """May be repeated after a lost answer: the node's owner tells whether the write was applied."""
        while True:
            session_id = zookeeper.session_id
            created, written = await zookeeper.multi(ops)
            if isinstance(written, Stat):
                return BrokerEpoch(written.czxid)
            _raise_unless_node_exists(created, written)
            stat = await zookeeper.exists(path)
            if stat is None:
                continue
            if stat.ephemeral_owner == session_id:
                return BrokerEpoch(stat.czxid)
            if stat.ephemeral_owner != previous_session_id:
                raise NodeExists(path, f"registered by session 0x{stat.ephemeral_owner:x}")
            await _delete_if_present(zookeeper, path, stat.version)

    return await until_connected(attempt, pause_s=0)


async def _delete_if_present(zookeeper: ZooKeeper, path: str, version: int) -> None:
    try:
        await zookeeper.delete(path, version)
    except (NoNode, BadVersion):
        pass  # the node is gone or is a new one: the next attempt looks at it


def _raise_unless_node_exists(*results: object) -> None:
    for result in results:
        if isinstance(result, ZooKeeperError) and not isinstance(result, RuntimeInconsistency | NodeExists):
            raise result
