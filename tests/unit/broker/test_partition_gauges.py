from __future__ import annotations

from typing import Any

import pytest

from klamm.broker.appends import Appends
from klamm.broker.metrics import register_metrics
from klamm.broker.partition import Partition
from klamm.broker.partition_gauges import PartitionGauges
from klamm.broker.reads import Reads
from klamm.model.control import Sender, StopOrder
from klamm.model.ids import BrokerEpoch, BrokerId, ControllerEpoch, TopicPartition
from klamm.telemetry.metrics import MetricsRegistry, value_of
from klamm.wire.slices import finish

from .one_broker import TP, OneBroker, lead, one

__all__ = ["one"]

SENDER = Sender(BrokerId(2), ControllerEpoch(1), BrokerEpoch(-1))
OTHER = TopicPartition(TP.topic, 1)


def counts(gauges: PartitionGauges) -> tuple[int, int, int, int]:
    return gauges.leaders, gauges.under_replicated, gauges.under_min_isr, gauges.at_min_isr


def test_counts_follow_every_change_of_a_partition(partition: Partition, make_log: Any, make_order: Any) -> None:
    gauges = PartitionGauges()
    gauges.update(partition)
    assert counts(gauges) == (0, 0, 0, 0)
    log = make_log(min_insync_replicas=2)
    partition.make_leader(make_order(epoch=1, isr=(1, 2, 3), replicas=(1, 2, 3)), log)
    gauges.update(partition)
    assert counts(gauges) == (1, 0, 0, 0)
    for isr, expected in (((1, 2), (1, 1, 0, 1)), ((1,), (1, 1, 1, 0)), ((1, 2, 3), (1, 0, 0, 0))):
        partition.settle_isr(tuple(map(BrokerId, isr)), zk_version=5)
        gauges.update(partition)
        assert counts(gauges) == expected
    partition.settle_isr((BrokerId(1),), zk_version=6)
    gauges.update(partition)
    partition.make_follower(make_order(leader=2, epoch=2), log)
    gauges.update(partition)
    assert counts(gauges) == (0, 0, 0, 0)


def test_replicas_that_are_being_added_are_not_missing(partition: Partition, make_log: Any, make_order: Any) -> None:
    gauges = PartitionGauges()
    order = make_order(epoch=1, isr=(1, 2), replicas=(1, 2))
    moving = order._replace(assignment=order.assignment.reassign_to((BrokerId(2), BrokerId(3))))
    partition.make_leader(moving, make_log())
    gauges.update(partition)
    assert (gauges.reassigning, gauges.under_replicated) == (1, 0)
    partition.settle_isr((BrokerId(1),), zk_version=5)
    gauges.update(partition)
    assert (gauges.reassigning, gauges.under_replicated) == (1, 1)


def test_a_deleted_partition_counts_no_more(partition: Partition, make_log: Any, make_order: Any) -> None:
    gauges = PartitionGauges()
    partition.make_leader(make_order(epoch=1, isr=(1,), replicas=(1, 2)), make_log())
    gauges.update(partition)
    assert counts(gauges) == (1, 1, 0, 1)
    partition.log = None
    gauges.update(partition)
    assert counts(gauges) == (0, 0, 0, 0)


class Metered:
    """A broker whose metrics the test reads as a scrape does."""

    def __init__(self, one: OneBroker) -> None:
        self._metrics = MetricsRegistry()
        register_metrics(self._metrics, one.replicas, Appends(one.replicas), Reads(one.replicas), {})

    def of_partition(self, place: TopicPartition) -> dict[str, float]:
        tags = {"topic": place.topic, "partition": str(place.partition)}
        return {
            name.name: value_of(instrument)
            for name, instrument in finish(self._metrics.snapshot())
            if name.type == "Partition" and dict(name.tags) == tags
        }


@pytest.fixture
async def metered(one: OneBroker) -> Metered:
    await one.told(partitions=2)
    return Metered(one)


@pytest.mark.case("PAR-12")
@pytest.mark.parametrize("end", ["deleted", "directory failed"])
async def test_a_partition_has_gauges_as_long_as_it_is_here(
    metered: Metered, one: OneBroker, make_order: Any, end: str
) -> None:
    assert metered.of_partition(TP) == {}
    log = await lead(one, make_order, isr=(1,))
    log.fill(0, 0, 0)
    log.update_high_watermark(3)
    log.unstable = 1
    assert metered.of_partition(TP) == {
        "UnderReplicated": 1,
        "UnderMinIsr": 0,
        "AtMinIsr": 1,
        "InSyncReplicasCount": 1,
        "ReplicasCount": 2,
        "LastStableOffsetLag": 2,
    }
    assert metered.of_partition(OTHER) == {}
    assert counts(one.replicas.gauges) == (1, 1, 0, 1)
    if end == "deleted":
        await one.replicas.stop_replica(SENDER, [StopOrder(TP, make_order().state.leader_epoch, delete=True)])
    else:
        one.logs.offline[TP] = "broken"
        one.logs.on_offline("/disk1", [TP])
    assert metered.of_partition(TP) == {}
    assert counts(one.replicas.gauges) == (0, 0, 0, 0)
