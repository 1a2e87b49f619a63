"""Requests and responses as objects: kafka-python's classes for the client APIs, ours for the control ones.

Decoding is safe for bytes from strangers: `klamm.wire.bounds` walks them first. Hot APIs do not come through here:
Produce and Fetch have codecs of their own (`produce`, `fetch`), large control requests `control_encoders`.
"""

from __future__ import annotations

import struct
import warnings
from collections.abc import Sequence
from functools import cache
from typing import Any

from klamm.model.errors import ErrorCode
from klamm.model.ports import Buffer
from klamm.wire import control
from klamm.wire.apis import APIS, ApiKey
from klamm.wire.bounds import BoundsCheck
from klamm.wire.errors import ProtocolError

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # see klamm.wire.control
    from kafka.protocol import admin, consumer, metadata, producer, sasl

_PACKAGES = (control, producer, consumer, metadata, admin, sasl)


@cache
def request_class(api_key: int) -> Any:
    return _class_named(f"{APIS[api_key].name}Request")


@cache
def response_class(api_key: int) -> Any:
    return _class_named(f"{APIS[api_key].name}Response")


def decode_request(api_key: int, version: int, body: Buffer) -> Any:
    """The request object. Raises ProtocolError: the connection it came from is to be closed."""
    api = APIS.get(api_key)
    if api is None or not api.serves(version):
        raise ProtocolError(f"no API {api_key} in version {version}")
    return _decode(request_class(api_key), version, body)


def decode_response(api_key: int, version: int, body: Buffer) -> Any:
    return _decode(response_class(api_key), version, body)


def encode_request(message: Any, version: int) -> bytes:
    return _encode(message, version)


def encode_response(message: Any, version: int) -> bytes:
    return _encode(message, version)


def unsupported_api_versions_body() -> bytes:
    """Answer to ApiVersions in a version that we do not speak: always in version 0's form, with error 35 and only its
    own range, so that the client comes back with a version of that (broker 5.3)."""
    api = APIS[ApiKey.API_VERSIONS]
    return api_versions_v0_body(ErrorCode.UNSUPPORTED_VERSION, [(api.key, api.min_version, api.max_version)])


def api_versions_v0_body(error: ErrorCode, ranges: Sequence[tuple[int, int, int]]) -> bytes:
    return struct.pack(">hi", error, len(ranges)) + b"".join(struct.pack(">hhh", *entry) for entry in ranges)


def _class_named(name: str) -> Any:
    for package in _PACKAGES:
        found = getattr(package, name, None)
        if found is not None:
            return found
    raise LookupError(name)


@cache
def _decoder(cls: Any, version: int) -> tuple[BoundsCheck, Any]:
    flexible = cls.flexible_version_q(version)
    decode = cls._struct.compiled_decode_from(version, compact=flexible, tagged=flexible, data_class=cls)
    return BoundsCheck(cls._struct, version, flexible), decode


def _decode(cls: Any, version: int, body: Buffer) -> Any:
    check, decode = _decoder(cls, version)
    view = memoryview(body)
    check(view)
    try:
        message, _ = decode(view, 0)
    except UnicodeDecodeError as error:
        raise ProtocolError("a string is not UTF-8") from error
    except (struct.error, IndexError, ValueError, AssertionError) as error:
        raise ProtocolError(f"malformed {cls.__name__} version {version}") from error
    message._header = None
    return message


def _encode(message: Any, version: int) -> bytes:
    message._header = None  # a decoded message has none, and encoding looks for it
    return bytes(message.encode(version=version))
