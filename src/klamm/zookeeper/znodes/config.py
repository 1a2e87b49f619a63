"""/config/<type>/<entity>: the overrides of one topic, broker, client, user, or of a user's client.

An absent node and a node without data mean no overrides. Names of users and clients are percent-encoded, so that any
name fits into a path. The entity `<default>` applies to all entities of its type.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from urllib.parse import quote, unquote

from klamm.model.errors import ZNodeError
from klamm.zookeeper.znodes import document

PARENT: Final = "/config"
TOPICS: Final = "topics"
CLIENTS: Final = "clients"
USERS: Final = "users"
BROKERS: Final = "brokers"
TYPES: Final = (TOPICS, CLIENTS, USERS, BROKERS)
DEFAULT_ENTITY: Final = "<default>"


def type_path(entity_type: str) -> str:
    return f"{PARENT}/{entity_type}"


def path(entity_type: str, entity: str) -> str:
    return f"{PARENT}/{entity_type}/{entity}"


def topic_path(topic: str) -> str:
    return f"{PARENT}/{TOPICS}/{topic}"


def user_client_path(user: str, client: str) -> str:
    """Both names must be sanitised already, or be the default entity."""
    return f"{PARENT}/{USERS}/{user}/{CLIENTS}/{client}"


def sanitised(name: str) -> str:
    return quote(name, safe="-._").replace("~", "%7E")


def unsanitised(name: str) -> str:
    return unquote(name)


def encode(overrides: Mapping[str, str]) -> bytes:
    return document.dump({"version": 1, "config": dict(overrides)})


@document.decoder
def decode(path: str, data: bytes | None) -> dict[str, str]:
    if not data:
        return {}
    fields = document.parse(path, data)
    document.version(path, fields, (1,))
    overrides = document.mapping(path, fields, "config")
    for key, value in overrides.items():
        if not isinstance(value, str):
            raise ZNodeError(path, f"config {key}: expected a string, not {value!r}")
    return overrides
