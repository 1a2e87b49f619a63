"""Refuses a configuration that asks for security, until klamm has it: it would serve everyone in plain text instead.

A key counts when its value would switch something on in Kafka. Keys that only tune it (`ssl.protocol`) and values that
repeat Kafka's default do not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from klamm.model.brokers import Endpoint, SecurityProtocol
from klamm.model.errors import ConfigError

_OFF: Final = {
    "allow.everyone.if.no.acl.found": "true",
    "authorizer.class.name": "",
    "principal.builder.class": "",
    "sasl.enabled.mechanisms": "GSSAPI",
    "sasl.jaas.config": "",
    "sasl.mechanism.inter.broker.protocol": "GSSAPI",
    "sasl.server.callback.handler.class": "",
    "security.inter.broker.protocol": "PLAINTEXT",
    "ssl.client.auth": "none",
    "ssl.keystore.location": "",
    "ssl.truststore.location": "",
    "super.users": "",
    "zookeeper.set.acl": "false",
    "zookeeper.ssl.client.enable": "false",
}
"""The keys that switch security on, with the value that leaves it off besides an empty one. The mechanisms are Kafka's
defaults, which matter only on a SASL listener."""


def refuse_security(properties: Mapping[str, str], endpoints: Iterable[Endpoint]) -> None:
    """Raises ConfigError, in one line that names everything that asks for security."""
    asks = [
        f"{endpoint.security_protocol.name} of listener {endpoint.listener}"
        for endpoint in endpoints
        if endpoint.security_protocol is not SecurityProtocol.PLAINTEXT
    ]
    asks += [key for key in sorted(properties) if _asks(key, properties[key])]
    if asks:
        raise ConfigError(
            "klamm has no encryption, authentication or authorization yet and would serve everyone in plain text: "
            f"remove {', '.join(asks)}"
        )


def _asks(key: str, value: str) -> bool:
    """
    >>> _asks("ssl.client.auth", "required"), _asks("listener.name.client.scram-sha-512.sasl.jaas.config", "x")
    (True, True)
    >>> _asks("ssl.client.auth", "none"), _asks("ssl.protocol", "TLSv1.3"), _asks("super.users", "")
    (False, False, False)
    """
    known = next((known for known in _OFF if key == known or _is_for_a_listener(key, known)), None)
    return known is not None and value.strip() not in ("", _OFF[known])


def _is_for_a_listener(key: str, known: str) -> bool:
    """listener.name.LISTENER.KEY or, for JAAS, listener.name.LISTENER.MECHANISM.KEY."""
    return key.startswith("listener.name.") and key.endswith(f".{known}")
