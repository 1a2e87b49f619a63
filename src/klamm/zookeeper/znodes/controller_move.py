"""/config/extension/controller_move: an operator asks this broker to take the office over, whoever holds it now.

Ephemeral, of the asking tool's session: a request never outlives who waits for it, so no broker finds a forgotten one
at its next start. Stock Kafka ignores the path; so it also works while a JVM broker is the controller.
"""

from __future__ import annotations

from typing import Final

from klamm.model.ids import BrokerId
from klamm.zookeeper.znodes import document

PARENT: Final = "/config/extension"
PATH: Final = f"{PARENT}/controller_move"


def encode(broker: BrokerId) -> bytes:
    return document.dump({"version": 1, "broker": broker})


@document.decoder
def decode(path: str, data: bytes | None) -> BrokerId:
    return BrokerId(document.integer(path, document.parse(path, data), "broker"))
