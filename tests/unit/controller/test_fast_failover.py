"""A broker, or the controller, whose port refuses although its session is alive: what is decided, sent and recorded.

Broker 9 is the controller and hosts no replica. Probes do not pause here: time stands still in these tests.
"""

from __future__ import annotations

import asyncio

import pytest

from klamm.controller.liveness import kept_connection, suspicion
from klamm.model.elections import UncleanElection
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import BrokerEpoch, BrokerId, TopicPartition

from .scenario import US, Scenario

REFUSED = ConnectionRefusedError(111, "refused")
FAST = {"klamm_fast_failover": "true"}


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_connection, "PROBE_PAUSE_S", 0.0)
    monkeypatch.setattr("klamm.controller.execution.broker_channel.RETRY_PAUSE_S", 0.0)


def requests(talk: list[str], broker: int) -> list[str]:
    return [line.partition(" <- ")[2] for line in talk if line.startswith(f"{broker} <- ")]


def suspects(scenario: Scenario) -> float:
    return float(scenario.metrics.value("kafka.controller", "KafkaController", "SuspectBrokersCount"))


async def probe_often() -> None:
    """Runs the loop long enough for many probes. `settle` does not see them, because they change nothing."""
    for _ in range(200):
        await asyncio.sleep(0)


async def test_what_it_leads_moves_and_what_it_follows_goes_on_without_it() -> None:
    async with Scenario(**FAST).running(1, 2, 3) as scenario:
        await scenario.after(lambda: scenario.create_topic("t", [1, 2, 3], [2, 1, 3], [2, 3]))
        talk = await scenario.after(lambda: scenario.network.cut_off(1, REFUSED))
        assert scenario.state("t", 0) == (2, 1, [2, 3], 1)
        assert scenario.state("t", 1) == (2, 1, [2, 3], 1)
        assert scenario.state("t", 2) == (2, 0, [2, 3], 0)
        assert requests(talk, 3)[:4] == [
            "LeaderAndIsr {t-0 leader 2 e1 isr [2, 3] v1}",
            "UpdateMetadata {t-0 leader 2 e1 isr [2, 3] v1 offline [1]} live [1, 2, 3, 9]",
            "LeaderAndIsr {t-1 leader 2 e1 isr [2, 3] v1}",
            "UpdateMetadata {t-1 leader 2 e1 isr [2, 3] v1 offline [1]} live [1, 2, 3, 9]",
        ]
        assert requests(talk, 1) == []
        (suspected,) = scenario.sink.decisions("broker-suspected")
        assert "broker 1" in suspected.cause
        assert "probes refused" in suspected.detail and "1 of 4" in suspected.detail
        assert {change.cause for change in scenario.sink.state_changes()[-2:]} == {"broker 1 suspected"}
        assert suspects(scenario) == 1


async def test_the_end_of_its_session_decides_nothing_twice() -> None:
    async with Scenario(**FAST).running(1, 2, 3) as scenario:
        await scenario.after(lambda: scenario.create_topic("t", [1, 2, 3], [1]))
        await scenario.after(lambda: scenario.network.cut_off(1, REFUSED))
        assert scenario.state("t", 1) == (1, 0, [1], 0), "only it has the records: they may be there tomorrow"
        talk = await scenario.after(lambda: scenario.stop_broker(1))
        assert scenario.state("t", 0) == (2, 1, [2, 3], 1)
        assert scenario.state("t", 1) == (-1, 1, [1], 1)
        assert not [line for line in requests(talk, 2) if line.startswith("LeaderAndIsr")]
        assert len(scenario.sink.decisions("suspicion-ended")) == 1
        assert suspects(scenario) == 0


async def test_it_takes_a_connection_in_the_same_life_and_is_told_everything() -> None:
    async with Scenario(**FAST).running(1, 2, 3) as scenario:
        await scenario.after(lambda: scenario.create_topic("t", [1, 2, 3], [2, 1, 3]))
        await scenario.after(lambda: scenario.network.cut_off(1, REFUSED))
        talk = await scenario.after(lambda: scenario.network.unreachable.clear())
        told = requests(talk, 1)
        # First what was decided while it was unreachable, in that order; then the whole start-up sequence.
        assert told[:2] == [
            "UpdateMetadata {t-0 leader 2 e1 isr [2, 3] v1 offline [1]} live [1, 2, 3, 9]",
            "UpdateMetadata {t-1 leader 2 e1 isr [2, 3] v1 offline [1]} live [1, 2, 3, 9]",
        ]
        both = "t-0 leader 2 e1 isr [2, 3] v1; t-1 leader 2 e1 isr [2, 3] v1"
        assert f"UpdateMetadata {{{both}}} live [1, 2, 3, 9]" in told
        assert f"LeaderAndIsr {{{both}}}" in told
        assert suspects(scenario) == 0
        (ended,) = scenario.sink.decisions("suspicion-ended")
        assert "same broker epoch" in ended.detail
        # And it can lead again, once a leader has taken it back into the ISR.
        scenario.put_state("t", 0, 2, 1, [2, 3, 1], 5)
        result = await scenario.controller.elect_leaders([TopicPartition("t", 0)], UncleanElection.FORBIDDEN)
        assert result == {("t", 0): 1}


async def test_a_port_that_listens_again_is_not_yet_the_broker() -> None:
    """A broker that is killed and restarts listens at once but registers later. A process that does not answer, or
    answers with a stale broker epoch, is not the suspect."""
    async with Scenario(**FAST).running(1, 2, 3) as scenario:
        await scenario.after(lambda: scenario.create_topic("t", [1, 2, 3]))
        await scenario.after(lambda: scenario.network.cut_off(1, REFUSED))
        scenario.network.silent.add(1)
        await scenario.after(lambda: scenario.network.unreachable.clear())
        assert suspects(scenario) == 1
        scenario.network.silent.clear()
        scenario.network.top_error = ErrorCode.STALE_BROKER_EPOCH
        await scenario.after(lambda: scenario.network.cut_off(1, REFUSED))
        await scenario.after(lambda: scenario.network.unreachable.clear())
        assert suspects(scenario) == 1
        assert not scenario.sink.decisions("suspicion-ended")


async def test_a_new_life_ends_the_suspicion() -> None:
    async with Scenario(**FAST).running(1, 2, 3) as scenario:
        await scenario.after(lambda: scenario.create_topic("t", [1, 2, 3]))
        await scenario.after(lambda: scenario.network.cut_off(1, REFUSED))
        scenario.network.unreachable.clear()
        scenario.stop_broker(1)
        scenario.start_broker(1)
        await scenario.settle()
        assert suspects(scenario) == 0
        assert len(scenario.sink.decisions("suspicion-ended")) == 1
        assert scenario.state("t", 0) == (2, 1, [2, 3], 1), "decided once"


async def test_its_former_life_is_not_its_own() -> None:
    """It refused under one broker epoch, but has registered again since: it is not suspect."""
    async with Scenario(**FAST).running(1, 2, 3) as scenario:
        await scenario.after(lambda: scenario.create_topic("t", [1, 2, 3]))
        scenario.network.cut_off(1, REFUSED)
        scenario.stop_broker(1)
        scenario.start_broker(1)
        await scenario.settle()
        await probe_often()
        assert suspects(scenario) == 0
        assert not scenario.sink.decisions("broker-suspected")


@pytest.mark.parametrize(
    "error",
    [
        TimeoutError("no answer"),
        OSError(113, "no route to host"),
        ConnectionResetError(104, "reset in the handshake"),
        ConnectionAbortedError(103, "aborted"),
    ],
)
async def test_only_a_refusal_is_a_refusal(error: OSError) -> None:
    async with Scenario(**FAST).running(1, 2, 3) as scenario:
        await scenario.after(lambda: scenario.create_topic("t", [1, 2, 3]))
        await scenario.after(lambda: scenario.network.cut_off(1, error))
        await probe_often()
        assert scenario.state("t", 0) == (1, 0, [1, 2, 3], 0)
        assert suspects(scenario) == 0


async def test_one_that_we_never_reached_cannot_break_with_us() -> None:
    scenario = Scenario(**FAST)
    scenario.network.unreachable[1] = REFUSED
    async with scenario.running(1, 2, 3):
        await probe_often()
        assert suspects(scenario) == 0


async def test_half_of_the_brokers_do_not_die_at_once() -> None:
    async with Scenario(**FAST).running(1, 2, 3) as scenario:
        await scenario.after(lambda: scenario.create_topic("t", [1, 2, 3], [2, 3, 1]))
        scenario.network.cut_off(1, REFUSED)
        await scenario.after(lambda: scenario.network.cut_off(2, REFUSED))
        await probe_often()
        assert suspects(scenario) == 0
        assert scenario.state("t", 0) == (1, 0, [1, 2, 3], 0)


async def test_we_who_do_not_hear_zookeeper_accuse_nobody() -> None:
    async with Scenario(**FAST).running(1, 2, 3) as scenario:
        await scenario.after(lambda: scenario.create_topic("t", [1, 2, 3]))
        scenario.zk.silent_s = 1.5
        await scenario.after(lambda: scenario.network.cut_off(1, REFUSED))
        await probe_often()
        assert suspects(scenario) == 0
        scenario.zk.silent_s = 0.0  # ZooKeeper answers again: the broker is judged again
        await probe_often()
        await scenario.settle()
        assert suspects(scenario) == 1


async def test_off_unless_switched_on() -> None:
    async with Scenario().running(1, 2, 3) as scenario:
        await scenario.after(lambda: scenario.create_topic("t", [1, 2, 3]))
        await scenario.after(lambda: scenario.network.cut_off(1, REFUSED))
        await probe_often()
        assert scenario.state("t", 0) == (1, 0, [1, 2, 3], 0)


async def test_our_own_port_closes_first_when_we_stop() -> None:
    async with Scenario(**FAST).running(1, 2, 3) as scenario:
        await scenario.after(lambda: scenario.network.cut_off(US, REFUSED))
        await probe_often()
        assert suspects(scenario) == 0


async def test_a_suspect_is_no_reason_to_lose_records() -> None:
    async with Scenario(**FAST).running(1, 2, 3) as scenario:
        unclean = {"unclean.leader.election.enable": "true"}
        await scenario.after(lambda: scenario.create_topic("t", [1, 2], config=unclean))
        await scenario.after(lambda: scenario.put_state("t", 0, 1, 0, [1], 5))
        await scenario.after(lambda: scenario.network.cut_off(1, REFUSED))
        assert suspects(scenario) == 1
        assert scenario.state("t", 0)[0] == 1
        answer = await scenario.controller.elect_leaders([TopicPartition("t", 0)], UncleanElection.ALLOWED)
        (error,) = answer.values()
        assert isinstance(error, KafkaError) and error.code is ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
        assert scenario.state("t", 0)[0] == 1
        await scenario.after(lambda: scenario.stop_broker(1))
        assert scenario.state("t", 0)[0] == 2, "its session has ended: now the topic's own wish counts"


async def test_a_suspect_gets_nothing_new() -> None:
    async with Scenario(**FAST).running(1, 2, 3) as scenario:
        await scenario.after(lambda: scenario.create_topic("t", [1, 2, 3]))
        await scenario.after(lambda: scenario.network.cut_off(1, REFUSED))
        await scenario.after(lambda: scenario.create_topic("u", [1, 2, 3]))
        assert scenario.state("u", 0) == (2, 0, [2, 3], 0)
        scenario.put_state("t", 0, 2, 1, [1, 2, 3], 5)  # the leader added it to the ISR
        answer = await scenario.controller.elect_leaders([TopicPartition("t", 0)], UncleanElection.FORBIDDEN)
        (error,) = answer.values()
        assert isinstance(error, KafkaError) and error.code is ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
        targets = {TopicPartition("u", 0): (BrokerId(2), BrokerId(1))}
        await scenario.controller.alter_partition_reassignments(targets)
        await scenario.settle()
        left = await scenario.controller.controlled_shutdown(BrokerId(2), BrokerEpoch(-1))
        assert not left and scenario.state("u", 0)[0] == 3, "not the suspect"


async def test_an_isr_that_its_leader_shrank_meanwhile_counts() -> None:
    """The state in ZooKeeper decides, not the context: the suspect was already alone in the ISR."""
    async with Scenario(**FAST).running(1, 2, 3) as scenario:
        await scenario.after(lambda: scenario.create_topic("t", [1, 2, 3]))
        scenario.put_state("t", 0, 1, 0, [1], 5)
        await scenario.after(lambda: scenario.network.cut_off(1, REFUSED))
        assert scenario.state("t", 0) == (1, 0, [1], 1)


async def test_a_dead_leader_keeps_its_last_follower() -> None:
    """A suspect leaves the ISR only if the leader is alive."""
    async with Scenario(**FAST).running(1, 2, 3, 4) as scenario:
        await scenario.after(lambda: scenario.create_topic("t", [2, 1]))
        await scenario.after(lambda: scenario.network.cut_off(2, REFUSED))
        assert scenario.state("t", 0) == (1, 1, [1], 1)
        scenario.put_state("t", 0, 2, 1, [2, 1], 5)  # as it was before
        await scenario.after(lambda: scenario.network.cut_off(1, REFUSED))
        assert suspects(scenario) == 2
        assert scenario.state("t", 0) == (2, 1, [2, 1], 2)


# --- the controller itself ---


def led_by(scenario: Scenario, controller: int) -> None:
    """Another broker is controller, in the session that registered it."""
    document = f'{{"version":1,"brokerid":{controller},"timestamp":"0"}}'
    scenario.zk.put("/controller", document, owner=1000 + controller)


async def test_a_controller_that_refuses_is_replaced() -> None:
    scenario = Scenario(**FAST)
    scenario.prepare(1, 2, 3)
    led_by(scenario, 1)
    scenario.create_topic("t", [1, 2, 3], [2, 1, 3])
    scenario.put_state("t", 0, 1, 0, [1, 2, 3], 4)
    scenario.put_state("t", 1, 2, 0, [1, 2, 3], 4)
    async with scenario.controller.running():
        await scenario.settle()
        assert not scenario.controller.is_active
        await scenario.after(lambda: scenario.network.cut_off(1, REFUSED))
        assert scenario.controller.is_active
        assert scenario.zk.text("/controller_epoch") == "5"
        events = [record.event for record in scenario.sink.records if hasattr(record, "event")]
        order = ["controller-suspected", "controller-moved", "controller-elected", "controller-failover"]
        assert [event for event in events if event in (*order, "broker-suspected")] == [*order, "broker-suspected"]
        # Its broker is still registered, but no longer leads: the watchdog's connection broke.
        assert scenario.state("t", 0)[:3] == (2, 1, [2, 3])
        assert scenario.state("t", 1)[:3] == (2, 1, [2, 3])


@pytest.mark.parametrize("error", [TimeoutError("no answer"), OSError(113, "no route to host")])
async def test_a_silent_controller_stays(error: OSError) -> None:
    scenario = Scenario(**FAST)
    scenario.prepare(1, 2, 3)
    led_by(scenario, 1)
    async with scenario.controller.running():
        await scenario.settle()
        await scenario.after(lambda: scenario.network.cut_off(1, error))
        await probe_often()
        assert not scenario.controller.is_active


@pytest.mark.parametrize("guard", ["zookeeper silent", "two brokers", "switched off", "never reached"])
async def test_the_guards_protect_a_controller_too(guard: str) -> None:
    scenario = Scenario() if guard == "switched off" else Scenario(**FAST)
    scenario.prepare(*((1,) if guard == "two brokers" else (1, 2, 3)))
    led_by(scenario, 1)
    if guard == "never reached":
        scenario.network.unreachable[1] = REFUSED
    async with scenario.controller.running():
        await scenario.settle()
        scenario.zk.silent_s = 1.5 if guard == "zookeeper silent" else 0.0
        await scenario.after(lambda: scenario.network.cut_off(1, REFUSED))
        await probe_often()
        assert not scenario.controller.is_active
        assert not scenario.sink.decisions("controller-suspected")


async def test_somebody_else_was_faster() -> None:
    """The multi decides: the node to replace is no longer there."""
    scenario = Scenario(**FAST)
    scenario.prepare(1, 2, 3)
    led_by(scenario, 1)
    async with scenario.controller.running():
        await scenario.settle()

        def another_takes_it() -> None:
            scenario.zk.remove("/controller")
            scenario.zk.put("/controller_epoch", "5")
            led_by(scenario, 2)

        scenario.zk.before_write = another_takes_it
        await scenario.after(lambda: scenario.network.cut_off(1, REFUSED))
        assert not scenario.controller.is_active
        assert scenario.controller.active_controller_id == 2
        # From now on the new controller is watched.
        await scenario.after(lambda: scenario.network.cut_off(2, REFUSED))
        assert scenario.controller.is_active


@pytest.mark.parametrize(("candidates", "stands_back"), [([2], True), ([US], False), ([1], False), ([], False)])
async def test_the_first_try_is_a_living_candidates(
    candidates: list[int], stands_back: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Controller 1 dies. If 2 is a candidate, it goes first; a dead candidate, or our own broker, delays nothing."""
    monkeypatch.setattr(suspicion, "REMIND_EVERY", 1_000_000)
    scenario = Scenario(**FAST)
    scenario.prepare(1, 2, 3)
    for candidate in candidates:
        scenario.zk.put(f"/config/extension/candidates/{candidate}")
    led_by(scenario, 1)
    async with scenario.controller.running():
        await scenario.settle()
        await scenario.after(lambda: scenario.network.cut_off(1, REFUSED))
        assert len(scenario.sink.decisions("controller-suspected")) == 1
        assert scenario.controller.is_active is not stands_back
        if stands_back:  # no candidate took over: a second later this broker does
            monkeypatch.setattr(suspicion, "REMIND_EVERY", 1)
            await probe_often()
            await scenario.settle()
            assert scenario.controller.is_active
