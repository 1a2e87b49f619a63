"""/config/extension/quarantine/<quoted path>: a znode that made a controller fail, so that its successor skips it too.

Persistent, written by a klamm controller, removed by one when the znode has changed since; deleting it by hand ends the
quarantine at the next election. Stock Kafka ignores the path.
"""

from __future__ import annotations

from typing import Final, NamedTuple
from urllib.parse import quote

from klamm.model.ids import BrokerId
from klamm.zookeeper.znodes import document

PARENT: Final = "/config/extension/quarantine"


class Quarantined(NamedTuple):
    path: str
    mzxid: int
    """Of the znode when it made the controller fail: with another it is another matter."""
    reason: str
    broker: BrokerId
    """Who failed."""
    time_ms: int


def path(quarantined: str) -> str:
    return f"{PARENT}/{quote(quarantined, safe='')}"


def encode(entry: Quarantined) -> bytes:
    return document.dump({"version": 1, **entry._asdict()})


@document.decoder
def decode(path: str, data: bytes | None) -> Quarantined:
    fields = document.parse(path, data)
    return Quarantined(
        document.text(path, fields, "path"),
        document.long(path, fields, "mzxid"),
        document.text(path, fields, "reason"),
        BrokerId(document.integer(path, fields, "broker")),
        document.long(path, fields, "time_ms"),
    )
