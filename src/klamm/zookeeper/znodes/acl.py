"""/kafka-acl/<Type>/<name> and /kafka-acl-extended/prefixed/<Type>/<name>: the ACLs of a resource.

The first path is for a literal name (`*` matches any name), the second for a prefix. Brokers and tools change the node
by its version and announce the change (`acl_change`). Type, permission and operation stay words: an unknown word of a
newer Kafka is kept, because dropping its entry would change who has access.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Final, NamedTuple

from klamm.model.errors import ZNodeError
from klamm.zookeeper.znodes import document

LITERAL_PARENT: Final = "/kafka-acl"
EXTENDED_PARENT: Final = "/kafka-acl-extended"
TYPES: Final = ("Topic", "Group", "Cluster", "TransactionalId", "DelegationToken")
"""Each has a node below both parents, which an authorizer creates at its first start."""
_PERMISSIONS: Final = ("Allow", "Deny")


class PatternType(Enum):
    LITERAL = "literal"
    PREFIXED = "prefixed"


class AclEntry(NamedTuple):
    principal: str
    """`User:name`"""
    permission: str
    operation: str
    host: str


def type_path(pattern: PatternType, resource_type: str) -> str:
    if pattern is PatternType.LITERAL:
        return f"{LITERAL_PARENT}/{resource_type}"
    return f"{EXTENDED_PARENT}/{pattern.value}/{resource_type}"


def path(pattern: PatternType, resource_type: str, name: str) -> str:
    return f"{type_path(pattern, resource_type)}/{name}"


def encode(entries: Sequence[AclEntry]) -> bytes:
    listed = [
        {
            "principal": entry.principal,
            "permissionType": entry.permission,
            "operation": entry.operation,
            "host": entry.host,
        }
        for entry in entries
    ]
    return document.dump({"version": 1, "acls": listed})


@document.decoder
def decode(path: str, data: bytes | None) -> tuple[AclEntry, ...]:
    """No data means no entries."""
    if not data:
        return ()
    fields = document.parse(path, data)
    document.version(path, fields, (1,))
    return tuple([_entry(path, entry) for entry in document.objects(path, fields, "acls")])


def _entry(path: str, fields: document.Fields) -> AclEntry:
    principal = document.text(path, fields, "principal")
    kind, colon, _name = principal.partition(":")
    if not (kind and colon):
        raise ZNodeError(path, f"principal: {principal!r} is not a Type:name")
    permission = document.text(path, fields, "permissionType")
    if permission not in _PERMISSIONS:
        raise ZNodeError(path, f"permissionType: {permission!r} is neither Allow nor Deny")
    return AclEntry(
        principal, permission, document.text(path, fields, "operation"), document.text(path, fields, "host")
    )
