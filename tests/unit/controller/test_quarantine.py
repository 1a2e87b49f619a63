"""A fault that concerns one znode: the controller goes on with the others and does not fail twice (design D14)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from klamm.controller.context.controller_context import ControllerContext
from klamm.controller.decisions import leader_elections, leadership
from klamm.controller.decisions import topics as topics_module
from klamm.controller.decisions.faults import ZNodeFault
from klamm.controller.events import BalanceLeaders, BrokerModifications, ZkPartitionReassignment
from klamm.controller.execution import assignments
from klamm.controller.execution.loading import ZNodeReader
from klamm.controller.execution.quarantine import QUARANTINED_MAX, znode_concerned
from klamm.controller.execution.request_batch import RequestBatch
from klamm.model.errors import BadArguments
from klamm.model.ids import BrokerId, TopicPartition
from klamm.zookeeper.znodes import document, preferred_replica_election, quarantine, reassign_partitions

from .scenario import US, Scenario


def explode_on(monkeypatch: pytest.MonkeyPatch, *topics: str) -> Callable[[], None]:
    """No rule can decide about these topics: neither their first state nor a new leader. Returns the cure."""

    def exploding(make_rule: Callable[..., Any]) -> Callable[..., Any]:
        def make(view: ControllerContext, *rest: Any, **more: Any) -> Any:
            rule = make_rule(view, *rest, **more)

            def decide(partition: int, *state: Any) -> Any:
                if view.topic_of(partition) in topics:
                    raise RuntimeError("a bug")
                return rule(partition, *state)

            return decide

        return make

    first_rule, offline_rule = exploding(leadership.first_rule), exploding(leadership.offline_rule)
    for module in (leadership, topics_module):
        monkeypatch.setattr(module, "first_rule", first_rule)
        monkeypatch.setattr(module, "offline_rule", offline_rule)
    return monkeypatch.undo


async def test_a_topic_that_cannot_be_decided_is_set_aside_and_the_others_are_led(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with Scenario().running(1, 2) as scenario:
        await scenario.after(lambda: scenario.create_topic("good", [1, 2]))
        cure = explode_on(monkeypatch, "bad")
        await scenario.after(lambda: scenario.create_topic("bad", [1, 2]))
        assert scenario.controller.is_active
        assert scenario.controller.controller_epoch == 6  # a new term of the same controller
        assert not scenario.sink.decisions("controller-failed")
        (recorded,) = scenario.sink.decisions("quarantined")
        assert (recorded.cause, recorded.detail) == ("/brokers/topics/bad", "RuntimeError: a bug")
        assert scenario.controller.statistics().quarantined == (("/brokers/topics/bad", "RuntimeError: a bug"),)
        assert scenario.metrics.value("klamm.controller", "ControllerElection", "QuarantinedCount") == 1

        # It goes on leading the others.
        await scenario.after(lambda: scenario.stop_broker(1))
        assert scenario.state("good", 0)[0] == 2
        await scenario.after(lambda: scenario.create_topic("later", [2]))
        assert scenario.state("later", 0)[0] == 2
        assert scenario.controller.controller_epoch == 6

        # Deleting it would leave its files on the brokers: the request waits until the topic is repaired.
        await scenario.after(lambda: scenario.zk.put("/admin/delete_topics/bad"))
        assert "/brokers/topics/bad" in scenario.zk.tree.nodes
        assert "/admin/delete_topics/bad" in scenario.zk.tree.nodes
        ((waiting, why),) = scenario.controller.statistics().deletions
        assert (waiting, "quarantine" in why) == ("bad", True)
        await scenario.after(lambda: scenario.zk.remove("/admin/delete_topics/bad"))

        # Once repaired it is a topic like any other.
        cure()
        await scenario.after(lambda: scenario.create_topic("bad", [2]))
        assert scenario.state("bad", 0)[0] == 2
        assert scenario.controller.statistics().quarantined == ()
        assert len(scenario.sink.decisions("quarantine-ended")) == 1


async def test_a_fault_in_the_fail_over_and_the_successor(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = Scenario()
    scenario.prepare(1, 2)
    for topic in ("bad", "good"):
        scenario.create_topic(topic, [7, 1])
        scenario.put_state(topic, 0, 7, 3, [7, 1], 4)
    explode_on(monkeypatch, "bad")
    async with scenario.controller.running():
        await scenario.settle()
        assert scenario.controller.is_active
        assert scenario.state("good", 0)[0] == 1
        assert scenario.state("bad", 0)[0] == -1  # out of the ISR before the election, which failed
        assert len(scenario.sink.decisions("quarantined")) == 1

    # Another broker is elected: it skips what its predecessor set aside.
    heir = Scenario(scenario.zk.tree, session_id=2)
    async with heir.controller.running():
        await heir.settle()
        assert heir.controller.is_active
        assert heir.sink.decisions("quarantined") == []
        assert [kept.cause for kept in heir.sink.decisions("quarantine-kept")] == ["/brokers/topics/bad"]
        assert heir.controller.controller_epoch == scenario.controller._election._greatest_seen + 1

    # Znodes that have changed since are released, and junk in the list is deleted.
    monkeypatch.undo()
    scenario.create_topic("bad", [7, 1])
    scenario.zk.put(f"{quarantine.PARENT}/junk", "junk")
    last = Scenario(scenario.zk.tree, session_id=3)
    async with last.controller.running():
        await last.settle()
        assert last.controller.statistics().quarantined == ()
        assert scenario.zk.tree.children(quarantine.PARENT) == []
        assert last.state("bad", 0)[0] == 1


Act = Callable[[Scenario], None]

ACTS: dict[str, Act] = {
    "creation": lambda scenario: scenario.create_topic("bad", [1, 2]),
    "broker failure": lambda scenario: scenario.stop_broker(2),
    "deletion": lambda scenario: scenario.zk.put("/admin/delete_topics/bad"),
    "reassignment": lambda scenario: scenario.zk.put(
        reassign_partitions.PATH, reassign_partitions.encode({TopicPartition("bad", 0): (BrokerId(2), BrokerId(US))})
    ),
    "election": lambda scenario: scenario.zk.put(
        preferred_replica_election.PATH, preferred_replica_election.encode([TopicPartition("bad", 0)])
    ),
    "balance": lambda scenario: scenario.controller._queue.put_nowait(BalanceLeaders()),
}


def of_bad(context: ControllerContext, partitions: Iterable[int], *_: Any) -> bool:
    return any(context.topic_of(partition) == "bad" for partition in partitions)


@pytest.mark.parametrize(
    ("owner", "function", "is_bad", "acts"),
    [
        (ControllerContext, "_take_indexes", lambda _, topic, numbers: topic == "bad", ["fail-over", "creation"]),
        (ControllerContext, "load_states", of_bad, ["fail-over"]),
        (
            ControllerContext,
            "put_states",
            of_bad,
            ["fail-over", "creation", "broker failure", "deletion", "reassignment"],
        ),
        (ControllerContext, "move_partitions", of_bad, ["creation", "broker failure", "deletion"]),
        (ControllerContext, "replace_assignment", lambda view, i, _: of_bad(view, [i]), ["reassignment"]),
        (ZNodeReader, "_sound", lambda _, path, *rest: path.endswith("/bad"), ["fail-over", "creation"]),
        (
            RequestBatch,
            "add_leader_and_isr",
            lambda _, view, i, brokers: of_bad(view, [i]),
            ["creation", "reassignment"],
        ),
        (assignments, "_merged", lambda topic, *_: topic == "bad", ["reassignment"]),
        (RequestBatch, "add_stop_replica", lambda _, view, broker, some: of_bad(view, some), ["deletion"]),
        (ControllerContext, "leader_of", lambda view, i: of_bad(view, [i]), ["balance"]),
        (leader_elections, "refusal", lambda view, name, _: view.partition(*name) is not None, ["election"]),
    ],
)
async def test_whatever_fails_for_one_topic_names_it(
    monkeypatch: pytest.MonkeyPatch, owner: Any, function: str, is_bad: Callable[..., bool], acts: list[str]
) -> None:
    """Wherever the controller works on many partitions at once: it goes on without the topic, it does not fail."""
    called = getattr(owner, function)

    def buggy(*arguments: Any, **more: Any) -> Any:
        if is_bad(*arguments):
            raise RuntimeError("a bug")
        return called(*arguments, **more)

    for act in acts:
        scenario = Scenario()
        scenario.prepare(1, 2)
        for topic in ("bad", "good") if act != "creation" else ("good",):
            scenario.create_topic(topic, [1, 2])
            scenario.put_state(topic, 0, 2, 3, [1, 2], 4)
        if act == "fail-over":
            monkeypatch.setattr(owner, function, buggy)
        async with scenario.controller.running():
            await scenario.settle()
            monkeypatch.setattr(owner, function, buggy)
            if act != "fail-over":
                await scenario.after(lambda scenario=scenario, act=act: ACTS[act](scenario))  # type: ignore[misc]
            quarantined = [recorded.cause for recorded in scenario.sink.decisions("quarantined")]
            assert (act, quarantined) == (act, ["/brokers/topics/bad"])
            assert not scenario.sink.decisions("controller-failed")
            assert scenario.controller.is_active
        monkeypatch.undo()


async def test_a_registration_that_makes_the_controller_fail_is_set_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    check = ZNodeReader._refuse_without_listener

    def buggy(self: ZNodeReader, path: str, broker: Any) -> None:
        if path.endswith("/2"):
            raise RuntimeError("a bug")
        check(self, path, broker)

    monkeypatch.setattr(ZNodeReader, "_refuse_without_listener", buggy)
    async with Scenario().running(1, 2) as scenario:
        assert [recorded.cause for recorded in scenario.sink.decisions("quarantined")] == ["/brokers/ids/2"]
        assert scenario.controller.statistics().live_brokers == (1, US)


async def test_what_cannot_be_read_back_is_still_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the controller would set it aside again and again without end."""
    monkeypatch.setattr(quarantine, "encode", lambda entry: b"junk")
    async with Scenario().running(1) as scenario:
        explode_on(monkeypatch, "bad")
        await scenario.after(lambda: scenario.create_topic("bad", [1]))
        assert len(scenario.sink.decisions("quarantined")) == 1
        assert scenario.controller.is_active


async def test_content_that_no_codec_expected_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    parse = document.parse

    def buggy(path: str, data: bytes | None) -> Any:
        if data and b"poison" in data:
            raise TypeError("unhashable")
        return parse(path, data)

    monkeypatch.setattr(document, "parse", buggy)
    async with Scenario().running(1) as scenario:
        await scenario.after(lambda: scenario.zk.put("/brokers/topics/bad", '{"poison":1}'))
        (skipped,) = scenario.sink.decisions("znode-skipped")
        assert (skipped.cause, skipped.detail) == ("/brokers/topics/bad", "cannot be decoded: TypeError: unhashable")
        await scenario.after(lambda: scenario.create_topic("good", [1]))
        assert scenario.state("good", 0)[0] == 1
        assert scenario.controller.controller_epoch == 5  # the same term


async def test_a_fault_that_meets_them_all_is_not_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Scenario().running(1) as scenario:
        names = [f"t{number:02}" for number in range(QUARANTINED_MAX + 2)]
        explode_on(monkeypatch, *names)

        def create() -> None:
            for name in names:
                scenario.create_topic(name, [1])

        await scenario.after(create)
        assert len(scenario.sink.decisions("quarantined")) == QUARANTINED_MAX
        assert len(scenario.sink.decisions("controller-failed")) == 1  # it backs off, and another broker may try
        assert scenario.controller.statistics().quarantined == ()
        assert scenario.zk.tree.children(quarantine.PARENT) == []
        assert "/controller" not in scenario.zk.tree.nodes


async def test_a_deposed_controller_writes_no_quarantine(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Scenario().running(1) as scenario:
        explode_on(monkeypatch, "bad")

        def overtake() -> None:
            scenario.zk.forget_watches("controller")
            scenario.zk.remove("/controller")
            scenario.zk.put("/controller", '{"version":1,"brokerid":1,"timestamp":"0"}', owner=1001)
            scenario.zk.put("/controller_epoch", "9")
            scenario.create_topic("bad", [1])

        await scenario.after(overtake)
        assert len(scenario.sink.decisions("quarantined")) == 1
        assert quarantine.path("/brokers/topics/bad") not in scenario.zk.tree.nodes
        assert not scenario.controller.is_active


def test_what_an_event_names_when_the_failure_names_nothing() -> None:
    error = RuntimeError("a bug")
    assert znode_concerned(BalanceLeaders(), error) is None
    assert znode_concerned(ZkPartitionReassignment(), error) == "/admin/reassign_partitions"
    assert znode_concerned(BrokerModifications(BrokerId(3)), error) == "/brokers/ids/3"
    assert znode_concerned(BalanceLeaders(), ZNodeFault("/brokers/topics/t")) == "/brokers/topics/t"


@pytest.mark.parametrize(
    ("path", "concerned"),
    [
        ("/brokers/topics/t", "/brokers/topics/t"),
        ("/brokers/topics/t/partitions/0/state", "/brokers/topics/t"),
        ("/brokers/ids/3", "/brokers/ids/3"),
        ("/brokers/topics", None),
        ("/config/changes", None),
    ],
)
def test_an_error_of_zookeeper_names_its_znode(path: str, concerned: str | None) -> None:
    """A topic znode above the limit of the server, for example: no later controller fails at the same write."""
    assert znode_concerned(BalanceLeaders(), BadArguments(path, "request of 2,000,000 bytes")) == concerned
