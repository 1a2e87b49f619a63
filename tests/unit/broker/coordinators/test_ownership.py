"""Which partitions a coordinator owns, whatever order loads and orders come in."""

from __future__ import annotations

import pytest

from klamm.broker.coordinators.ownership import Ownership
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import LeaderEpoch

E3, E4, E5 = LeaderEpoch(3), LeaderEpoch(4), LeaderEpoch(5)


def answer(ownership: Ownership, partition: int | None = 0) -> ErrorCode:
    try:
        ownership.check(partition)
    except KafkaError as error:
        return error.code
    return ErrorCode.NONE


def test_loading_then_owned_then_gone() -> None:
    ownership = Ownership()
    assert answer(ownership) is ErrorCode.NOT_COORDINATOR
    assert ownership.begin_loading(0, E3)
    assert answer(ownership) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert (answer(ownership, 1), answer(ownership, None)) == (ErrorCode.NOT_COORDINATOR,) * 2
    assert ownership.is_loading
    assert ownership.loaded(0, E3)
    assert (answer(ownership), ownership.epoch(0), ownership.owned) == (ErrorCode.NONE, 3, {0})
    assert not ownership.is_loading
    assert ownership.resign(0, E4)
    assert (answer(ownership), ownership.epoch(0)) == (ErrorCode.NOT_COORDINATOR, None)


def test_a_load_that_was_overtaken_does_not_bring_the_partition_back() -> None:
    ownership = Ownership()
    ownership.begin_loading(0, E3)
    ownership.resign(0, E4)
    assert not ownership.is_wanted(0, E3)
    assert not ownership.loaded(0, E3)
    assert not ownership.begin_loading(0, E3)
    assert answer(ownership) is ErrorCode.NOT_COORDINATOR


def test_a_resignation_that_comes_late_is_skipped() -> None:
    ownership = Ownership()
    ownership.begin_loading(0, E5)
    assert not ownership.resign(0, E4)
    assert ownership.loaded(0, E5)
    assert not ownership.resign(0, E4)
    assert answer(ownership) is ErrorCode.NONE


def test_a_later_load_replaces_an_earlier_one() -> None:
    ownership = Ownership()
    ownership.begin_loading(0, E3)
    assert not ownership.begin_loading(0, E3)
    assert ownership.begin_loading(0, E5)
    assert not ownership.loaded(0, E3)
    assert ownership.loaded(0, E5)


@pytest.mark.parametrize("epoch", [E3, LeaderEpoch(0)])
def test_a_deleted_replica_leaves_no_epoch_behind(epoch: LeaderEpoch) -> None:
    ownership = Ownership()
    ownership.begin_loading(0, E5)
    ownership.resign(0, None)
    assert ownership.begin_loading(0, epoch), "the topic may have been created again"
