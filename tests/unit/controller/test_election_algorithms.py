"""The four election rules on examples, and against naive versions on all inputs of up to three brokers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, permutations, product

import pytest

from klamm.controller.decisions.election_algorithms import (
    Elected,
    NoLeader,
    UncleanElection,
    elect_for_controlled_shutdown,
    elect_for_reassignment,
    elect_offline,
    elect_preferred,
)
from klamm.model.ids import BrokerId

CLEAN, UNCLEAN = UncleanElection.FORBIDDEN, UncleanElection.ALLOWED


def ids(*brokers: int) -> tuple[BrokerId, ...]:
    return tuple(map(BrokerId, brokers))


@pytest.mark.case("ELE-01")
def test_offline_takes_a_live_member_of_the_isr() -> None:
    assert elect_offline(ids(2, 4), ids(2, 4), ids(4), CLEAN) == Elected(BrokerId(4), ids(4))


@pytest.mark.case("ELE-02")
def test_offline_without_a_live_isr_member_says_why() -> None:
    result = elect_offline(ids(2, 4), ids(2), ids(4), CLEAN)
    assert isinstance(result, NoLeader)
    assert "ISR [2]" in result.reason
    assert "unclean election is off" in result.reason


@pytest.mark.case("ELE-03")
@pytest.mark.case("PSM-12")
def test_offline_unclean_takes_a_live_replica_alone() -> None:
    assert elect_offline(ids(2, 4), ids(2), ids(4), UNCLEAN) == Elected(BrokerId(4), ids(4), unclean=True)


@pytest.mark.case("ELE-04")
def test_the_assignment_gives_the_order_not_the_isr() -> None:
    assigned, isr, live = ids(3, 1, 2), ids(2, 1, 3), ids(1, 2)
    assert elect_offline(assigned, isr, live, CLEAN) == Elected(BrokerId(1), ids(2, 1))
    assert elect_for_reassignment(assigned, isr, live) == Elected(BrokerId(1), isr)
    assert elect_for_controlled_shutdown(assigned, isr, ids(1, 2, 3), ids(3)) == Elected(BrokerId(1), ids(2, 1))
    assert isinstance(elect_preferred(assigned, isr, live), NoLeader)


@pytest.mark.case("ELE-05")
@pytest.mark.case("ELE-06")
def test_reassignment() -> None:
    assert elect_for_reassignment(ids(2, 4), ids(2, 4), ids(4)) == Elected(BrokerId(4), ids(2, 4))
    assert isinstance(elect_for_reassignment(ids(2, 4), ids(2), ids()), NoLeader)


@pytest.mark.case("ELE-07")
@pytest.mark.case("ELE-08")
def test_preferred() -> None:
    assert elect_preferred(ids(2, 4), ids(2, 4), ids(2, 4)) == Elected(BrokerId(2), ids(2, 4))
    assert isinstance(elect_preferred(ids(2, 4), ids(2), ids()), NoLeader)
    assert isinstance(elect_preferred(ids(2, 4), ids(), ids()), NoLeader)
    assert isinstance(elect_preferred(ids(2, 4), ids(4), ids(2, 4)), NoLeader)
    assert isinstance(elect_preferred((), (), ids(1)), NoLeader)


@pytest.mark.case("ELE-09")
def test_controlled_shutdown() -> None:
    assert elect_for_controlled_shutdown(ids(2, 4), ids(2, 4), ids(2, 4), ids(2)) == Elected(BrokerId(4), ids(4))
    assert isinstance(elect_for_controlled_shutdown(ids(2, 4), ids(2), ids(2, 4), ids(2)), NoLeader)


ORDERS = [ids(*order) for size in range(4) for order in permutations(range(3), size)]
"""All assignments and ISRs of up to three brokers."""
SETS = [ids(*some) for size in range(4) for some in combinations(range(3), size)]


def first(brokers: Sequence[BrokerId]) -> BrokerId | None:
    return brokers[0] if brokers else None


def elected(result: Elected | NoLeader) -> tuple[BrokerId | None, tuple[BrokerId, ...], bool]:
    if isinstance(result, NoLeader):
        assert result.reason
        return None, (), False
    return result


@pytest.mark.parametrize("unclean", UncleanElection)
def test_offline_against_the_definition(unclean: UncleanElection) -> None:
    for assigned, isr, live in product(ORDERS, ORDERS, SETS):
        leader, new_isr, is_unclean = elected(elect_offline(assigned, isr, live, unclean))
        clean = [b for b in assigned if b in live and b in isr]
        may_lose = unclean is UNCLEAN and not any(b in live for b in isr)
        dirty = [b for b in assigned if b in live] if may_lose else []
        assert leader == (first(clean) if clean else first(dirty)), (assigned, isr, live)
        if clean:
            assert (new_isr, is_unclean) == (tuple(b for b in isr if b in live), False)
        elif dirty:
            assert (new_isr, is_unclean) == ((leader,), True)


def test_the_clean_elections_against_their_definitions() -> None:
    for assigned, isr, live in product(ORDERS, ORDERS, SETS):
        fit = [b for b in assigned if b in live and b in isr]
        leader, new_isr, is_unclean = elected(elect_for_reassignment(assigned, isr, live))
        assert (leader, is_unclean) == (first(fit), False), (assigned, isr, live)
        assert leader is None or new_isr == isr
        leader, new_isr, is_unclean = elected(elect_preferred(assigned, isr, live))
        assert (leader, is_unclean) == (first([b for b in assigned[:1] if b in fit]), False), (assigned, isr, live)
        assert leader is None or new_isr == isr


def test_controlled_shutdown_against_the_definition() -> None:
    for assigned, isr, live, leaving in product(ORDERS, ORDERS, SETS, SETS):
        leader, new_isr, is_unclean = elected(elect_for_controlled_shutdown(assigned, isr, live, leaving))
        fit = [b for b in assigned if b in live and b in isr and b not in leaving]
        assert (leader, is_unclean) == (first(fit), False), (assigned, isr, live, leaving)
        assert leader is None or new_isr == tuple(b for b in isr if b not in leaving)
