"""/cluster/id: written once, by the first broker. Its `version` is a string, as in Kafka."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from random import Random
from typing import Final
from uuid import UUID

from klamm.zookeeper.znodes import document

PATH: Final = "/cluster/id"


def generate(random: Random) -> str:
    """A random UUID in 22 characters of base64url."""
    uuid = UUID(int=random.getrandbits(128), version=4)
    return urlsafe_b64encode(uuid.bytes).decode().rstrip("=")


def encode(cluster_id: str) -> bytes:
    return document.dump({"version": "1", "id": cluster_id})


@document.decoder
def decode(path: str, data: bytes | None) -> str:
    return document.text(path, document.parse(path, data), "id")
