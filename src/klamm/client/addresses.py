"""Addresses of brokers as users write them: `host:port`, several with commas."""

from __future__ import annotations

from typing import NamedTuple

from klamm.client.errors import ClientError

DEFAULT_PORT = 9092


class Address(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def addresses(text: str) -> list[Address]:
    """
    >>> addresses("a:1, b:2,[::1]:3,c")
    [Address(host='a', port=1), Address(host='b', port=2), Address(host='::1', port=3), Address(host='c', port=9092)]
    """
    found = [_address(entry.strip()) for entry in text.split(",") if entry.strip()]
    if not found:
        raise ClientError("no address of a broker was given: it has the form HOST:PORT")
    return found


def _address(text: str) -> Address:
    host, colon, port = text.rpartition(":")
    if not colon or (host.count(":") and not host.endswith("]")):
        host, port = text, str(DEFAULT_PORT)
    if not (port.isdecimal() and 0 < int(port) < 65536 and host):
        raise ClientError(f"{text!r} is not the address of a broker: it has the form HOST:PORT")
    return Address(host.removeprefix("[").removesuffix("]"), int(port))
