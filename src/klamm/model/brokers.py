"""A broker as others see it: id, endpoints per listener, rack, and the epoch of its registration."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from klamm.model.ids import BrokerEpoch, BrokerId


class SecurityProtocol(IntEnum):
    """The ids that UpdateMetadata uses."""

    PLAINTEXT = 0
    SSL = 1
    SASL_PLAINTEXT = 2
    SASL_SSL = 3


class Endpoint(NamedTuple):
    listener: str
    """In upper case; unique within a broker."""
    host: str
    port: int
    security_protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.listener}://{host}:{self.port}"


class Broker(NamedTuple):
    id: BrokerId
    endpoints: tuple[Endpoint, ...]
    rack: str | None = None
    controller_only: bool = False
    """A dedicated controller node, which gets no replicas. Only its registration says so, not the wire."""
    recovered: bool | BrokerEpoch = False
    """It started after a stop that was not clean, so its logs may lack what it had acknowledged (ADR 0014). In a
    registration that was renewed since, the epoch of the first one after that start."""

    def endpoint(self, listener: str) -> Endpoint | None:
        return next((e for e in self.endpoints if e.listener == listener), None)


class LiveBroker(NamedTuple):
    """A registration read from ZooKeeper, with the epoch that identifies this life of the broker."""

    broker: Broker
    epoch: BrokerEpoch
