"""/log_dir_event_notification/log_dir_event_<n>: a log directory of this broker has failed. Persistent sequential."""

from __future__ import annotations

from typing import Final

from klamm.model.ids import BrokerId
from klamm.zookeeper.znodes import document

PARENT: Final = "/log_dir_event_notification"
PREFIX: Final = f"{PARENT}/log_dir_event_"
LOG_DIR_FAILURE: Final = 1


def path(name: str) -> str:
    return f"{PARENT}/{name}"


def encode(broker: BrokerId) -> bytes:
    return document.dump({"version": 1, "broker": broker, "event": LOG_DIR_FAILURE})


@document.decoder
def decode(path: str, data: bytes | None) -> BrokerId:
    return BrokerId(document.integer(path, document.parse(path, data), "broker"))
