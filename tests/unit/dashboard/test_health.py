"""Health is one sentence about now; each problem has a place to look and a cure."""

from __future__ import annotations

from klamm.admin.doctor.finding import Finding, Severity
from klamm.dashboard.health import Level, health_of

from .clusters import HEALTHY, P, snapshot


def test_a_healthy_cluster() -> None:
    health = health_of(snapshot(HEALTHY), age_s=0.1)
    assert health == (Level.GOOD, "Healthy: 3 brokers, 3 partitions, all in sync.", [])
    moving = {"t": [P([1, 2, 3], isr=[1, 2], adding=[3])]}
    assert (
        health_of(snapshot(moving), age_s=0).sentence == "Healthy: 3 brokers, 1 partition, all in sync, 1 on the move."
    )


def test_a_dead_broker_and_what_follows() -> None:
    topics = {"t": [P([1, 2], isr=[1]), P([2, 1], leader=1, isr=[1]), P([2], leader=-1, isr=[2])]}
    health = health_of(snapshot(topics, brokers=(1, 3)), age_s=0)
    assert health.level is Level.BAD
    assert health.sentence == "1 partition without a leader; broker 2 is down; and 1 more problem."
    offline, down, under, preferred = health.problems
    assert (offline.link, offline.cure) == (
        "/topics?state=offline",
        "start broker 2; or lose data: klamm leaders elect --type unclean --all (t-2)",
    )
    assert (down.link, down.cure) == ("/brokers/2", "start broker 2, or move its 3 replicas: Reassignments, drain 2")
    assert (under.level, under.text, under.cure) == (
        Level.WARNING,
        "2 partitions under-replicated",
        "start broker 2 (t-0, t-1)",
    )
    assert preferred.level is Level.NOTE and preferred.text == "2 partitions not led by the preferred replica"


def test_min_isr_silence_controller_and_the_doctor() -> None:
    found = snapshot({"t": [P([1, 2, 3], isr=[1])]}, min_isr={"t": 2}, leading=None)
    finding = Finding(Severity.CRITICAL, "state-lost", "/x", "gone", "do this")
    known = Finding(Severity.CRITICAL, "no-controller", "/controller", "absent", "move")
    health = health_of(found, age_s=0, silent={3: "refused", 9: "not registered"}, findings=[finding, known])
    texts = [problem.text for problem in health.problems]
    assert texts == [
        "the cluster has no controller",
        "1 partition below min.insync.replicas",
        "broker 3 is registered but does not answer",
        "the doctor has 1 finding (state-lost at /x)",
    ]
    assert "acks=all" in health.problems[1].cure and "wait until brokers 2, 3 caught up" in health.problems[1].cure


def test_health_is_never_answered_from_an_old_look() -> None:
    old = health_of(snapshot(HEALTHY), age_s=12.3, trouble="connection lost")
    assert old.level is Level.BAD
    assert old.sentence == "Unknown: ZooKeeper has not answered for 12 s (connection lost)."
    none = health_of(None, age_s=0)
    assert (none.level, none.sentence) == (Level.WARNING, "The cluster is being read for the first time.")


def test_a_doctor_who_has_not_looked_yet_is_said() -> None:
    found = health_of(snapshot(HEALTHY), age_s=0.1, findings=None)
    assert (found.level, found.sentence) == (Level.GOOD, "Healthy: 3 brokers, 3 partitions, all in sync.")
    assert [problem.text for problem in found.problems] == ["the doctor has not looked yet"]
