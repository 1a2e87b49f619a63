"""Who may do what: the identities of a connection against the ACL of a node, and which ACLs may be stored at all.

A connection always is its address, and whatever it proved by `auth`. Schemes: world, ip, digest, and `auth`, which is
replaced by the caller's own identities when it is stored. Reference: zookeeper.md section 6.
"""

from __future__ import annotations

import base64
import hashlib
import ipaddress
from typing import NamedTuple

from klamm.model.errors import InvalidAcl, NoAuth
from klamm.model.ports import OPEN_ACL, Acl
from klamm.zookeeper.jute import Permission


class Identity(NamedTuple):
    scheme: str
    id: str


class Caller:
    """On whose behalf an operation runs: the session that will own its ephemerals, the identities of the connection."""

    __slots__ = ("identities", "session_id")

    def __init__(self, session_id: int = 0, address: str = "127.0.0.1") -> None:
        self.session_id = session_id
        self.identities: list[Identity] = [Identity("ip", address)]

    def add_identity(self, identity: Identity) -> None:
        if identity not in self.identities:
            self.identities.append(identity)


def digest_identity(credential: bytes) -> Identity:
    """`user:password` as the digest scheme knows it. Nothing is verified here: only a match with an ACL counts."""
    user = credential.split(b":", 1)[0].decode("utf-8", "replace")
    return Identity("digest", f"{user}:{base64.b64encode(hashlib.sha1(credential).digest()).decode()}")


def permitted(acl: tuple[Acl, ...], permission: int, caller: Caller) -> bool:
    if acl is OPEN_ACL:  # trees share one tuple for equal lists, and nearly all nodes have this one
        return True
    for entry in acl:
        if entry.perms & permission and (
            entry.scheme == "world" or any(_matches(identity, entry) for identity in caller.identities)
        ):
            return True
    return False


def require(acl: tuple[Acl, ...], permission: int, caller: Caller, path: str) -> None:
    if not permitted(acl, permission, caller):
        raise NoAuth(path)


def _matches(identity: Identity, entry: Acl) -> bool:
    if identity.scheme != entry.scheme:
        return False
    if entry.scheme != "ip":
        return identity.id == entry.id
    try:
        return ipaddress.ip_address(identity.id) in ipaddress.ip_network(entry.id, strict=False)
    except ValueError:  # the peer of an in-process connection has no address in that sense
        return identity.id == entry.id


def storable(acl: tuple[Acl, ...], caller: Caller, path: str) -> tuple[Acl, ...]:
    """The list as it is stored: checked, `auth` replaced, duplicates gone."""
    if acl == OPEN_ACL:
        return OPEN_ACL
    stored: dict[Acl, None] = {}
    for entry in acl:
        if entry.scheme == "auth":
            own = [identity for identity in caller.identities if identity.scheme != "ip"]
            if not own:
                raise InvalidAcl(path)
            stored.update((Acl(entry.perms, identity.scheme, identity.id), None) for identity in own)
        elif _well_formed(entry):
            stored[entry] = None
        else:
            raise InvalidAcl(path)
    if not stored:
        raise InvalidAcl(path)
    return tuple(stored)


def _well_formed(entry: Acl) -> bool:
    match entry.scheme:
        case "world":
            return entry.id == "anyone"
        case "digest":
            return entry.id.count(":") == 1
        case "ip":
            try:
                ipaddress.ip_network(entry.id, strict=False)
            except ValueError:
                return False
            return True
    return False


def shown_to(acl: tuple[Acl, ...], caller: Caller) -> tuple[Acl, ...]:
    """What getACL returns: without ADMIN the secret half of a digest is hidden."""
    if permitted(acl, Permission.ADMIN, caller):
        return acl
    return tuple(
        entry._replace(id=entry.id.split(":", 1)[0] + ":x") if entry.scheme == "digest" else entry for entry in acl
    )
