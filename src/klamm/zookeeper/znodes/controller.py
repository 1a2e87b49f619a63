"""/controller: who is the active controller. Ephemeral, created in the election's multi, never set.

Version 1 is written; of any version only `brokerid` is read (3.4 and later write 2, with KRaft's epoch in it).
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
