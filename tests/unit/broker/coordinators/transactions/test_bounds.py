"""What a stranger can make a broker keep of producers: transactional ids, and producer ids that it made up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from klamm.broker.coordinators.internal_topic import KEY_BYTES_MAX
from klamm.model.errors import ErrorCode
from klamm.model.ids import TopicPartition

from .whole_broker import STATE, running_broker

ORDERS = TopicPartition("orders", 0)
REFUSED = ErrorCode.POLICY_VIOLATION


async def test_transactional_ids_beyond_the_limit(tmp_path: Path, zk: Any) -> None:
    async with running_broker(tmp_path / "data", zk=zk, max_transactional_ids=2) as broker:
        await broker.lead("__transaction_state")
        assert await broker.init("one") == (0, 0, 0)
        assert await broker.init("two") == (0, 1, 0)
        before = broker.log(STATE).log_end_offset
        assert await broker.init("three") == (REFUSED, -1, -1)
        assert broker.log(STATE).log_end_offset == before
        assert await broker.init("one") == (0, 0, 1), "an id that is there may be used"
        ours = ("klamm.server", "transaction-coordinator-metrics")
        assert broker.metrics.value(*ours, "transactional-id-count") == 2
        assert broker.metrics.value(*ours, "refused-transactional-ids-count") == 1


async def test_a_transactional_id_that_no_key_can_hold(tmp_path: Path, zk: Any) -> None:
    async with running_broker(tmp_path / "data", zk=zk) as broker:
        await broker.lead("__transaction_state")
        assert (await broker.init("i" * KEY_BYTES_MAX))[0] == 0
        assert await broker.init("i" * (KEY_BYTES_MAX + 1)) == (ErrorCode.INVALID_REQUEST, -1, -1)


async def test_producers_beyond_the_limit_of_a_partition(tmp_path: Path, zk: Any) -> None:
    async with running_broker(tmp_path / "data", zk=zk, max_producers_per_partition=2) as broker:
        await broker.lead("orders")

        async def produce(producer: int, sequence: int = 0, **more: Any) -> int:
            return await broker.produce(ORDERS, b"x", producer=(producer, 0), sequence=sequence, **more)

        assert [await produce(7), await produce(8)] == [0, 0]
        assert await produce(9) == REFUSED
        assert await produce(9, transactional=False) == REFUSED
        assert await produce(7, 1) == 0, "a producer that is known goes on"
        assert await broker.produce(ORDERS, b"x", transactional=False) == 0, "and so does one without an id"
        assert await broker.write_markers((10, 0), [ORDERS]) == [0], "markers come from coordinators"
        assert broker.metrics.value("klamm.server", "Producers", "refused-batches-count") == 2
