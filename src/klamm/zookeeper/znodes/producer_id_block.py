"""/latest_producer_id_block: the last block of a thousand producer ids that a broker took, set by its data version."""

from __future__ import annotations

from typing import Final, NamedTuple

from klamm.model.ids import BrokerId, ProducerId
from klamm.zookeeper.znodes import document

PATH: Final = "/latest_producer_id_block"
BLOCK_SIZE: Final = 1000


class ProducerIdBlock(NamedTuple):
    broker: BrokerId
    first: ProducerId
    last: ProducerId

    def next_for(self, broker: BrokerId) -> ProducerIdBlock:
        return block_from(broker, self.last + 1)


def block_from(broker: BrokerId, first: int) -> ProducerIdBlock:
    return ProducerIdBlock(broker, ProducerId(first), ProducerId(first + BLOCK_SIZE - 1))


def encode(block: ProducerIdBlock) -> bytes:
    return document.dump(
        {"version": 1, "broker": block.broker, "block_start": str(block.first), "block_end": str(block.last)}
    )


@document.decoder
def decode(path: str, data: bytes | None) -> ProducerIdBlock | None:
    """None if no block was taken yet: the node is created empty."""
    if not data:
        return None
    fields = document.parse(path, data)
    return ProducerIdBlock(
        BrokerId(document.integer(path, fields, "broker")),
        ProducerId(document.number_in_text(path, fields, "block_start")),
        ProducerId(document.number_in_text(path, fields, "block_end")),
    )
