"""Election, fail-over, resignation, expiry, fencing and failures of a controller."""

from __future__ import annotations

import asyncio

import pytest

from klamm.controller.events import BrokerChange
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import BrokerEpoch, BrokerId
from klamm.model.ports import WatchEvent, WatchKind
from klamm.wire.apis import ApiKey

from .scenario import Scenario


@pytest.mark.case("CTL-01")
async def test_the_first_controller_has_epoch_1() -> None:
    scenario = Scenario()
    async with scenario.controller.running():
        await scenario.settle()
        assert scenario.zk.text("/controller_epoch") == "1"
        assert scenario.zk.tree.nodes["/controller_epoch"].version == 1
        assert '"brokerid":9' in scenario.zk.text("/controller")
        assert scenario.zk.tree.nodes["/controller"].owner == scenario.zk.session_id
        assert (scenario.controller.is_active, scenario.controller.controller_epoch) == (True, 1)
        assert scenario.metrics.value("kafka.controller", "KafkaController", "ActiveControllerCount") == 1


@pytest.mark.case("CTL-03")
async def test_each_election_raises_the_epoch() -> None:
    async with Scenario().running(1) as scenario:
        talk = await scenario.after(lambda: scenario.zk.remove("/controller"))
        assert scenario.zk.text("/controller_epoch") == "6"
        assert scenario.controller.controller_epoch == 6
        assert any("UpdateMetadata" in line for line in talk)


async def test_somebody_else_leads() -> None:
    scenario = Scenario()
    scenario.prepare(1)
    scenario.zk.put("/controller", '{"version":1,"brokerid":1,"timestamp":"0"}', owner=77)
    async with scenario.controller.running():
        await scenario.settle()
        assert not scenario.controller.is_active
        assert scenario.controller.active_controller_id == 1
        assert scenario.talk() == []
        with pytest.raises(KafkaError) as refused:
            await scenario.controller.controlled_shutdown(BrokerId(1), BrokerEpoch(-1))
        assert refused.value.code is ErrorCode.STALE_CONTROLLER_EPOCH
        # The other controller is gone: ours stands at once.
        await scenario.after(lambda: scenario.zk.remove("/controller"))
        assert scenario.controller.is_active


async def test_a_lost_race_is_no_error() -> None:
    scenario = Scenario()
    scenario.prepare(1)
    scenario.zk.before_write = lambda: scenario.zk.put(
        "/controller", '{"version":1,"brokerid":1,"timestamp":"0"}', owner=77
    )
    async with scenario.controller.running():
        await scenario.settle()
        assert not scenario.controller.is_active
        assert scenario.zk.text("/controller_epoch") == "4"
        assert not scenario.sink.decisions("controller-failed")


@pytest.mark.parametrize("fate", ["applied", "dropped"])
async def test_the_answer_to_the_election_is_lost(fate: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("klamm.controller.election.controller_election.RECONNECT_PAUSE_S", 0)
    scenario = Scenario()
    scenario.prepare(1)
    scenario.zk.lose_answers = [fate]
    async with scenario.controller.running():
        await scenario.settle()
        assert scenario.controller.is_active
        assert (
            scenario.zk.text("/controller_epoch") == "5"
        )  # not raised twice: the first attempt succeeded, and is recognised


async def test_a_successor_ends_the_term_and_nothing_is_written_after() -> None:
    async with Scenario().running(1, 2) as scenario:
        await scenario.after(lambda: scenario.create_topic("t", [1, 2]))

        def overtake_silently() -> None:
            # The watch on /controller has not fired yet; the fence alone must hold.
            scenario.zk.forget_watches()
            scenario.zk.remove("/controller")
            scenario.zk.put("/controller", '{"version":1,"brokerid":1,"timestamp":"0"}', owner=77)
            scenario.zk.put("/controller_epoch", "6")
            scenario.stop_broker(1)
            scenario.controller._on_watch(WatchEvent(WatchKind.CHILDREN_CHANGED, "/brokers/ids"))

        talk = await scenario.after(overtake_silently)
        assert talk == []
        assert scenario.state("t", 0) == (1, 0, [1, 2], 0)
        assert not scenario.controller.is_active
        assert scenario.controller.active_controller_id == 1
        assert scenario.metrics.value("kafka.controller", "KafkaController", "GlobalTopicCount") == 0


async def test_a_stop_replica_that_deletes_waits_for_the_fence() -> None:
    async with Scenario().running(1) as scenario:
        # Without a state the deletion makes no write that could meet the fence.
        await scenario.after(lambda: scenario.create_topic("t", [7]))
        term = scenario.controller._term
        assert term is not None
        scenario.start_broker(7)
        scenario.zk.forget_watches()
        scenario.zk.remove("/controller")
        scenario.zk.put("/controller", '{"version":1,"brokerid":1,"timestamp":"0"}', owner=77)
        scenario.zk.put("/controller_epoch", "6")
        scenario.zk.put("/admin/delete_topics/t")
        term.context.brokers[BrokerId(7)] = term.context.brokers[BrokerId(1)]
        scenario.controller._on_watch(WatchEvent(WatchKind.CHILDREN_CHANGED, "/admin/delete_topics"))
        await scenario.settle()
        assert not [line for line in scenario.talk() if "delete" in line]
        assert not scenario.controller.is_active


async def test_edited_controller_data_heals_itself() -> None:
    async with Scenario().running(1) as scenario:
        await scenario.after(lambda: scenario.zk.put("/controller", '{"version":1,"brokerid":1,"timestamp":"0"}'))
        assert scenario.controller.is_active
        assert '"brokerid":9' in scenario.zk.text("/controller")
        assert scenario.zk.text("/controller_epoch") == "6"
        await scenario.after(lambda: scenario.zk.put("/controller", "no json"))
        assert scenario.controller.is_active
        assert scenario.zk.text("/controller_epoch") == "7"


async def test_an_epoch_that_is_gone_in_the_middle_of_a_write_ends_the_term_and_heals() -> None:
    async with Scenario().running(1, 2) as scenario:
        await scenario.after(lambda: scenario.create_topic("t", [1, 2]))

        def delete_silently() -> None:
            scenario.zk.forget_watches("controller")
            scenario.zk.remove("/controller_epoch")
            scenario.stop_broker(1)

        await scenario.after(delete_silently)
        assert scenario.controller.is_active
        assert not scenario.sink.decisions("controller-failed")
        assert scenario.controller.controller_epoch > 5
        assert scenario.state("t", 0)[0] == 2


async def test_expiry_drops_the_term_before_the_new_session_and_registers_again() -> None:
    async with Scenario().running(1) as scenario:
        await scenario.after(lambda: scenario.create_topic("t", [1]))
        scenario.zk.expire()
        await scenario.zk.new_session(2)
        await scenario.settle()
        assert scenario.registrations == 1
        assert scenario.controller.is_active
        assert scenario.controller.controller_epoch == 6
        causes = [d.cause for d in scenario.sink.decisions("controller-resigned")]
        assert causes == ["ZooKeeper session expired"]


async def test_events_of_an_expired_session_are_answered() -> None:
    async with Scenario().running(1) as scenario:
        scenario.zk.expire()
        waiting = asyncio.ensure_future(scenario.controller.controlled_shutdown(BrokerId(1), BrokerEpoch(-1)))
        await asyncio.sleep(0)
        await scenario.zk.new_session(2)
        with pytest.raises(KafkaError):
            await waiting


async def test_a_conflict_is_read_again_and_decided_again() -> None:
    async with Scenario().running(1, 2, 3) as scenario:
        await scenario.after(lambda: scenario.create_topic("t", [1, 2, 3]))
        # Between our read and our write the leader shrinks the ISR to itself.
        scenario.zk.before_write = lambda: scenario.put_state("t", 0, 1, 0, [1, 3], 5)
        await scenario.after(lambda: scenario.stop_broker(1))
        assert scenario.state("t", 0) == (3, 1, [3], 2)


@pytest.mark.parametrize("fate", ["applied", "dropped"])
async def test_a_lost_answer_raises_the_epoch_once(fate: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("klamm.zookeeper.retries.RECONNECT_PAUSE_S", 0)
    async with Scenario().running(1, 2) as scenario:
        await scenario.after(lambda: scenario.create_topic("t", [1, 2]))
        scenario.zk.lose_answers = [fate]
        talk = await scenario.after(lambda: scenario.stop_broker(1))
        assert scenario.state("t", 0) == (2, 1, [2], 1)
        assert "2 <- LeaderAndIsr {t-0 leader 2 e1 isr [2] v1}" in talk


@pytest.mark.parametrize("fate", ["applied", "dropped"])
async def test_a_lost_answer_to_a_creation_is_adopted(fate: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("klamm.zookeeper.retries.RECONNECT_PAUSE_S", 0)
    async with Scenario().running(1) as scenario:
        scenario.zk.lose_answers = [fate]
        talk = await scenario.after(lambda: scenario.create_topic("t", [1]))
        assert scenario.state("t", 0) == (1, 0, [1], 0)
        assert "1 <- LeaderAndIsr {t-0 leader 1 e0 isr [1] v0 new}" in talk
        assert scenario.controller.statistics().counts.offline_partitions == 0


async def test_failover_tells_everything_and_elects_the_leaderless() -> None:
    scenario = Scenario()
    scenario.prepare(1, 2)
    scenario.create_topic("t", [1, 2], [3, 2])
    scenario.put_state("t", 0, 1, 7, [1, 2], 3)
    scenario.put_state("t", 1, 3, 2, [3, 2], 3)
    scenario.create_topic("fresh", [2])
    scenario.zk.put("/isr_change_notification/isr_change_0000000001", "junk")
    scenario.zk.put("/log_dir_event_notification/log_dir_event_0000000001", "junk")
    async with scenario.controller.running():
        await scenario.settle()
        talk = scenario.talk()
        # A dead leader's partition is written twice: out of the ISR, then the election.
        assert scenario.state("t", 1) == (2, 4, [2], 2)
        assert scenario.state("t", 0) == (1, 7, [1, 2], 0)
        assert scenario.state("fresh", 0) == (2, 0, [2], 0)
        deletions = [line for line in talk if line.startswith("delete")]
        assert deletions == [
            "delete /log_dir_event_notification/log_dir_event_0000000001",
            "delete /isr_change_notification/isr_change_0000000001",
        ]
        heard = [line for line in talk if line.startswith("1 <- ")]
        assert heard[0] == "1 <- UpdateMetadata {} live [1, 2, 9]"
        assert heard[1] == "1 <- LeaderAndIsr {t-0 leader 1 e7 isr [1, 2] v0}"


async def test_bad_znodes_are_skipped_and_reported() -> None:
    scenario = Scenario()
    scenario.prepare(1)
    scenario.create_topic("good", [1])
    scenario.zk.put("/brokers/topics/bad", "{")
    scenario.zk.put("/brokers/topics/twice", '{"version":1,"partitions":{"0":[1,1],"1":[1]}}')
    scenario.zk.put("/brokers/ids/2", "[]")
    scenario.zk.put("/brokers/ids/none", "{}")
    scenario.create_topic("torn", [1])
    scenario.zk.put("/brokers/topics/torn/partitions/0/state", '{"leader":')
    async with scenario.controller.running():
        await scenario.settle()
        assert scenario.controller.is_active
        assert scenario.state("good", 0) == (1, 0, [1], 0)
        assert scenario.state("twice", 1) == (1, 0, [1], 0)
        reported = {d.cause for d in scenario.sink.decisions("znode-skipped")}
        assert reported == {
            "/brokers/topics/bad",
            "/brokers/topics/twice",
            "/brokers/ids/2",
            "/brokers/ids/none",
            "/brokers/topics/torn/partitions/0/state",
        }
        # Once repaired it is a topic like any other; junk in notifications is skipped.
        await scenario.after(lambda: scenario.create_topic("bad", [1]))
        assert scenario.state("bad", 0) == (1, 0, [1], 0)
        await scenario.after(lambda: scenario.zk.put("/isr_change_notification/isr_change_7", "junk"))
        assert "/isr_change_notification/isr_change_7" not in scenario.zk.tree.nodes
        assert not scenario.sink.decisions("controller-failed")


async def test_an_edited_registration_kills_nobody() -> None:
    async with Scenario().running(1) as scenario:
        await scenario.after(lambda: scenario.create_topic("t", [1]))
        await scenario.after(lambda: scenario.zk.put("/brokers/ids/1", "junk"))
        await scenario.after(lambda: scenario.start_broker(2))
        assert scenario.state("t", 0) == (1, 0, [1], 0)
        assert scenario.controller.statistics().live_brokers == (1, 2, 9)


async def test_a_registration_that_is_mended_lets_its_broker_in() -> None:
    """The new controller could not read it. The data changes, the children of /brokers/ids do not."""
    scenario = Scenario()
    scenario.prepare(1, 2)
    scenario.create_topic("t", [2])
    document = scenario.zk.text("/brokers/ids/2")
    scenario.zk.put("/brokers/ids/2", "junk")
    async with scenario.controller.running():
        await scenario.settle()
        assert scenario.controller.statistics().live_brokers == (1, 9)
        await scenario.after(lambda: scenario.zk.put("/brokers/ids/2", document))
        assert scenario.controller.statistics().live_brokers == (1, 2, 9)
        assert scenario.state("t", 0) == (2, 0, [2], 0)


async def test_changed_endpoints_are_told() -> None:
    async with Scenario().running(1, 2) as scenario:
        document = scenario.zk.text("/brokers/ids/1").replace("9001", "9101")
        talk = await scenario.after(lambda: scenario.zk.put("/brokers/ids/1", document))
        assert len(talk) == 3
        (_, _, body) = scenario.network.requests[-1]
        assert [e.port for b in body.live_brokers if b.id == 1 for e in b.endpoints] == [9101]


async def test_an_unexpected_exception_makes_the_controller_resign(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Scenario().running(1) as scenario:
        loop = asyncio.get_running_loop()
        delays: list[float] = []
        call_later = loop.call_later
        monkeypatch.setattr(loop, "call_later", lambda delay, *rest: delays.append(delay) or call_later(0, *rest))
        term = scenario.controller._term
        assert term is not None

        async def explode(event: object) -> None:
            raise RuntimeError("a bug")

        monkeypatch.setattr(term, "handle", explode)
        scenario.controller._queue.put_nowait(BrokerChange())
        await asyncio.sleep(0)
        await scenario.settle()
        (failed,) = scenario.sink.decisions("controller-failed")
        assert "a bug" in failed.detail
        assert "/controller" not in scenario.zk.tree.nodes  # no broker stands before the pause is over
        assert delays
        assert 0.5 < delays[0] <= 1.1  # one second, minus the time since the failure


@pytest.mark.case("RSM-10")
async def test_a_failed_log_directory_moves_the_leaders_that_were_on_it() -> None:
    async with Scenario().running(1, 2) as scenario:
        await scenario.after(lambda: scenario.create_topic("t", [1, 2], [1, 2]))
        scenario.network.errors = lambda broker, api, topic, partition: (
            56 if (broker, partition) == (1, 0) and api is ApiKey.LEADER_AND_ISR else 0
        )
        event = '{"version":1,"broker":1,"event":1}'
        await scenario.after(lambda: scenario.zk.put("/log_dir_event_notification/log_dir_event_0000000000", event))
        assert scenario.state("t", 0) == (2, 1, [2], 1)
        assert scenario.state("t", 1) == (1, 0, [1, 2], 0)
        assert "/log_dir_event_notification/log_dir_event_0000000000" not in scenario.zk.tree.nodes


async def test_a_refused_stop_replica_fails_the_deletion_and_the_timer_tries_again() -> None:
    async with Scenario().running(1) as scenario:
        await scenario.after(lambda: scenario.create_topic("t", [1]))
        scenario.network.top_error = 77
        await scenario.after(lambda: scenario.zk.put("/admin/delete_topics/t"))
        ((_, reason),) = scenario.controller.statistics().deletions
        assert "another try" in reason
        assert scenario.controller.statistics().counts.replicas_ineligible_to_delete == 1
        scenario.network.top_error = 0
        from klamm.controller.events import RetryPending

        scenario.controller._queue.put_nowait(RetryPending())
        await scenario.settle()
        assert "/brokers/topics/t" not in scenario.zk.tree.nodes


async def test_a_silent_zookeeper_stops_the_hand() -> None:
    async with Scenario().running(1, 2) as scenario:
        await scenario.after(lambda: scenario.create_topic("t", [1, 2]))
        scenario.zk.silent_s = 5.0
        talk = await scenario.after(lambda: scenario.stop_broker(1))
        assert talk == []
        scenario.zk.silent_s = 0.0
        async with asyncio.timeout(5):
            while scenario.state("t", 0)[0] != 2:
                await asyncio.sleep(0.01)


async def test_a_silent_broker_delays_nobody_else() -> None:
    async with Scenario().running(1, 2, 3) as scenario:
        scenario.network.silent.add(3)
        await scenario.after(lambda: scenario.create_topic("a", [3, 1]))
        talk = await scenario.after(lambda: scenario.create_topic("b", [2, 3]))
        assert any(line.startswith("2 <- LeaderAndIsr {b-0") for line in talk)
        assert not any(line.startswith("3 <-") for line in talk)  # one request is in flight, the others wait


@pytest.mark.case("CTL-02")
async def test_stopping_leaves_no_metric_and_no_task() -> None:
    scenario = Scenario()
    async with scenario.running(1):
        pass
    assert scenario.metrics.names() == []
    assert not scenario.controller.is_active
    assert "/controller" not in scenario.zk.tree.nodes  # although the session is still alive
    assert scenario.zk.text("/controller_epoch") == "5"


async def test_a_topic_with_strange_children_is_deleted_all_the_same() -> None:
    async with Scenario().running(1) as scenario:
        await scenario.after(lambda: scenario.create_topic("t", [1]))
        scenario.zk.put("/brokers/topics/t/partitions/0/left/behind")
        await scenario.after(lambda: scenario.zk.put("/admin/delete_topics/t"))
        assert [path for path in scenario.zk.tree.nodes if path.endswith("/t") or "/t/" in path] == []


async def test_a_connection_lost_during_failover_leaves_no_half_loaded_term(monkeypatch: pytest.MonkeyPatch) -> None:
    from klamm.controller.execution.loading import ZNodeReader
    from klamm.model.errors import ConnectionLoss

    scenario = Scenario()
    scenario.prepare(1)
    scenario.create_topic("t", [1])
    brokers, failures = ZNodeReader.brokers, iter([ConnectionLoss("/brokers/ids")])

    async def once(self: ZNodeReader, known: object) -> object:
        for failure in failures:
            raise failure
        return await brokers(self, known)  # type: ignore[arg-type]

    monkeypatch.setattr(ZNodeReader, "brokers", once)
    async with scenario.controller.running():
        await scenario.settle()
        assert scenario.controller.is_active
        assert scenario.zk.text("/controller_epoch") == "6"
        assert scenario.state("t", 0) == (1, 0, [1], 0)


async def test_a_state_of_a_newer_controller_is_not_touched() -> None:
    async with Scenario().running(1, 2) as scenario:
        await scenario.after(lambda: scenario.create_topic("t", [1, 2]))
        scenario.put_state("t", 0, 1, 3, [1, 2], controller=6)
        await scenario.after(lambda: scenario.stop_broker(1))
        assert scenario.state("t", 0) == (1, 3, [1, 2], 1)
        (failed, *_) = scenario.sink.decisions("election-failed")
        assert "controller epoch 6" in failed.detail


@pytest.mark.parametrize("silent_s", [0.0, 5.0])
async def test_a_controller_that_does_not_hear_zookeeper_stops_without_a_write(silent_s: float) -> None:
    """In the last third of its session another one may lead, and a server that is away holds the stop up."""
    async with Scenario().running(1) as scenario:
        scenario.zk.silent_s = silent_s
    assert ("/controller" in scenario.zk.tree.nodes) == bool(silent_s)
