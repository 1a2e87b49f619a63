"""/config/extension/quarantine/<quoted path>: names a znode that made a controller fail, so its successor skips it.

Persistent. A klamm controller writes it, and removes it when the znode has changed. If an operator deletes it, the
quarantine ends at the next election. Kafka ignores the path.
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
    """The znode's mzxid when it made the controller fail. The quarantine ends when it changes."""
    reason: str
    broker: BrokerId
    """The broker whose controller failed."""
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
