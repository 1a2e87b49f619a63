"""Access control: checks the identities of a connection against the ACL of a node, and which ACLs may be stored.

A connection has its address as an identity, and every identity that it has added by an auth request. The schemes are
world, ip, digest and `auth`; storing an ACL replaces `auth` by the caller's own identities.
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
    """The caller of an operation: the session that will own its ephemeral nodes, and the connection's identities."""

    __slots__ = ("identities", "session_id")

    def __init__(self, session_id: int = 0, address: str = "127.0.0.1") -> None:
        self.session_id = session_id
        self.identities: list[Identity] = [Identity("ip", address)]

    def add_identity(self, identity: Identity) -> None:
        if identity not in self.identities:
            self.identities.append(identity)


def digest_identity(credential: bytes) -> Identity:
    """The identity of `user:password` in the digest scheme. It is not verified: it only has to match an ACL."""
    user = credential.split(b":", 1)[0].decode("utf-8", "replace")
    return Identity("digest", f"{user}:{base64.b64encode(hashlib.sha1(credential).digest()).decode()}")


def permitted(acl: tuple[Acl, ...], permission: int, caller: Caller) -> bool:
    if acl is OPEN_ACL:  # a tree shares one tuple among equal lists, and nearly all nodes have this one
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
    except ValueError:  # the peer of an in-process connection has no IP address
        return identity.id == entry.id


def storable(acl: tuple[Acl, ...], caller: Caller, path: str) -> tuple[Acl, ...]:
    """The ACL to store: checked, with `auth` replaced and without duplicates."""
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
    """What getACL returns. A caller without ADMIN does not see the secret half of a digest."""
    if permitted(acl, Permission.ADMIN, caller):
        return acl
    return tuple(
        entry._replace(id=entry.id.split(":", 1)[0] + ":x") if entry.scheme == "digest" else entry for entry in acl
    )
