"""Blocks of producer ids: no id is given twice, by whatever broker."""

from __future__ import annotations

from typing import Any

import pytest

from klamm.broker.producer_ids import ProducerIds
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import BrokerId, ProducerId
from klamm.zookeeper.znodes import producer_id_block
from klamm.zookeeper.znodes.producer_id_block import ProducerIdBlock

LAST = 2**63 - 1


@pytest.fixture
def blocks(zk: Any) -> Any:
    zk.put(producer_id_block.PATH, None)
    return zk


@pytest.mark.case("TXN-36")
async def test_brokers_take_blocks_in_turn(blocks: Any) -> None:
    one, two = ProducerIds(blocks, BrokerId(1)), ProducerIds(blocks, BrokerId(2))
    assert [await one.take() for _ in range(1000)] == list(range(1000))
    assert [await two.take() for _ in range(1000)] == list(range(1000, 2000))
    assert (await two.take(), await one.take()) == (2000, 3000)
    assert [await two.take() for _ in range(999)][-1] == 2999


@pytest.mark.case("TXN-37")
@pytest.mark.parametrize(("last", "is_left"), [(LAST - 1000, True), (LAST - 999, False), (LAST, False)])
async def test_the_last_ids_do_not_wrap(blocks: Any, last: int, is_left: bool) -> None:
    block = ProducerIdBlock(BrokerId(9), ProducerId(last - 999), ProducerId(last))
    blocks.put(producer_id_block.PATH, producer_id_block.encode(block))
    ids = ProducerIds(blocks, BrokerId(1))
    if is_left:
        assert await ids.take() == last + 1
    else:
        for _ in range(2):
            with pytest.raises(KafkaError) as error:
                await ids.take()
            assert error.value.code is ErrorCode.UNKNOWN_SERVER_ERROR
