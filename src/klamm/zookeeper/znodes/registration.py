"""A broker registers: one multi of [create ephemeral with null data, set the document at version 0].

Whoever lists /brokers/ids thus never sees half a document for longer than the transaction, and a registered node is at
data version 1, as Kafka's are. The czxid is the broker epoch. Where the node is there already (controller.md 1.5):

- its owner is our session: an earlier attempt had succeeded and only its reply was lost; that is our registration;
- its owner is the session with which we registered before: ZooKeeper is slow to end it (KAFKA-7165); delete, again;
- its owner is somebody else: NodeExists, which says who;
- it is gone by now: again.
"""

from __future__ import annotations

from klamm.model.errors import BadVersion, ConnectionLoss, NodeExists, NoNode, RuntimeInconsistency, ZooKeeperError
from klamm.model.ids import BrokerEpoch, BrokerId
from klamm.model.ports import OPEN_ACL, Acl, Create, CreateMode, Set, Stat, ZooKeeper
from klamm.zookeeper.znodes import broker_id


async def register(
    zookeeper: ZooKeeper,
    broker: BrokerId,
    document: bytes,
    *,
    previous_session_id: int | None = None,
    acl: tuple[Acl, ...] = OPEN_ACL,
) -> BrokerEpoch:
    """`document` by `broker_id.encode`. Ends with the epoch, NodeExists, or SessionExpired."""
    path = broker_id.path(broker)
    ops = (Create(path, None, CreateMode.EPHEMERAL, acl), Set(path, document, 0))
    while True:
        session_id = zookeeper.session_id
        try:
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
            await _delete_if_there(zookeeper, path, stat.version)
        except ConnectionLoss:
            continue  # the node's owner will tell what has happened


async def _delete_if_there(zookeeper: ZooKeeper, path: str, version: int) -> None:
    try:
        await zookeeper.delete(path, version)
    except (NoNode, BadVersion):
        pass  # it has gone by itself, or is another by now: the next look decides


def _raise_unless_node_exists(*results: object) -> None:
    for result in results:
        if isinstance(result, ZooKeeperError) and not isinstance(result, RuntimeInconsistency | NodeExists):
            raise result
