"""What the checks of producers and consumers accept, and what they do not."""

from __future__ import annotations

import random

import pytest

from klamm.model.ids import TopicPartition
from klamm.model.partition import LeaderAndIsr
from klamm.simulation.disk import SimulatedDisk
from klamm.simulation.history import PartitionHistory, Sent, once_and_in_order
from klamm.simulation.loop import VirtualClock, VirtualTimeLoop

T0 = TopicPartition("t", 0)
A, B, C = b"p 1 1", b"p 1 2", b"p 2 1"


@pytest.fixture
def history() -> PartitionHistory:
    history = PartitionHistory(T0, flushed=False)
    history.state_is(LeaderAndIsr(1, 0, (1, 2), 1))
    return history


def test_one_value_per_offset(history: PartitionHistory) -> None:
    assert history.acknowledged(0, [A, B], asked_at=1.0) is None
    assert history.was_read(1, B, asked_at=2.0) is None
    assert history.acknowledged(1, [B], asked_at=2.0) is None, "a duplicate is acknowledged where it is"
    assert history.acknowledged(1, [C], asked_at=3.0)
    assert history.was_read(0, C, asked_at=3.0)
    assert history.was_read(2, C, asked_at=3.0) is None
    assert history.acknowledged(2, [A], asked_at=4.0), "another record was read there"


def test_everything_promised_must_be_there_in_the_end(history: PartitionHistory) -> None:
    history.acknowledged(0, [A], asked_at=1.0)
    history.was_read(1, B, asked_at=1.0)
    assert history.everything_is_there({0: A, 1: B, 2: C}) is None
    assert history.everything_is_there({0: A})
    assert history.everything_is_there({0: C, 1: B})
    history.refused.add(C)
    assert history.everything_is_there({0: A, 1: B, 2: C}), "a refused record must not appear"
    assert history.was_read(2, C, asked_at=2.0)


def test_a_power_cut_of_all_in_sync_excuses(history: PartitionHistory) -> None:
    history.acknowledged(0, [A], asked_at=1.0)
    history.lost_power(1)
    assert not history.excuse(lambda broker: True, now=2.0), "broker 2 has it"
    assert history.excuse(lambda broker: broker != 2, now=3.0), "broker 1, which lost it, may lead now"
    assert history.everything_is_there({}) is None
    assert history.acknowledged(0, [B], asked_at=4.0) is None
    assert history.everything_is_there({}), "what is promised afterwards counts"


def test_a_replica_that_left_the_isr_is_no_longer_suspect(history: PartitionHistory) -> None:
    history.acknowledged(0, [A], asked_at=1.0)
    history.lost_power(1)
    history.state_is(LeaderAndIsr(2, 1, (2,), 1))
    history.state_is(LeaderAndIsr(2, 1, (2, 1), 1))
    assert not history.excuse(lambda broker: False, now=2.0)
    history.lost_power(3)
    assert not history.excuse(lambda broker: False, now=2.0), "broker 3 was not in the ISR"


def test_nothing_excuses_the_loss_of_what_was_flushed() -> None:
    history = PartitionHistory(T0, flushed=True)
    history.state_is(LeaderAndIsr(1, 0, (1,), 1))
    history.acknowledged(0, [A], asked_at=1.0)
    history.was_read(1, B, asked_at=1.0)
    history.lost_power(1)
    assert not history.excuse(lambda broker: False, now=2.0)
    assert history.everything_is_there({0: A, 1: B}) is None
    assert history.everything_is_there({0: A}), "nobody reads what may still be lost"
    assert history.everything_is_there({})


def test_batches_of_an_idempotent_producer() -> None:
    assert once_and_in_order(T0, [Sent(1, 3), Sent(2, 3), Sent(1, 4), Sent(1, 6)]) is None
    assert once_and_in_order(T0, [Sent(1, 3), Sent(1, 3)])
    assert once_and_in_order(T0, [Sent(1, 4), Sent(1, 3)])


def test_a_killed_process_keeps_its_page_cache_and_writes_no_more() -> None:
    loop = VirtualTimeLoop()
    disk = SimulatedDisk(VirtualClock(loop), random.Random(1))
    loop.close()
    file = disk.open("/a", create=True)
    file.append([b"unsynced"])
    unlock = disk.lock("/lock")
    disk.end_process()
    with pytest.raises(OSError, match="power"):
        file.append([b"more"])
    with pytest.raises(OSError, match="power"):
        disk.write_atomically("/b", b"too late")
    disk.restore_power()
    with pytest.raises(OSError, match="closed"):
        file.sync()
    assert disk.read("/a") == b"unsynced"
    disk.lock("/lock")
    unlock()
