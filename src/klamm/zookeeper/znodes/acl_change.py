"""/kafka-acl-changes/acl_changes_<n> and /kafka-acl-extended-changes/acl_changes_<n>: which ACLs to read again.

Persistent sequential. For a literal name the content is text, `TOPIC:orders`. For a prefix it is JSON, and an unknown
key makes it invalid, as in Kafka. The type is in capitals, unlike in the path of the ACLs.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from klamm.model.errors import ZNodeError
from klamm.zookeeper.znodes import acl, document
from klamm.zookeeper.znodes.acl import PatternType

PARENTS: Final = {PatternType.LITERAL: "/kafka-acl-changes", PatternType.PREFIXED: "/kafka-acl-extended-changes"}
PREFIXES: Final = {pattern: f"{parent}/acl_changes_" for pattern, parent in PARENTS.items()}
_NAMES: Final = {
    "TOPIC": "Topic",
    "GROUP": "Group",
    "CLUSTER": "Cluster",
    "TRANSACTIONAL_ID": "TransactionalId",
    "DELEGATION_TOKEN": "DelegationToken",
}
_IN_CAPITALS: Final = {name: capitals for capitals, name in _NAMES.items()}
_KEYS: Final = {"version", "resourceType", "name", "patternType"}


class ChangedResource(NamedTuple):
    pattern: PatternType
    resource_type: str
    name: str

    @property
    def acl_path(self) -> str:
        return acl.path(*self)


def encode(changed: ChangedResource) -> bytes:
    resource_type = _IN_CAPITALS[changed.resource_type]
    if changed.pattern is PatternType.LITERAL:
        return f"{resource_type}:{changed.name}".encode()
    return document.dump(
        {"version": 1, "resourceType": resource_type, "name": changed.name, "patternType": changed.pattern.name}
    )


@document.decoder
def decode(path: str, data: bytes | None) -> ChangedResource:
    if path.startswith(PREFIXES[PatternType.LITERAL]):
        return _from_text(path, data)
    fields = document.parse(path, data)
    document.refuse_unknown(path, fields, _KEYS)
    document.version(path, fields, (1,))
    word = document.text(path, fields, "patternType")
    pattern = PatternType.__members__.get(word)
    if pattern in (None, PatternType.LITERAL):
        raise ZNodeError(path, f"patternType: {word!r} is not valid here")
    resource_type = _type(path, document.text(path, fields, "resourceType"))
    return ChangedResource(PatternType.PREFIXED, resource_type, document.text(path, fields, "name"))


def _from_text(path: str, data: bytes | None) -> ChangedResource:
    try:
        word, colon, name = (data or b"").decode().partition(":")
    except UnicodeDecodeError as error:
        raise ZNodeError(path, f"not UTF-8: {error}") from error
    if not (colon and name):
        raise ZNodeError(path, f"expected TYPE:name, not {(data or b'')[:60]!r}")
    return ChangedResource(PatternType.LITERAL, _type(path, word), name)


def _type(path: str, word: str) -> str:
    # Releases before 2.0 wrote `Topic:orders`.
    name = _NAMES.get(word) or (word if word in _IN_CAPITALS else None)
    if name is None:
        raise ZNodeError(path, f"unknown resource type {word!r}")
    return name
