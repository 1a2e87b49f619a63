"""/admin/reassign_partitions: how old tools request a reassignment. The controller rewrites and finally removes it.

An unknown key makes the whole document invalid, as in Kafka.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from klamm.model.ids import BrokerId, TopicPartition
from klamm.zookeeper.znodes import document

PATH: Final = "/admin/reassign_partitions"
_KEYS = {"version", "partitions"}
_ENTRY_KEYS = {"topic", "partition", "replicas"}


def encode(targets: Mapping[TopicPartition, tuple[BrokerId, ...]]) -> bytes:
    entries = [
        {"topic": topic, "partition": partition, "replicas": replicas}
        for (topic, partition), replicas in targets.items()
    ]
    return document.dump({"version": 1, "partitions": entries})


@document.decoder
def decode(path: str, data: bytes | None) -> dict[TopicPartition, tuple[BrokerId, ...]]:
    fields = document.parse(path, data)
    document.refuse_unknown(path, fields, _KEYS)
    document.version(path, fields, (1,))
    targets: dict[TopicPartition, tuple[BrokerId, ...]] = {}
    for entry in document.objects(path, fields, "partitions"):
        document.refuse_unknown(path, entry, _ENTRY_KEYS)
        targets[document.partition_of(path, entry)] = document.brokers(path, entry.get("replicas"), "replicas")
    return targets
