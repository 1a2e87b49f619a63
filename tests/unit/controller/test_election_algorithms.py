"""The four election rules on examples, and the offline rule against a naive version on random input."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

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


brokers = st.lists(st.integers(0, 5), unique=True, max_size=5)


@given(brokers, brokers, brokers, st.booleans())
def test_offline_against_the_definition(
    assigned: Sequence[int], isr: Sequence[int], live: Sequence[int], unclean: bool
) -> None:
    result = elect_offline(ids(*assigned), ids(*isr), ids(*live), UncleanElection(unclean))
    clean = [b for b in assigned if b in live and b in isr]
    dirty = [b for b in assigned if b in live]
    isr_lives = any(b in live for b in isr)
    if clean:
        assert result == Elected(BrokerId(clean[0]), ids(*(b for b in isr if b in live)))
    elif unclean and dirty and not isr_lives:
        assert result == Elected(BrokerId(dirty[0]), ids(dirty[0]), unclean=True)
    else:
        assert isinstance(result, NoLeader)
        assert result.reason
