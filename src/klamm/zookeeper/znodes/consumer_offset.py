"""/consumers/<group>/offsets/<topic>/<partition>: where consumers before Kafka 0.9 keep their offsets, as a decimal."""

from __future__ import annotations

from typing import Final

from klamm.model.errors import ZNodeError
from klamm.model.ids import TopicPartition
from klamm.zookeeper.znodes import document

PARENT: Final = "/consumers"


def is_valid(group_id: str) -> bool:
    """The name becomes one part of a path."""
    return bool(group_id) and "/" not in group_id and "\0" not in group_id and group_id not in (".", "..")


def path(group_id: str, partition: TopicPartition) -> str:
    return f"{PARENT}/{group_id}/offsets/{partition.topic}/{partition.partition}"


def encode(offset: int) -> bytes:
    return str(offset).encode()


@document.decoder
def decode(path: str, data: bytes | None) -> int:
    offset = document.natural((data or b"").decode("latin-1"))
    if offset is None:
        raise ZNodeError(path, f"expected a decimal number, not {(data or b'')[:40]!r}")
    return offset
