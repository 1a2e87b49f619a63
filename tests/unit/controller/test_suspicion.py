"""The four guards of fast fail-over, one by one: each alone protects a broker from suspicion."""

from __future__ import annotations

import pytest

from klamm.controller.liveness.suspicion import (
    ALL_BUT_ONE,
    BROKEN,
    FRESH_S,
    PROBES,
    REMIND_EVERY,
    UNHARMED,
    Evidence,
    Observation,
    objection,
)
from klamm.model.ids import BrokerEpoch

GUILTY = Observation(
    evidence=BROKEN.refused(10.0).refused(10.1),
    now=10.15,
    epoch=BrokerEpoch(7),
    registered_epoch=BrokerEpoch(7),
    zookeeper_silence=0.0,
    refusing=1,
    brokers=3,
)


def test_all_four_guards_passed() -> None:
    assert objection(GUILTY) == ""


@pytest.mark.parametrize(
    ("seen", "why"),
    [
        (GUILTY._replace(evidence=UNHARMED.refused(10.0).refused(10.1)), "no established connection"),
        (GUILTY._replace(evidence=BROKEN), "0 of 2 probes"),
        (GUILTY._replace(evidence=BROKEN.refused(10.0)), "1 of 2 probes"),
        (GUILTY._replace(evidence=BROKEN.refused(10.0).unanswered().refused(10.1)), "1 of 2 probes"),
        (GUILTY._replace(now=10.1 + FRESH_S * 1.01), "last refusal was"),
        (GUILTY._replace(registered_epoch=None), "has ended"),
        (GUILTY._replace(registered_epoch=BrokerEpoch(8)), "epoch 8"),
        (GUILTY._replace(zookeeper_silence=FRESH_S * 1.01), "silent"),
        (GUILTY._replace(refusing=2), "2 of 3"),
        (GUILTY._replace(refusing=2, brokers=4), "2 of 4"),
        (GUILTY._replace(brokers=2), "1 of 2"),
    ],
)
def test_one_guard_is_enough_to_let_it_off(seen: Observation, why: str) -> None:
    assert why in objection(seen)


@pytest.mark.parametrize(("refusing", "brokers"), [(1, 3), (1, 4), (2, 5), (49, 99)])
def test_fewer_than_half(refusing: int, brokers: int) -> None:
    assert not objection(GUILTY._replace(refusing=refusing, brokers=brokers))


def test_at_the_limit_zookeeper_is_fresh() -> None:
    assert not objection(GUILTY._replace(zookeeper_silence=FRESH_S, now=10.1 + FRESH_S))


def test_news_is_the_last_probe_and_then_a_reminder_now_and_then() -> None:
    evidence, news = BROKEN, []
    for number in range(1, 3 * REMIND_EVERY + 1):
        evidence = evidence.refused(float(number))
        if evidence.is_news:
            news.append(number)
    assert news == [PROBES, REMIND_EVERY, 2 * REMIND_EVERY, 3 * REMIND_EVERY]


def test_refusals_without_a_broken_connection_are_no_news() -> None:
    evidence = UNHARMED
    for number in range(100):
        evidence = evidence.refused(float(number))
        assert not evidence.is_news


def test_a_testimony_needs_one_refusal_of_our_own() -> None:
    assert not ALL_BUT_ONE.is_complete
    assert ALL_BUT_ONE.refused(1.0).is_news
    assert ALL_BUT_ONE.unanswered() == Evidence(broke=True)
