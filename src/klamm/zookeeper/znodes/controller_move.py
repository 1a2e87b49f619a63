"""/config/extension/controller_move: an operator asks this broker to become controller in place of the current one.

Ephemeral, owned by the session of the operator's tool: a request ends with the tool that waits for it, so no broker
finds an old one at its next start. Kafka ignores the path, so it also works while a JVM broker is the controller.
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
