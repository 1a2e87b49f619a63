"""/config/changes/config_change_<n>: tells every broker which overrides to read again. Persistent sequential.

klamm writes version 2, which names a path below /config, and also reads version 1, which names type and entity.
"""

from __future__ import annotations

from typing import Final

from klamm.model.errors import ZNodeError
from klamm.zookeeper.znodes import config, document

PARENT: Final = "/config/changes"
PREFIX: Final = f"{PARENT}/config_change_"


def path(name: str) -> str:
    return f"{PARENT}/{name}"


def encode(entity_path: str) -> bytes:
    """`entity_path` without /config in front: `topics/orders`."""
    return document.dump({"version": 2, "entity_path": entity_path})


@document.decoder
def decode(path: str, data: bytes | None) -> str:
    """The entity's path below /config, for both versions."""
    fields = document.parse(path, data)
    if document.version(path, fields, (1, 2)) == 2:
        return document.text(path, fields, "entity_path")
    entity_type = document.text(path, fields, "entity_type")
    if entity_type not in (config.TOPICS, config.CLIENTS):
        raise ZNodeError(path, f"entity_type {entity_type!r} is not valid in version 1")
    return f"{entity_type}/{document.text(path, fields, 'entity_name')}"
