"""/config/extension/candidates/<id>: brokers that shall run for controller first (LogiKM and KnowStreaming write it).

Persistent, the data is unused; an absent parent means no preference. Names that are no broker ids are passed over: an
operator's slip must not keep a cluster without a controller.
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
