"""Requests and responses as objects, from klamm's own tables (`klamm.wire.tables`).

A message class has one attribute per field, under the protocol's name in snake case, and one nested class per struct.
A field that is not given, or not in the version that was decoded, has the protocol's default. Only the fields of the
version are encoded. Decoding is safe for untrusted bytes and raises ProtocolError.

Readers and writers are compiled once for each class and version (`klamm.wire.readers`, `klamm.wire.writers`). The
hottest APIs do not come through here: Produce and Fetch have codecs of their own (`produce`, `fetch`), and so do the
control requests (`control`).
"""

from __future__ import annotations

from functools import cache
from typing import Any, ClassVar

from klamm.model.ports import Buffer
from klamm.wire.apis import APIS
from klamm.wire.errors import ProtocolError
from klamm.wire.readers import Reader, compile_reader
from klamm.wire.schema import Field, Schema, Struct, schema_of
from klamm.wire.writers import Writer, compile_writer


class Message:
    """The base of all structs, outer and nested. A class is made from its table, so its attributes are not typed."""

    __slots__ = ()
    schema: ClassVar[Schema]
    """The table of the message; nested classes have none."""
    struct: ClassVar[Struct]
    defaults: ClassVar[dict[str, Any]]

    def __init__(self, **values: Any) -> None:
        """The first instance compiles the constructor of its class."""
        cls: Any = type(self)
        cls.__init__ = _compile_constructor(cls)
        cls.__init__(self, **values)

    def __getattr__(self, name: str) -> Any:
        """Called only for a field without a value, because the decoded version does not have it."""
        try:
            default = type(self).defaults[name]
        except KeyError:
            raise AttributeError(f"{type(self).__name__} has no field {name}") from None
        return [] if default == () else default

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.defaults)

    __hash__ = None  # type: ignore[assignment]  # messages are mutable

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.defaults)
        return f"{type(self).__name__}({values})"


@cache
def request_class(api_key: int) -> Any:
    return _message_class(f"{APIS[api_key].name}Request")


@cache
def response_class(api_key: int) -> Any:
    return _message_class(f"{APIS[api_key].name}Response")


def decode_request(api_key: int, version: int, body: Buffer) -> Any:
    """The request as an object. Raises ProtocolError, which closes the connection."""
    api = APIS.get(api_key)
    if api is None or not api.serves(version):
        raise ProtocolError(f"unknown API key {api_key} or version {version}")
    return _reader(request_class(api_key), version)(body)


def decode_response(api_key: int, version: int, body: Buffer) -> Any:
    return _reader(response_class(api_key), version)(body)


def encode_request(message: Any, version: int) -> bytes:
    return _writer(message.__class__, version)(message)


def encode_response(message: Any, version: int) -> bytes:
    return _writer(message.__class__, version)(message)


@cache
def _reader(cls: Any, version: int) -> Reader:
    _check_version(cls, version)
    return compile_reader(cls, version)


@cache
def _writer(cls: Any, version: int) -> Writer:
    _check_version(cls, version)
    return compile_writer(cls.schema, version)


def _check_version(cls: Any, version: int) -> None:
    if not cls.schema.versions.has(version):
        raise ProtocolError(f"{cls.__name__} has no version {version}")


def _message_class(name: str) -> type[Message]:
    schema = schema_of(name)
    cls = _class_of(schema.struct)
    cls.schema = schema
    return cls


def _class_of(struct: Struct) -> type[Message]:
    fields = struct.all_fields
    nested = {each.struct.name: _class_of(each.struct) for each in fields if each.struct is not None}
    body: dict[str, Any] = {
        "__slots__": tuple(each.name for each in fields),
        "__module__": __name__,
        "struct": struct,
        "defaults": {each.name: each.default for each in fields},
        **nested,
    }
    return type(struct.name, (Message,), body)


def _compile_constructor(cls: type[Message]) -> Any:
    """Takes each field as a keyword with its default."""

    def value(each: Field) -> str:
        return f"[] if {each.name} is EMPTY else {each.name}" if each.default == () else each.name

    fields = cls.struct.all_fields
    parameters = "".join(f", {each.name}={'EMPTY' if each.default == () else repr(each.default)}" for each in fields)
    lines = [f"    self.{each.name} = {value(each)}" for each in fields]
    head = f"def __init__(self, *{parameters}):" if fields else "def __init__(self): pass"
    source = "\n".join([head, *lines])
    made: dict[str, Any] = {"EMPTY": object()}
    exec(compile(source, f"<constructor of {cls.__name__}>", "exec"), made)
    return made["__init__"]
