"""/brokers/ids/<id>: the registration of a live broker. Ephemeral; its czxid is the broker epoch.

klamm writes version 4 and reads 1 to 5: version 1 has one PLAINTEXT endpoint, 2 adds `endpoints`, 3 `rack`, 4 the map
from listener to security protocol, 5 `features`. Without the map, the name of a listener is its security protocol. Two
endpoints with the same listener make the document invalid.

A dedicated controller node says so under a key of our own, because every broker that places replicas must know it. A
separate node could outlive the broker or its configuration; the registration changes with them in one transaction. So
does a broker that had to recover its logs (ADR 0014). Kafka's decoders (2.5.1 and 3.9.1) ignore unknown keys.
"""

from __future__ import annotations

from typing import Any, Final

from klamm.model.brokers import Broker, Endpoint, SecurityProtocol
from klamm.model.errors import ZNodeError
from klamm.model.ids import BrokerEpoch, BrokerId
from klamm.zookeeper.znodes import document

PARENT: Final = "/brokers/ids"
SEQUENCE_PATH: Final = "/brokers/seqid"
"""Has no data. The data version after a set, added to `reserved.broker.max.id`, is the next generated id."""

PORT_MAX: Final = 65535

OURS: Final = "klamm"
CONTROLLER_ONLY: Final = "controller_only"
RECOVERED: Final = "recovered"


def path(broker: BrokerId) -> str:
    return f"{PARENT}/{broker}"


def encode(broker: Broker, timestamp_ms: int, jmx_port: int = -1) -> bytes:
    plain = next((e for e in broker.endpoints if e.security_protocol is SecurityProtocol.PLAINTEXT), None)
    fields: document.Fields = {
        "listener_security_protocol_map": {e.listener: e.security_protocol.name for e in broker.endpoints},
        "endpoints": [str(endpoint) for endpoint in broker.endpoints],
    }
    if broker.rack is not None:
        fields["rack"] = broker.rack
    fields |= {
        "jmx_port": jmx_port,
        "port": plain.port if plain else -1,
        "host": plain.host if plain else None,
        "version": 4,
        "timestamp": str(timestamp_ms),
    }
    ours = {CONTROLLER_ONLY: broker.controller_only, RECOVERED: broker.recovered}
    if any(ours.values()):
        fields[OURS] = {key: value for key, value in ours.items() if value}
    return document.dump(fields)


@document.decoder
def decode(path: str, data: bytes | None) -> Broker:
    broker = id_of(path)
    fields = document.parse(path, data)
    version = document.version(path, fields, range(1, 6))
    document.integer(path, fields, "jmx_port")  # Kafka's decoders require it
    if version == 1:
        host, port = document.text(path, fields, "host"), document.integer(path, fields, "port")
        _refuse_unless_resolvable(path, f"{host}:{port}", host, port)
        return Broker(broker, (Endpoint("PLAINTEXT", host, port),))
    protocols = document.mapping(path, fields, "listener_security_protocol_map") if version >= 4 else {}
    uris = fields.get("endpoints")
    if not isinstance(uris, list) or not uris:
        raise ZNodeError(path, "endpoints: expected a list of NAME://host:port")
    endpoints = tuple(_endpoint(path, uri, protocols) for uri in uris)
    names = [endpoint.listener for endpoint in endpoints]
    if len(set(names)) < len(names):
        raise ZNodeError(path, f"endpoints: a listener appears twice in {', '.join(names)}")
    rack = document.text(path, fields, "rack") if fields.get("rack") is not None else None
    found = fields.get(OURS)
    ours = found if isinstance(found, dict) else {}
    recovered = ours.get(RECOVERED, False)
    return Broker(
        broker,
        endpoints,
        rack,
        ours.get(CONTROLLER_ONLY) is True,
        BrokerEpoch(recovered) if type(recovered) is int and recovered > 0 else recovered is True,
    )


def id_of(path: str) -> BrokerId:
    """The broker id from a path or from the name of a child."""
    number = document.natural(path.rpartition("/")[2])
    if number is None:
        raise ZNodeError(path, "the name is not a broker id")
    return BrokerId(number)


def _endpoint(path: str, uri: Any, protocols: document.Fields) -> Endpoint:
    name, separator, address = uri.partition("://") if isinstance(uri, str) else ("", "", "")
    host, colon, port = address.rpartition(":")
    if not (separator and name and colon and document.natural(port.removeprefix("-")) is not None):
        raise ZNodeError(path, f"endpoints: {uri!r} is not a NAME://host:port")
    listener = name.upper()
    protocol = protocols.get(name, protocols.get(listener, listener))
    known = SecurityProtocol.__members__.get(protocol) if isinstance(protocol, str) else None
    if known is None:
        raise ZNodeError(path, f"listener {name} has no known security protocol: {protocol!r}")
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    _refuse_unless_resolvable(path, uri, host, int(port))
    return Endpoint(listener, host, int(port), known)


def _refuse_unless_resolvable(path: str, uri: str, host: str, port: int) -> None:
    """No broker could ever connect there. JVM brokers register such names without complaint."""
    try:
        host.encode("idna")
    except UnicodeError as error:
        raise ZNodeError(path, f"endpoints: no resolver takes the host name in {uri[:300]!r}: {error}") from error
    if "\0" in host or port > PORT_MAX:
        raise ZNodeError(path, f"endpoints: {uri[:300]!r} is not an address")
