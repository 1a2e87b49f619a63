"""/brokers/topics/<topic>: the replicas of each partition, and those that a running reassignment adds and removes.

klamm writes version 2 for a topic without an id. It keeps a topic id that it has read (a 2.5 controller dropped it:
KAFKA-12835) and then writes version 3 with the key order of Kafka 2.8 and later. Readers ignore `version`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import chain
from typing import Final, NamedTuple

from klamm.model.errors import ZNodeError
from klamm.model.ids import BrokerId
from klamm.model.partition import Assignment
from klamm.zookeeper.znodes import document

PARENT: Final = "/brokers/topics"
CACHE_ENTRIES: Final = 65_536


class TopicAssignment(NamedTuple):
    partitions: dict[int, Assignment]
    topic_id: str | None = None


def path(topic: str) -> str:
    return f"{PARENT}/{topic}"


def encode(partitions: Mapping[int, Assignment], topic_id: str | None = None) -> bytes:
    ordered = sorted(partitions.items())
    replicas = {str(partition): assignment.replicas for partition, assignment in ordered}
    moving = {
        "adding_replicas": {str(partition): a.adding for partition, a in ordered if a.adding},
        "removing_replicas": {str(partition): a.removing for partition, a in ordered if a.removing},
    }
    if topic_id is None:
        return document.dump({"version": 2, "partitions": replicas, **moving})
    return document.dump({"partitions": replicas, "topic_id": topic_id, **moving, "version": 3})


@document.decoder
def decode(path: str, data: bytes | None) -> TopicAssignment:
    fields = document.parse(path, data)
    adding = document.mapping(path, fields, "adding_replicas") if "adding_replicas" in fields else {}
    removing = document.mapping(path, fields, "removing_replicas") if "removing_replicas" in fields else {}
    found = document.mapping(path, fields, "partitions")
    if adding or removing or not _is_plain(found):
        partitions = dict(_decode_each(path, found, adding, removing))
    else:
        partitions = dict(zip(map(int, found), map(_settled, map(tuple, found.values())), strict=True))
    topic_id = document.text(path, fields, "topic_id") if fields.get("topic_id") is not None else None
    return TopicAssignment(partitions, topic_id)


def _is_plain(found: document.Fields) -> bool:
    """Whether all keys are numbers and all values lists of numbers. Nearly all documents are, and this check in bulk is
    fast: checking each partition took most of a cold load."""
    return (
        all(found)
        and max(map(len, found), default=0) < document.DIGITS_MAX
        and "".join(found).isascii()
        and "".join(found).isdigit()
        and {list}.issuperset(map(type, found.values()))
        and {int}.issuperset(map(type, chain.from_iterable(found.values())))
    )


@lru_cache(maxsize=CACHE_ENTRIES)
def _settled(replicas: tuple[BrokerId, ...]) -> Assignment:
    """The one Assignment for all partitions with these replicas and no reassignment."""
    if replicas and not document.INT_MIN <= min(replicas) <= max(replicas) <= document.INT_MAX:
        raise ValueError(f"a broker id of {list(replicas)} does not fit into 32 bits")
    return Assignment(replicas)


def _decode_each(
    path: str, found: document.Fields, adding: document.Fields, removing: document.Fields
) -> Iterator[tuple[int, Assignment]]:
    for key, replicas in found.items():
        number = document.natural(key)
        if number is None:
            raise ZNodeError(path, f"partitions: {key[:40]!r} is not a partition number")
        yield (
            number,
            Assignment(
                document.brokers(path, replicas, f"partition {key}"),
                document.brokers(path, adding.get(key, []), f"adding_replicas of {key}"),
                document.brokers(path, removing.get(key, []), f"removing_replicas of {key}"),
            ),
        )
