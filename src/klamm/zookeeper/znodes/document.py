"""JSON documents in znodes: one object with fields of the right types. Anything else raises ZNodeError.

Unknown keys are ignored, as in Kafka; a codec that refuses them says so. `true` is not an integer, and neither is a
number that does not fit into 32 bits (64 for times and producer ids): no request of the protocol could carry it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set
from functools import wraps
from typing import Any, Final, TypeVar

import orjson

from klamm.model.errors import ZNodeError
from klamm.model.ids import BrokerId, TopicPartition

Fields = dict[str, Any]
T = TypeVar("T")

INT_MIN: Final = -(2**31)
INT_MAX: Final = 2**31 - 1
LONG_MIN: Final = -(2**63)
LONG_MAX: Final = 2**63 - 1
DIGITS_MAX: Final = 10
LONG_DIGITS: Final = 20
"""A longer number does not fit, and Python refuses to parse thousands of digits."""


def dump(document: Fields) -> bytes:
    """Keys in the order of the dict, without spaces."""
    return orjson.dumps(document)


def parse(path: str, data: bytes | None) -> Fields:
    if not data:
        raise ZNodeError(path, "no data, expected a JSON object")
    try:
        document = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise ZNodeError(path, f"not JSON: {error}") from error
    if not isinstance(document, dict):
        raise ZNodeError(path, f"expected a JSON object, not {_brief(document)}")
    return document


def decoder(decode: Callable[[str, bytes | None], T]) -> Callable[[str, bytes | None], T]:
    """Decorates every function that decodes a znode: an exception that it did not expect also becomes ZNodeError. An
    unexpected exception would end one controller after another."""

    @wraps(decode)
    def checked(path: str, data: bytes | None) -> T:
        try:
            return decode(path, data)
        except ZNodeError:
            raise
        except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
            raise ZNodeError(path, f"cannot be decoded: {type(error).__name__}: {error}") from error

    return checked


def integer(path: str, fields: Fields, key: str) -> int:
    value = _required(path, fields, key)
    if type(value) is not int or not INT_MIN <= value <= INT_MAX:
        raise ZNodeError(path, f"{key}: expected an integer, not {_brief(value)}")
    return value


def long(path: str, fields: Fields, key: str) -> int:
    value = _required(path, fields, key)
    if type(value) is not int or not LONG_MIN <= value <= LONG_MAX:
        raise ZNodeError(path, f"{key}: expected a long integer, not {_brief(value)}")
    return value


def natural(text: str) -> int | None:
    """A number of up to 31 bits in plain digits, like the names of brokers and partitions. None for any other text."""
    if not (text.isascii() and text.isdigit() and len(text) <= DIGITS_MAX):
        return None
    value = int(text)
    return value if value <= INT_MAX else None


def text(path: str, fields: Fields, key: str) -> str:
    value = _required(path, fields, key)
    if type(value) is not str:
        raise ZNodeError(path, f"{key}: expected a string, not {_brief(value)}")
    return value


def number_in_text(path: str, fields: Fields, key: str) -> int:
    """Kafka writes some numbers as strings. A plain number is accepted too."""
    value = _required(path, fields, key)
    digits = value.removeprefix("-") if type(value) is str else ""
    if digits.isascii() and digits.isdigit() and len(digits) < LONG_DIGITS:
        value = int(value)
    if type(value) is not int or not LONG_MIN <= value <= LONG_MAX:
        raise ZNodeError(path, f"{key}: expected a number in a string, not {_brief(value)}")
    return value


def mapping(path: str, fields: Fields, key: str) -> Fields:
    value = _required(path, fields, key)
    if not isinstance(value, dict):
        raise ZNodeError(path, f"{key}: expected an object, not {_brief(value)}")
    return value


def objects(path: str, fields: Fields, key: str) -> list[Fields]:
    value = _required(path, fields, key)
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise ZNodeError(path, f"{key}: expected a list of objects, not {_brief(value)}")
    return value


def brokers(path: str, value: Any, key: str) -> tuple[BrokerId, ...]:
    if not isinstance(value, list) or not all(type(item) is int and INT_MIN <= item <= INT_MAX for item in value):
        raise ZNodeError(path, f"{key}: expected a list of broker ids, not {_brief(value)}")
    return tuple(value)


def version(path: str, fields: Fields, accepted: Iterable[int]) -> int:
    found = integer(path, fields, "version")
    if found not in accepted:
        raise ZNodeError(path, f"version {found} is not one of {', '.join(map(str, accepted))}")
    return found


def refuse_unknown(path: str, fields: Fields, known: Set[str]) -> None:
    """For the few documents that allow no unknown keys."""
    unknown = sorted(fields.keys() - known)
    if unknown:
        raise ZNodeError(path, f"unknown key {', '.join(unknown)}")


def partition_list(partitions: Iterable[TopicPartition]) -> bytes:
    """`{"version":1,"partitions":[{"topic":"t","partition":0}]}`, the content of several kinds of znodes."""
    entries = [{"topic": topic, "partition": partition} for topic, partition in partitions]
    return dump({"version": 1, "partitions": entries})


@decoder
def parse_partition_list(path: str, data: bytes | None) -> tuple[TopicPartition, ...]:
    return tuple([partition_of(path, entry) for entry in objects(path, parse(path, data), "partitions")])


def partition_of(path: str, entry: Fields) -> TopicPartition:
    return TopicPartition(text(path, entry, "topic"), integer(path, entry, "partition"))


def _required(path: str, fields: Fields, key: str) -> Any:
    try:
        return fields[key]
    except KeyError:
        raise ZNodeError(path, f"{key} is missing") from None


def _brief(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."
