"""/brokers/topics/<topic>/partitions/<partition>/state: leader, leader epoch and ISR, version 1 as Kafka 2.5 writes it.

A large cluster has a hundred thousand of these with a few hundred different contents, so both directions use a cache:
decoding by the raw bytes, encoding by the state (design D13). Neither cache key includes the znode's version.
`leader_recovery_state`, which 3.2 and later may add, is ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final

from klamm.model.errors import ZNodeError
from klamm.model.ids import BrokerId, ControllerEpoch, LeaderEpoch, TopicPartition
from klamm.model.partition import LeaderAndIsr
from klamm.model.ports import NO_NODE_VERSION, Contents
from klamm.zookeeper.znodes import document, topic

CACHE_ENTRIES: Final = 65_536


def partitions_path(topic_name: str) -> str:
    return f"{topic.path(topic_name)}/partitions"


def partition_path(partition: TopicPartition) -> str:
    return f"{topic.PARENT}/{partition.topic}/partitions/{partition.partition}"


def path(partition: TopicPartition) -> str:
    return f"{topic.PARENT}/{partition.topic}/partitions/{partition.partition}/state"


def paths(topics: Iterable[str], partitions: Iterable[int]) -> list[str]:
    """The paths of many states, from columns."""
    parent = topic.PARENT
    return [f"{parent}/{name}/partitions/{n}/state" for name, n in zip(topics, partitions, strict=True)]


@lru_cache(maxsize=CACHE_ENTRIES)
def encode(state: LeaderAndIsr) -> bytes:
    return b'{"controller_epoch":%d,"leader":%d,"version":1,"leader_epoch":%d,"isr":[%s]}' % (
        state.controller_epoch,
        state.leader,
        state.leader_epoch,
        b",".join([b"%d" % broker for broker in state.isr]),
    )


def decode(path: str, data: bytes | None) -> LeaderAndIsr:
    try:
        return _decode(data)
    except ZNodeError as error:  # the cache has no paths
        raise ZNodeError(path, error.reason) from None


def decode_many(paths: Sequence[str], contents: Contents) -> list[LeaderAndIsr | ZNodeError | None]:
    """Equal states are one object. None where the node does not exist, an error where its content is not a state."""
    try:
        if NO_NODE_VERSION not in contents.versions:
            return list(map(_decode, contents.data))
    except ZNodeError:
        pass  # decode one by one, to find which is bad
    return [_decode_any(*item) for item in zip(paths, contents.data, contents.versions, strict=True)]


def _decode_any(path: str, data: bytes | None, version: int) -> LeaderAndIsr | ZNodeError | None:
    if version == NO_NODE_VERSION:
        return None
    try:
        return decode(path, data)
    except ZNodeError as error:
        return error


@lru_cache(maxsize=CACHE_ENTRIES)
def _decode(data: bytes | None) -> LeaderAndIsr:
    return _parse("", data)


@document.decoder
def _parse(path: str, data: bytes | None) -> LeaderAndIsr:
    fields = document.parse(path, data)
    return LeaderAndIsr(
        BrokerId(document.integer(path, fields, "leader")),
        LeaderEpoch(document.integer(path, fields, "leader_epoch")),
        document.brokers(path, fields.get("isr"), "isr"),
        ControllerEpoch(document.integer(path, fields, "controller_epoch")),
    )


def clear_caches() -> None:
    encode.cache_clear()
    _decode.cache_clear()
