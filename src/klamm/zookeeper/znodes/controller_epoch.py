"""/controller_epoch: a decimal number as text; each election adds 1. Its data version fences a controller's writes."""

from __future__ import annotations

from typing import Final

from klamm.model.errors import ZNodeError
from klamm.model.ids import ControllerEpoch
from klamm.zookeeper.znodes import document

PATH: Final = "/controller_epoch"


def encode(epoch: ControllerEpoch) -> bytes:
    return b"%d" % epoch


@document.decoder
def decode(path: str, data: bytes | None) -> ControllerEpoch:
    epoch = document.natural((data or b"").decode("latin-1"))
    if epoch is None:
        raise ZNodeError(path, f"expected a decimal number, not {(data or b'')[:40]!r}")
    return ControllerEpoch(epoch)
