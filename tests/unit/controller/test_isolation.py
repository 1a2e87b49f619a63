"""One znode, broker or operation that fails concerns itself: it is named, and its neighbours go on (design D17)."""

from __future__ import annotations

import asyncio
import gc
import json
import time
import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from klamm.controller.context.controller_context import ControllerContext
from klamm.controller.context.states import ReplicaState
from klamm.controller.decisions import deletion
from klamm.controller.decisions.steps import Pause
from klamm.controller.events import RetryPending, StopReplicaResponse
from klamm.controller.execution import broker_channel, request_encoder
from klamm.controller.statistics import GAUGES
from klamm.controller.watched_paths import CHILDREN
from klamm.model.brokers import Broker, Endpoint, LiveBroker
from klamm.model.errors import ErrorCode
from klamm.model.ids import BrokerEpoch, BrokerId, ControllerEpoch, TopicPartition
from klamm.model.partition import Assignment
from klamm.model.ports import OPEN_ACL, Acl
from klamm.simulation.loop import run_in_virtual_time
from klamm.testing.zookeeper import InMemoryZooKeeper
from klamm.zookeeper.znodes import isr_change, log_dir_event, partition_state, reassign_partitions

from .scenario import US, Scenario
from .test_reassignment import alter, assigned, code, prepared

READ_ONLY = (Acl(1, "world", "anyone"),)
NOTHING = (Acl(16, "world", "anyone"),)


async def protect(scenario: Scenario, *paths: str, acl: tuple[Acl, ...] = READ_ONLY) -> None:
    for path in paths:
        await scenario.zk.set_acl(path, acl)


def refused(scenario: Scenario) -> dict[str, str]:
    return {record.cause: record.detail for record in scenario.sink.decisions("write-refused")}


def register(scenario: Scenario, broker: int, host: str, port: int = 9092) -> None:
    document = {
        "listener_security_protocol_map": {"PLAINTEXT": "PLAINTEXT"},
        "endpoints": [f"PLAINTEXT://{host}:{port}"],
        "jmx_port": -1,
        "version": 4,
    }
    scenario.zk.put(f"/brokers/ids/{broker}", json.dumps(document), owner=1000 + broker)


# --- a host that no resolver takes, a channel that fails ---


@pytest.mark.parametrize("host", ["broker-7..svc", f"{'x' * 64}.example.org", "a\0b"])
async def test_a_registration_that_no_resolver_takes_is_reported_and_set_aside(host: str) -> None:
    async with Scenario().running(1) as scenario:
        await scenario.after(lambda: register(scenario, 7, host))
        assert scenario.controller.is_active
        assert scenario.controller.controller_epoch == 5
        assert scenario.controller.statistics().live_brokers == (1, US)
        (skipped,) = scenario.sink.decisions("znode-skipped")
        assert skipped.cause == "/brokers/ids/7"


async def _channel_that_fails(scenario: Scenario, seconds: float) -> int:
    """Connecting to broker 1 raises what no network should raise. Returns the elections meanwhile."""
    connect = scenario.network.connect

    async def failing(factory: Any, host: str, port: int) -> asyncio.Transport:
        if port == 9001:
            raise UnicodeError("label empty or too long")
        return await connect(factory, host, port)

    scenario.network.connect = failing  # type: ignore[method-assign]
    scenario.prepare(1, 2)
    scenario.create_topic("t", [2])
    async with scenario.controller.running():
        await asyncio.sleep(seconds)
        assert scenario.controller.is_active
        assert scenario.state("t", 0)[0] == 2
        scenario.network.connect = connect  # type: ignore[method-assign]
        scenario.talk()
        await asyncio.sleep(broker_channel.CRASH_PAUSE_MAX_S + 1)
        assert any(line.startswith("1 <- UpdateMetadata") for line in scenario.talk()), "it goes on where it stopped"
        return int(scenario.zk.text("/controller_epoch")) - 4


def test_a_channel_that_fails_concerns_its_broker_alone() -> None:
    scenario = Scenario()
    assert run_in_virtual_time(_channel_that_fails(scenario, 30.0)) == 1
    failures = scenario.sink.decisions("part-failed")
    assert {record.cause for record in failures} == {"channel to broker 1"}
    assert 3 <= len(failures) <= 6, "the pauses grow"


async def _terms_that_die_young(scenario: Scenario, seconds: float, lives_s: float) -> int:
    """Every term fails this long after its load."""
    scenario.prepare(1)

    async def explode(event: object) -> None:
        raise RuntimeError("a bug")

    async with scenario.controller.running():
        deadline = asyncio.get_running_loop().time() + seconds
        while asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(lives_s)
            term = scenario.controller._term
            if term is not None:
                term.handle = explode  # type: ignore[method-assign]
                scenario.controller._queue.put_nowait(RetryPending())
                await asyncio.sleep(0.01)
    return int(scenario.zk.text("/controller_epoch")) - 4


def test_pauses_grow_while_terms_die_soon_after_their_load() -> None:
    assert run_in_virtual_time(_terms_that_die_young(Scenario(), 60.0, 0.1)) <= 6  # after 0, 1, 3, 7, 15, 31 s


def test_a_term_that_has_lived_for_a_while_starts_the_pauses_anew() -> None:
    assert run_in_virtual_time(_terms_that_die_young(Scenario(), 640.0, 62.0)) >= 10


# --- operations that resist ---


def multis(scenario: Scenario, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts bulk writes from now on."""
    counted: Counter[str] = Counter()
    write_many = InMemoryZooKeeper.write_many

    async def counting(self: InMemoryZooKeeper, *rest: Any) -> Any:
        counted["multis"] += 1
        return await write_many(self, *rest)

    monkeypatch.setattr(InMemoryZooKeeper, "write_many", counting)
    return counted


@pytest.mark.parametrize("locked", [(7,), (0, 7, 19), tuple(range(0, 200, 9))])
async def test_a_state_that_cannot_be_written_leaves_its_neighbours_alone(
    locked: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Scenario().running(1, 2) as scenario:
        await scenario.after(lambda: scenario.create_topic("t", *[[1, 2]] * 200))
        paths = [partition_state.path(TopicPartition("t", n)) for n in locked]
        await protect(scenario, *paths)
        counted = multis(scenario, monkeypatch)
        await scenario.after(lambda: scenario.stop_broker(1))
        led = {n for n in range(200) if scenario.state("t", n)[0] == 2}
        assert led == set(range(200)) - set(locked)
        assert refused(scenario) == {path: f"NoAuth {path}" for path in paths}
        assert any("NoAuth" in record.detail for record in scenario.sink.decisions("election-failed"))
        assert counted["multis"] < 20 * len(locked) + 10
        assert scenario.controller.controller_epoch == 5


async def test_a_fail_over_tells_brokers_a_state_that_it_cannot_write() -> None:
    """The leader is gone, so every other partition like this one is told of by the write of its new state."""
    scenario = Scenario()
    scenario.prepare(1)
    scenario.create_topic("t", [2])
    scenario.put_state("t", 0, 2, 3, [2], 4)
    await protect(scenario, partition_state.path(TopicPartition("t", 0)))
    async with scenario.controller.running():
        await scenario.settle()
        told = [line for line in scenario.talk() if line.startswith("1 <- UpdateMetadata")]
        assert any("t-0 leader 2 e3 isr [2] v0 offline [2]" in line for line in told)


async def test_a_partition_that_is_rewritten_in_a_loop_does_not_starve_its_neighbours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with Scenario().running(1, 2, 3) as scenario:
        await scenario.after(lambda: scenario.create_topic("t", *[[1, 2, 3]] * 50))
        write_many = InMemoryZooKeeper.write_many

        async def rewritten(self: InMemoryZooKeeper, ops: Any, *rest: Any) -> Any:
            if any("/partitions/0/state" in op.path for op in ops):
                leader, epoch, isr, _ = scenario.state("t", 0)
                scenario.put_state("t", 0, leader, epoch, list(reversed(isr)), 5)
            return await write_many(self, ops, *rest)

        monkeypatch.setattr(InMemoryZooKeeper, "write_many", rewritten)
        await scenario.after(lambda: scenario.stop_broker(1))
        assert [n for n in range(1, 50) if scenario.state("t", n)[0] == 1] == []


async def test_a_topic_whose_znodes_cannot_be_created_leaves_others_alone() -> None:
    async with Scenario().running(1, 2) as scenario:
        for topic in ("a", "locked", "z"):
            scenario.create_topic(topic, [1, 2], [2, 1])
        await protect(scenario, "/brokers/topics/locked")
        await scenario.settle()
        assert [scenario.state(topic, n)[0] for topic in "az" for n in (0, 1)] == [1, 2, 1, 2]
        assert refused(scenario) == {"/brokers/topics/locked/partitions": "NoAuth /brokers/topics/locked/partitions"}


async def test_a_topic_that_is_gone_leaves_others_of_the_same_creation_alone() -> None:
    async with Scenario().running(1, 2) as scenario:

        def create() -> None:
            for topic in ("a", "gone", "z"):
                scenario.create_topic(topic, [1, 2])
            scenario.zk.before_write = lambda: scenario.zk.remove("/brokers/topics/gone")

        await scenario.after(create)
        assert [scenario.state(topic, 0)[0] for topic in "az"] == [1, 1]


@pytest.mark.parametrize("parent", [isr_change.PARENT, log_dir_event.PARENT])
@pytest.mark.parametrize("at_fail_over", [False, True])
async def test_one_notification_that_cannot_be_deleted_leaves_the_others_alone(parent: str, at_fail_over: bool) -> None:
    async with Scenario().running(1, 2) as scenario:
        await scenario.after(lambda: scenario.create_topic("t", [1, 2]))
        prefix, data = (
            (isr_change.PREFIX, isr_change.encode([TopicPartition("t", 0)]))
            if parent == isr_change.PARENT
            else (log_dir_event.PREFIX, log_dir_event.encode(BrokerId(1)))
        )

        def notify() -> None:
            for n in range(5):
                scenario.zk.put(f"{prefix}{n:010d}", data)
                scenario.zk.put(f"{parent}/junk/child", "x")

        if at_fail_over:
            scenario.zk.forget_watches(parent)
            notify()
            await scenario.after(lambda: scenario.zk.remove("/controller"))
        else:
            await scenario.after(notify)
        assert scenario.zk.tree.children(parent) == ["junk"]
        assert refused(scenario) == {f"{parent}/junk": f"NotEmpty {parent}/junk"}


@pytest.mark.parametrize(
    "path", ["/brokers/topics/bad", "/brokers/topics/bad/partitions/1/state", "/brokers/ids/3", isr_change.PARENT]
)
async def test_a_znode_that_may_not_be_read_is_named_and_everything_else_is_led(path: str) -> None:
    async with Scenario().running(1, 2, 3) as scenario:
        await scenario.after(lambda: scenario.create_topic("good", *[[1, 2]] * 5))
        await scenario.after(lambda: scenario.create_topic("bad", [1, 2], [1, 2]))
        await protect(scenario, path, acl=NOTHING)
        await scenario.after(lambda: scenario.zk.remove("/controller"))
        await scenario.after(lambda: scenario.stop_broker(1))
        assert scenario.controller.is_active
        assert scenario.controller.controller_epoch == 6
        assert {scenario.state("good", n)[0] for n in range(5)} == {2}
        if path.endswith("state"):
            assert scenario.state("bad", 0)[0] == 2
        assert path in {record.cause for record in scenario.sink.decisions("znode-skipped")}


async def test_a_topic_znode_that_grows_too_large_refuses_the_request() -> None:
    async with Scenario().running(1001, 1002, 1003, 1004, 1005, 1006) as scenario:
        await scenario.after(lambda: scenario.create_topic("t", *[[1001, 1002, 1003]] * 60))
        await scenario.after(lambda: scenario.create_topic("small", [1001]))
        size = len(scenario.zk.data("/brokers/topics/t"))
        scenario.zk._frame_bytes_max = size + 17_000
        target = tuple(map(BrokerId, (1004, 1005, 1006)))
        names = [TopicPartition("t", n) for n in range(60)]
        results = await scenario.controller.alter_partition_reassignments(
            {**dict.fromkeys(names, target), TopicPartition("small", 0): target}
        )
        await scenario.settle()
        error = results[TopicPartition("t", 0)]
        assert code(error) is ErrorCode.INVALID_REPLICA_ASSIGNMENT
        assert f"limit is {size + 17_000}" in str(error)
        assert results[TopicPartition("small", 0)] is None
        assert scenario.sink.decisions("quarantined") == []
        assert scenario.controller.controller_epoch == 5


# --- refused steps ---


@pytest.mark.parametrize("protocol", ["2.5", "2.6"])
@pytest.mark.parametrize("target", [None, [5]])
async def test_a_refused_cancel_or_override_tells_nothing(target: list[int] | None, protocol: str) -> None:
    """[1] moves to [2, 3, 4]; 4 has not joined, 1 fell behind, 2 leads. Neither request leaves a replica in sync."""
    async with Scenario(inter_broker_protocol_version=protocol).running(1, 2, 3, 4, 5) as scenario:
        await prepared(scenario, (1,))
        await alter(scenario, [2, 3, 4])
        _, epoch, _, _ = scenario.state("t", 0)
        scenario.put_state("t", 0, 2, epoch, [2, 3], 5)
        await scenario.settle()
        before = assigned(scenario)
        scenario.talk()
        assert code(await alter(scenario, target)) is ErrorCode.INVALID_REPLICA_ASSIGNMENT
        assert [line for line in scenario.talk() if "StopReplica" in line] == []
        assert assigned(scenario) == before


# --- unclean elections ---


def unclean(scenario: Scenario, value: str) -> Callable[[], None]:
    def switch() -> None:
        config = {"version": 1, "config": {"unclean.leader.election.enable": value}}
        scenario.zk.put("/config/topics/t", json.dumps(config))
        change = {"version": 2, "entity_path": "topics/t"}
        scenario.zk.put("/config/changes/config_change_0000000000", json.dumps(change))

    return switch


async def test_a_permission_that_was_withdrawn_is_not_used() -> None:
    async with Scenario().running(1, 2, 3) as scenario:
        allow = {"unclean.leader.election.enable": "true"}
        await scenario.after(lambda: scenario.create_topic("t", [1, 2], [3], config=allow))
        await scenario.after(lambda: scenario.stop_broker(3))  # partition 1 makes the controller look: it is allowed
        await scenario.after(lambda: scenario.start_broker(3))
        await scenario.after(unclean(scenario, "false"))
        scenario.put_state("t", 0, 1, 0, [1], 5)  # the leader has just shrunk its ISR
        await scenario.after(lambda: scenario.stop_broker(1))
        assert scenario.state("t", 0)[0] == -1


async def test_a_permission_is_looked_up_for_the_isr_that_zookeeper_has() -> None:
    async with Scenario().running(1, 2) as scenario:
        allow = {"unclean.leader.election.enable": "true"}
        await scenario.after(lambda: scenario.create_topic("t", [1, 2], config=allow))
        scenario.put_state("t", 0, 1, 0, [1], 5)  # the controller still believes in [1, 2]
        await scenario.after(lambda: scenario.stop_broker(1))
        assert scenario.state("t", 0)[0] == 2


# --- states that are lost ---


async def test_a_partition_that_lost_its_state_gets_another_and_is_not_called_new() -> None:
    async with Scenario().running(1, 2) as scenario:
        await scenario.after(lambda: scenario.create_topic("t", [1, 2], [1, 2]))
        scenario.zk.remove("/brokers/topics/t/partitions/0/state")
        talk = await scenario.after(lambda: scenario.zk.remove("/controller"))
        assert scenario.state("t", 0)[:2] == (1, 6_000), "brokers would not obey an epoch below the lost one"
        entries = [line for line in talk if "LeaderAndIsr" in line and "t-0" in line]
        assert entries
        assert not [line for line in entries if "new" in line]
        (lost,) = scenario.sink.decisions("state-lost")
        assert lost.detail == "t-0"


@pytest.mark.parametrize("lost", ["state", "junk", "partition"])
async def test_a_topic_that_lost_a_state_is_deleted(lost: str) -> None:
    async with Scenario().running(1, 2) as scenario:
        await scenario.after(lambda: scenario.create_topic("t", [1, 2], [1, 2]))
        if lost == "junk":
            scenario.zk.put("/brokers/topics/t/partitions/0/state", "junk")
        else:
            scenario.zk.remove(f"/brokers/topics/t/partitions/0{'/state' if lost == 'state' else ''}")
        await scenario.after(lambda: scenario.zk.put("/admin/delete_topics/t"))
        assert "/brokers/topics/t" not in scenario.zk.tree.nodes
        assert scenario.controller.statistics().deletions == ()


async def test_a_deletion_that_cannot_go_on_says_why() -> None:
    async with Scenario().running(1, 2) as scenario:
        await scenario.after(lambda: scenario.create_topic("t", [1, 2]))
        await protect(scenario, "/brokers/topics/t/partitions/0/state")
        await scenario.after(lambda: scenario.zk.put("/admin/delete_topics/t"))
        ((topic, why),) = scenario.controller.statistics().deletions
        assert topic == "t"
        assert why


# --- parents that are deleted and made again ---


@pytest.mark.parametrize("parent", sorted(CHILDREN))
async def test_a_watched_parent_that_was_deleted_is_watched_again(parent: str) -> None:
    async with Scenario().running(1, 2) as scenario:
        for topic in "ab":
            await scenario.after(lambda topic=topic: scenario.create_topic(topic, [1, 2]))  # type: ignore[misc]
        registrations = {n: scenario.zk.data(f"/brokers/ids/{n}") for n in (1, 2, US)}
        await scenario.after(lambda: scenario.zk.remove(parent))
        assert parent in scenario.zk.tree.nodes
        assert scenario.controller.is_active
        if parent == "/brokers/ids":
            await scenario.after(lambda: [scenario.start_broker(n) for n in registrations])
            assert scenario.controller.statistics().live_brokers == (1, 2, US)
        elif parent == "/brokers/topics":
            await scenario.after(lambda: scenario.create_topic("c", [2]))
            assert scenario.state("c", 0)[0] == 2
        elif parent == "/admin/delete_topics":
            await scenario.after(lambda: scenario.zk.put("/admin/delete_topics/b"))
            assert "/brokers/topics/b" not in scenario.zk.tree.nodes
        elif parent == isr_change.PARENT:
            await scenario.after(lambda: scenario.zk.put(f"{isr_change.PREFIX}0000000001", isr_change.encode([])))
            assert scenario.zk.tree.children(parent) == []
        elif parent == log_dir_event.PARENT:
            event = log_dir_event.encode(BrokerId(1))
            await scenario.after(lambda: scenario.zk.put(f"{log_dir_event.PREFIX}0000000001", event))
            assert scenario.zk.tree.children(parent) == []


# --- requests that cannot go on yet ---


async def test_an_entry_of_the_old_znode_waits_for_its_brokers_and_says_so() -> None:
    """After a restart of the whole cluster brokers register one after the other."""
    scenario = Scenario()
    scenario.prepare(1)
    scenario.create_topic("t", [1])
    scenario.put_state("t", 0, 1, 3, [1], 4)
    entries = {TopicPartition("t", 0): (BrokerId(2),), TopicPartition("nobody", 0): (BrokerId(1),)}
    scenario.zk.put(reassign_partitions.PATH, reassign_partitions.encode(entries))
    async with scenario.controller.running():
        await scenario.settle()
        left = reassign_partitions.decode("", scenario.zk.data(reassign_partitions.PATH))
        assert left == {TopicPartition("t", 0): (2,)}, "an unknown topic is refused, a broker that is away is not"
        assert scenario.controller.statistics().reassignments == (("t-0", "brokers [2] to start"),)
        (waits,) = scenario.sink.decisions("reassignment-waits")
        assert "brokers [2] to start" in waits.detail
        await scenario.after(lambda: scenario.start_broker(2))
        _, epoch, _, _ = scenario.state("t", 0)
        scenario.put_state("t", 0, 1, epoch, [1, 2], 5)
        await scenario.settle()
        assert assigned(scenario) == ([2], [], [])
        assert reassign_partitions.PATH not in scenario.zk.tree.nodes


async def test_a_later_request_overrides_an_entry_that_waits() -> None:
    async with Scenario().running(1, 2, 3) as scenario:
        await scenario.after(lambda: scenario.create_topic("t", [1]))
        entries = {TopicPartition("t", 0): (BrokerId(7),)}
        await scenario.after(lambda: scenario.zk.put(reassign_partitions.PATH, reassign_partitions.encode(entries)))
        assert reassign_partitions.PATH in scenario.zk.tree.nodes
        assert await alter(scenario, [2]) is None
        assert reassign_partitions.PATH not in scenario.zk.tree.nodes


# --- deletions and the metadata of brokers ---


async def test_a_topic_is_not_gone_before_every_broker_has_dropped_it() -> None:
    """Broker 3 has no replica. If the controller died before 3 heard of the deletion, nothing would tell its successor
    that 3 still has the topic in its metadata."""
    async with Scenario().running(1, 2, 3) as scenario:
        await scenario.after(lambda: scenario.create_topic("t", [1, 2]))
        scenario.network.silent.add(3)
        await scenario.after(lambda: scenario.zk.put("/admin/delete_topics/t"))
        assert "/brokers/topics/t" in scenario.zk.tree.nodes
        (waits,) = scenario.controller.statistics().deletions
        assert waits == ("t", "brokers [3] to drop it from their metadata")
        scenario.network.silent.clear()
        talk = await scenario.after(lambda: scenario.zk.remove("/controller"))
        assert any(line.startswith("3 <- UpdateMetadata {t-0 leader -2") for line in talk)
        assert "/brokers/topics/t" not in scenario.zk.tree.nodes


async def test_a_broker_that_refused_to_drop_a_topic_is_told_again() -> None:
    async with Scenario().running(1, 2) as scenario:
        await scenario.after(lambda: scenario.create_topic("t", [1, 2]))
        scenario.network.refused_metadata.add(2)
        await scenario.after(lambda: scenario.zk.put("/admin/delete_topics/t"))
        assert scenario.controller.statistics().deletions == (("t", "brokers [2] to drop it from their metadata"),)
        scenario.network.refused_metadata.clear()
        await scenario.after(lambda: scenario.controller._queue.put_nowait(RetryPending()))
        assert "/brokers/topics/t" not in scenario.zk.tree.nodes


async def test_a_broker_whose_registration_ends_holds_no_deletion_up() -> None:
    async with Scenario().running(1, 2, 3) as scenario:
        await scenario.after(lambda: scenario.create_topic("t", [1, 2]))
        scenario.network.silent.add(3)
        await scenario.after(lambda: scenario.zk.put("/admin/delete_topics/t"))
        await scenario.after(lambda: scenario.stop_broker(3))
        assert "/brokers/topics/t" not in scenario.zk.tree.nodes


async def test_a_marker_that_is_seen_before_its_topic_is_kept() -> None:
    async with Scenario().running(1, 2) as scenario:

        def mark_and_create() -> None:
            scenario.zk.put("/admin/delete_topics/x")  # the event that will read all markers
            scenario.create_topic("t", [1, 2])
            scenario.zk.put("/admin/delete_topics/t")

        await scenario.after(mark_and_create)
        assert scenario.zk.tree.children("/admin/delete_topics") == []
        assert "/brokers/topics/t" not in scenario.zk.tree.nodes


async def test_offline_partitions_of_a_topic_being_deleted_are_not_counted() -> None:
    async with Scenario().running(1, 2) as scenario:
        await scenario.after(lambda: scenario.create_topic("t", [1], [2]))
        await scenario.after(lambda: scenario.stop_broker(1))
        assert scenario.controller.statistics().counts.offline_partitions == 1
        scenario.zk.forget_watches("/admin/delete_topics")
        scenario.zk.put("/admin/delete_topics/t")
        await scenario.after(lambda: scenario.zk.remove("/controller"))  # the next one holds the deletion back
        assert scenario.controller.statistics().deletions
        assert scenario.controller.statistics().counts.offline_partitions == 0
        await scenario.after(lambda: scenario.start_broker(1))
        assert "/brokers/topics/t" not in scenario.zk.tree.nodes
        assert scenario.controller.statistics().counts.offline_partitions == 0


def _waiting_deletions(topics: int, partitions: int) -> ControllerContext:
    """Deletions that wait for broker 3, which is dead; the other replicas are gone."""
    view = ControllerContext(ControllerEpoch(1))
    for broker in (1, 2):
        live = Broker(BrokerId(broker), (Endpoint("PLAINTEXT", "h", 9000 + broker),))
        view.brokers[BrokerId(broker)] = LiveBroker(live, BrokerEpoch(broker))
    replicas = Assignment(tuple(map(BrokerId, (1, 2, 3))))
    for topic in map(str, range(topics)):
        added = view.add_partitions(topic, dict.fromkeys(range(partitions), replicas))
        for broker in replicas.replicas:
            view.replicas.load(
                broker, added, ReplicaState.DELETION_INELIGIBLE if broker == 3 else ReplicaState.DELETION_SUCCESSFUL
            )
        view.start_deleting(topic)
    return view


def test_a_deletion_is_not_held_for_a_broker_that_has_left_the_topic() -> None:
    """It was dead at the election, and a reassignment has moved its replica away since."""
    view = _waiting_deletions(1, 1)
    view.hold_deletions()
    assert "[3], which were dead" in deletion.what_is_left(view, "0", retry=True).waits_for
    (partition,) = view.partitions_of("0")
    view.replace_assignment(partition, Assignment(tuple(map(BrokerId, (1, 2)))))
    assert deletion.what_is_left(view, "0", retry=True).stage is not deletion.DeletionStage.WAIT


def test_a_thousand_deletions_that_wait_do_not_hold_the_loop() -> None:
    view = _waiting_deletions(1_000, 50)
    longest, decision = 0.0, deletion.resume_deletions(view, retry=True)
    while True:
        started = time.thread_time()
        step = next(decision, None)
        longest = max(longest, time.thread_time() - started)
        if step is None:
            break
        assert step == Pause()
    started = time.thread_time()
    for _ in GAUGES:
        assert view.counts().topics_ineligible_to_delete == 1_000
    assert view.counts().replicas_to_delete == 150_000
    assert max(longest, time.thread_time() - started) < 0.05


# --- what strangers write ---


async def test_a_replica_id_that_does_not_fit_concerns_its_topic() -> None:
    async with Scenario().running(1, 2) as scenario:
        await scenario.after(lambda: scenario.create_topic("bad", [1, 2**33]))
        await scenario.after(lambda: scenario.create_topic("good", [1, 2]))
        assert scenario.controller.controller_epoch == 5
        assert scenario.state("good", 0)[0] == 1
        assert [record.cause for record in scenario.sink.decisions("znode-skipped")] == ["/brokers/topics/bad"]


async def test_a_broker_counts_once_in_an_isr() -> None:
    async with Scenario().running(1, 2) as scenario:
        await scenario.after(lambda: scenario.create_topic("t", [1, 2]))
        scenario.put_state("t", 0, 1, 0, [1, 1], 5)
        await scenario.after(lambda: scenario.stop_broker(1))
        assert scenario.state("t", 0)[:3] == (-1, 1, [1])


BAD_NAME = b"\x00\x00" + b"\x02" + b"\x02\xff" + b"\x00\x00\x00\x00" + b"\x00\x00" + b"\x00" + b"\x00"
"""An answer that names one partition, of a topic whose name is not text."""


async def test_an_answer_to_leader_and_isr_that_is_not_text_ends_no_term() -> None:
    async with Scenario().running(1, 2) as scenario:
        await scenario.after(lambda: scenario.create_topic("t", [1, 2]))
        term = scenario.controller._term
        assert term is not None
        term.context.mark_offline_dirs(BrokerId(1), [0])
        epoch = term.context.brokers[BrokerId(1)].epoch
        answer = request_encoder._leader_and_isr_response(BrokerId(1), epoch, memoryview(BAD_NAME))
        await scenario.after(lambda: scenario.controller._queue.put_nowait(answer))
        assert scenario.controller.controller_epoch == 5
        assert scenario.sink.decisions("answer-invalid")


def test_an_answer_to_stop_replica_that_is_not_text_fails_the_deletion() -> None:
    asked = frozenset({TopicPartition("t", 0)})
    refused_entry = BAD_NAME.replace(b"\x00\x00\x00\x00\x00\x00", b"\x00\x00\x00\x00\x00\x38")
    answer = request_encoder._stop_replica_response(BrokerId(1), asked, memoryview(refused_entry))
    assert isinstance(answer, StopReplicaResponse)
    assert (answer.error, answer.asked) == (ErrorCode.UNKNOWN_SERVER_ERROR, asked)


# --- terms ---


async def test_giving_the_office_back_survives_a_lost_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("klamm.zookeeper.retries.RECONNECT_PAUSE_S", 0)
    async with Scenario().running(1) as scenario:
        term = scenario.controller._term
        assert term is not None

        async def explode(event: object) -> None:
            scenario.zk.lose_answers = ["dropped"]
            raise RuntimeError("a bug")

        monkeypatch.setattr(term, "handle", explode)
        await scenario.after(lambda: scenario.controller._queue.put_nowait(RetryPending()))
        assert not scenario.controller.is_active
        assert "/controller" not in scenario.zk.tree.nodes


async def test_a_former_term_is_freed_without_the_garbage_collector() -> None:
    """What a term has loaded is frozen, so the collector would never look at it again."""
    async with Scenario().running(1, 2) as scenario:
        await scenario.after(lambda: scenario.create_topic("t", *[[1, 2]] * 10))
        gc.disable()
        try:
            term = scenario.controller._term
            assert term is not None
            parts = [weakref.ref(part) for part in (term, term.context, term.runner, term._encoder, term._reader)]
            del term
            await scenario.after(lambda: scenario.zk.remove("/controller"))
            assert scenario.controller.is_active
            assert [part() for part in parts] == [None] * len(parts)
        finally:
            gc.enable()


async def test_a_topic_that_cannot_be_deleted_whole_keeps_its_marker() -> None:
    """Without the marker, what is left would be a topic again, and its replicas would come back empty."""
    async with Scenario().running(1, 2) as scenario:
        await scenario.after(lambda: scenario.create_topic("t", [1, 2]))
        await protect(scenario, "/brokers/topics/t")  # nobody may delete what is below
        await scenario.after(lambda: scenario.zk.put("/admin/delete_topics/t"))
        kept = {"/brokers/topics/t/partitions/0/state", "/config/topics/t", "/admin/delete_topics/t"}
        assert kept <= scenario.zk.tree.nodes.keys()
        assert "/brokers/topics/t/partitions" in refused(scenario)
        assert scenario.controller.statistics().deletions == (("t", "its znodes to be deleted"),)


async def test_a_completed_reassignment_is_written_when_its_topic_may_be_written() -> None:
    """A change of an ACL fires no watch, so the slow timer tries again."""
    async with Scenario().running(1, 2) as scenario:
        await scenario.after(lambda: scenario.create_topic("t", [1]))
        assert await alter(scenario, [2]) is None
        await protect(scenario, "/brokers/topics/t", acl=(Acl(17, "world", "anyone"),))
        _, epoch, _, _ = scenario.state("t", 0)
        scenario.put_state("t", 0, 1, epoch, [1, 2], 5)
        await scenario.settle()
        assert assigned(scenario) == ([2, 1], [2], [1])
        assert scenario.controller.statistics().reassignments == (("t-0", "its topic znode to be written"),)
        await protect(scenario, "/brokers/topics/t", acl=OPEN_ACL)
        await scenario.after(lambda: scenario.controller._queue.put_nowait(RetryPending()))
        assert assigned(scenario) == ([2], [], [])
        assert scenario.controller.statistics().reassignments == ()
