from __future__ import annotations

from typing import Any

from klamm.broker.partition import Partition
from klamm.broker.partition_gauges import PartitionGauges
from klamm.model.ids import BrokerId


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
