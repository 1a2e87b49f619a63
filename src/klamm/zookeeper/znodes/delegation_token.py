"""/delegation_token/tokens/<id>: a delegation token. Its secret is not stored: it follows from id and master key.

klamm writes version 1, as Kafka before 3.3 does, and reads 1 to 3 (3 adds the requester; without it the requester is
the owner). Principals are percent-encoded like names of users. /delegation_token/token_changes/token_change_<n> holds
the id of the token to read again, as text. The nodes are sensitive: set `zookeeper.set.acl`, so that only brokers read
them.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from klamm.model.errors import ZNodeError
from klamm.zookeeper.znodes import config, document

PARENT: Final = "/delegation_token/tokens"
CHANGES_PARENT: Final = "/delegation_token/token_changes"
CHANGES_PREFIX: Final = f"{CHANGES_PARENT}/token_change_"


class DelegationToken(NamedTuple):
    token_id: str
    owner: str
    renewers: tuple[str, ...]
    issued_ms: int
    expires_ms: int
    latest_expiry_ms: int
    requester: str = ""
    """Empty means the owner."""


def path(token_id: str) -> str:
    return f"{PARENT}/{token_id}"


def encode(token: DelegationToken) -> bytes:
    """The order of the keys is that of a Scala 2.13 hash map, which Kafka's builds use."""
    fields: document.Fields = {
        "issueTimestamp": token.issued_ms,
        "renewers": [config.sanitised(renewer) for renewer in token.renewers],
        "tokenId": token.token_id,
        "owner": config.sanitised(token.owner),
        "expiryTimestamp": token.expires_ms,
        "maxTimestamp": token.latest_expiry_ms,
        "version": 1,
    }
    return document.dump(fields)


@document.decoder
def decode(path: str, data: bytes | None) -> DelegationToken:
    fields = document.parse(path, data)
    document.version(path, fields, (1, 2, 3))
    renewers = fields.get("renewers")
    if not isinstance(renewers, list):
        raise ZNodeError(path, f"renewers: expected a list of principals, not {renewers!r}")
    return DelegationToken(
        document.text(path, fields, "tokenId"),
        _principal(path, "owner", fields.get("owner")),
        tuple([_principal(path, "renewers", renewer) for renewer in renewers]),
        document.long(path, fields, "issueTimestamp"),
        document.long(path, fields, "expiryTimestamp"),
        document.long(path, fields, "maxTimestamp"),
        _principal(path, "tokenRequester", fields["tokenRequester"]) if "tokenRequester" in fields else "",
    )


def encode_change(token_id: str) -> bytes:
    return token_id.encode()


@document.decoder
def decode_change(path: str, data: bytes | None) -> str:
    try:
        token_id = (data or b"").decode()
    except UnicodeDecodeError as error:
        raise ZNodeError(path, f"not UTF-8: {error}") from error
    if not token_id:
        raise ZNodeError(path, "no data, expected the id of a token")
    return token_id


def _principal(path: str, key: str, value: Any) -> str:
    text = config.unsanitised(value) if isinstance(value, str) else ""
    kind, colon, _name = text.partition(":")
    if not (kind and colon):
        raise ZNodeError(path, f"{key}: {value!r} is not a Type:name")
    return text
