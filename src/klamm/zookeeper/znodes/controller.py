"""/controller: the id of the active controller. Ephemeral; the multi of an election creates it, and nothing sets it.

klamm writes version 1 and reads only `brokerid`, from any version (3.4 and later write 2, with KRaft's epoch).
"""

from __future__ import annotations

from typing import Final

from klamm.model.ids import BrokerId
from klamm.zookeeper.znodes import document

PATH: Final = "/controller"


def encode(broker: BrokerId, timestamp_ms: int) -> bytes:
    return document.dump({"version": 1, "brokerid": broker, "timestamp": str(timestamp_ms)})


@document.decoder
def decode(path: str, data: bytes | None) -> BrokerId:
    return BrokerId(document.integer(path, document.parse(path, data), "brokerid"))
