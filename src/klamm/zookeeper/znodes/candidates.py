"""/config/extension/candidates/<id>: brokers that are preferred as controller (LogiKM and KnowStreaming write it too).

Persistent, without data. An absent parent means no preference. Names that are not broker ids are ignored, because an
operator's mistake must not leave the cluster without a controller.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from klamm.model.ids import BrokerId
from klamm.zookeeper.znodes import document

PARENT: Final = "/config/extension/candidates"


def path(broker: BrokerId) -> str:
    return f"{PARENT}/{broker}"


def ids_of(names: Iterable[str]) -> list[BrokerId]:
    return sorted(BrokerId(number) for name in names if (number := document.natural(name)) is not None)
