"""Which settings of brokers count as different."""

from __future__ import annotations

from klamm.admin.config_diff import Difference, differences


def test_only_what_differs_between_brokers_that_know_the_key() -> None:
    found = differences(
        {
            1: {"a": "1", "b": "x", "only.here": "1", "broker.id": "1"},
            2: {"a": "1", "b": "y", "broker.id": "2"},
            3: {"a": "1", "b": "x", "broker.id": "3"},
        }
    )
    assert found == [Difference("b", {1: "x", 2: "y", 3: "x"})]
    assert found[0].outliers() == [2]


def test_keys_of_one_broker_are_shown_when_asked_for() -> None:
    settings: dict[int, dict[str, str | None]] = {1: {"log.dirs": "/a"}, 2: {"log.dirs": "/b"}}
    assert differences(settings) == []
    (found,) = differences(settings, with_own=True)
    assert found.values == {1: "/a", 2: "/b"}
    assert found.outliers() == [1, 2], "no value is the usual one"


def test_secrets_are_not_told_apart() -> None:
    assert differences({1: {"password": None}, 2: {"password": None}}) == []
