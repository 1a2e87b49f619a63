from __future__ import annotations

from typing import Any

from klamm.broker.partition import Partition
from klamm.broker.partition_gauges import Tallies
from klamm.model.ids import BrokerId


def counts(tallies: Tallies) -> tuple[int, int, int, int]:
    return tallies.leaders, tallies.under_replicated, tallies.under_min_isr, tallies.at_min_isr


def test_counts_follow_every_change_of_a_partition(partition: Partition, make_log: Any, make_order: Any) -> None:
    tallies = Tallies()
    tallies.update(partition)
    assert counts(tallies) == (0, 0, 0, 0)
    log = make_log(min_insync_replicas=2)
    partition.make_leader(make_order(epoch=1, isr=(1, 2, 3), replicas=(1, 2, 3)), log)
    tallies.update(partition)
    assert counts(tallies) == (1, 0, 0, 0)
    for isr, expected in (((1, 2), (1, 1, 0, 1)), ((1,), (1, 1, 1, 0)), ((1, 2, 3), (1, 0, 0, 0))):
        partition.settle_isr(tuple(map(BrokerId, isr)), zk_version=5)
        tallies.update(partition)
        assert counts(tallies) == expected
    partition.settle_isr((BrokerId(1),), zk_version=6)
    tallies.update(partition)
    partition.make_follower(make_order(leader=2, epoch=2), log)
    tallies.update(partition)
    assert counts(tallies) == (0, 0, 0, 0)


def test_replicas_that_are_being_added_are_not_missing(partition: Partition, make_log: Any, make_order: Any) -> None:
    tallies = Tallies()
    order = make_order(epoch=1, isr=(1, 2), replicas=(1, 2))
    moving = order._replace(assignment=order.assignment.reassign_to((BrokerId(2), BrokerId(3))))
    partition.make_leader(moving, make_log())
    tallies.update(partition)
    assert (tallies.reassigning, tallies.under_replicated) == (1, 0)
    partition.settle_isr((BrokerId(1),), zk_version=5)
    tallies.update(partition)
    assert (tallies.reassigning, tallies.under_replicated) == (1, 1)


def test_a_deleted_partition_counts_no_more(partition: Partition, make_log: Any, make_order: Any) -> None:
    tallies = Tallies()
    partition.make_leader(make_order(epoch=1, isr=(1,), replicas=(1, 2)), make_log())
    tallies.update(partition)
    assert counts(tallies) == (1, 1, 0, 1)
    partition.log = None
    tallies.update(partition)
    assert counts(tallies) == (0, 0, 0, 0)
