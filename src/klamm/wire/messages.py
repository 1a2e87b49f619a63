"""Requests and responses as objects: kafka-python's classes, with its own schemas for client APIs and ours for control.

This module alone imports kafka-python (`klamm.wire.kafka_python` prepares the import), and everything else asks it for
classes by API key. Decoding is safe for untrusted bytes: `klamm.wire.bounds` checks them first. Hot APIs do not come
through here: Produce and Fetch have codecs of their own (`produce`, `fetch`), and so do the control requests
(`control`).
"""

from __future__ import annotations

import struct
import warnings
from functools import cache
from types import new_class
from typing import Any, Final

from klamm.model.ports import Buffer
from klamm.wire.apis import APIS, CONTROL_APIS
from klamm.wire.bounds import BoundsCheck
from klamm.wire.errors import ProtocolError

SCHEMAS: Final = "klamm.wire.control.schemas"

with warnings.catch_warnings():
    # kafka-python 3.0 reads its schema files by a call that Python 3.11 deprecates. Where warnings are errors, the
    # import would fail.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.protocol import admin, consumer, metadata, producer, sasl
    from kafka.protocol.api_message import ApiMessage

    _CONTROL: Final = {
        name: new_class(name, (ApiMessage,), {"load_json": SCHEMAS})
        for key in CONTROL_APIS
        for name in (f"{APIS[key].name}Request", f"{APIS[key].name}Response")
    }

_PACKAGES: Final = (producer, consumer, metadata, admin, sasl)


@cache
def request_class(api_key: int) -> Any:
    return _class_named(f"{APIS[api_key].name}Request")


@cache
def response_class(api_key: int) -> Any:
    return _class_named(f"{APIS[api_key].name}Response")


def decode_request(api_key: int, version: int, body: Buffer) -> Any:
    """The request as an object. Raises ProtocolError, which closes the connection."""
    api = APIS.get(api_key)
    if api is None or not api.serves(version):
        raise ProtocolError(f"unknown API key {api_key} or version {version}")
    return _decode(request_class(api_key), version, body)


def decode_response(api_key: int, version: int, body: Buffer) -> Any:
    return _decode(response_class(api_key), version, body)


def encode_request(message: Any, version: int) -> bytes:
    return _encode(message, version)


def encode_response(message: Any, version: int) -> bytes:
    return _encode(message, version)


def _class_named(name: str) -> Any:
    if name in _CONTROL:
        return _CONTROL[name]
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
