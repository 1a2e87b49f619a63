"""What brokers report about their replicas: answers to LeaderAndIsr, failed log directories, changed ISRs.

A report concerns what it names, and only the registration of the broker that sent it.
"""

from __future__ import annotations

import pytest

from klamm.controller.events import LeaderAndIsrResponse
from klamm.model.errors import ErrorCode
from klamm.model.ids import BrokerEpoch, BrokerId, TopicPartition
from klamm.wire.apis import ApiKey
from klamm.zookeeper.znodes import isr_change, log_dir_event

from .scenario import Scenario

T0 = TopicPartition("t", 0)
STORAGE_ERROR = ErrorCode.KAFKA_STORAGE_ERROR


def announce(scenario: Scenario, broker: int, number: int) -> None:
    scenario.zk.put(f"{log_dir_event.PREFIX}{number:010}", log_dir_event.encode(BrokerId(broker)))


def metadata_of(talk: list[str], broker: int) -> list[str]:
    return [line for line in talk if line.startswith(f"{broker} <- UpdateMetadata {{t-0")]


async def test_a_directory_that_works_again_makes_its_replicas_online() -> None:
    async with Scenario().running(1, 2, 3) as scenario:
        await scenario.after(lambda: scenario.create_topic("t", [1, 2]))
        scenario.network.errors = lambda broker, api, topic, partition: (
            int(STORAGE_ERROR) if broker == 1 and api is ApiKey.LEADER_AND_ISR else 0
        )
        talk = await scenario.after(lambda: announce(scenario, 1, 0))
        assert scenario.state("t", 0)[:2] == (2, 1)
        assert "offline [1]" in metadata_of(talk, 3)[-1]
        scenario.network.errors = lambda broker, api, topic, partition: 0
        await scenario.after(lambda: announce(scenario, 1, 1))
        scenario.put_state("t", 0, 2, 1, [2, 1], 5)
        notice = isr_change.encode([T0])
        talk = await scenario.after(lambda: scenario.zk.put(f"{isr_change.PREFIX}0000000001", notice))
        assert "offline" not in metadata_of(talk, 3)[-1]
        await scenario.after(lambda: scenario.stop_broker(2))
        assert scenario.state("t", 0)[:3] == (1, 2, [1])


@pytest.mark.parametrize(
    ("epoch_is_present", "code", "moves"),
    [
        (True, STORAGE_ERROR, True),
        (True, ErrorCode.STALE_CONTROLLER_EPOCH, False),
        (False, STORAGE_ERROR, False),
    ],
)
async def test_which_answers_take_a_replica_offline(epoch_is_present: bool, code: ErrorCode, moves: bool) -> None:
    """Not an answer of a former registration: the broker has restarted since, perhaps with a new disk."""
    async with Scenario().running(1, 2) as scenario:
        await scenario.after(lambda: scenario.create_topic("t", [1, 2]))
        present = scenario.zk.tree.nodes["/brokers/ids/1"].czxid
        answer = LeaderAndIsrResponse(
            BrokerId(1),
            BrokerEpoch(present if epoch_is_present else present - 1),
            ErrorCode.NONE,
            ((T0, int(code)), (TopicPartition("unknown", 0), int(STORAGE_ERROR))),
            lambda: frozenset(),
        )
        await scenario.after(lambda: scenario.controller._queue.put_nowait(answer))
        assert scenario.state("t", 0)[:2] == ((2, 1) if moves else (1, 0))


async def test_notifications_about_what_is_not_there_concern_nothing_else() -> None:
    async with Scenario().running(1, 2) as scenario:
        await scenario.after(lambda: scenario.create_topic("t", [1, 2]))
        talk = await scenario.after(lambda: announce(scenario, 7, 0))
        assert [line for line in talk if "LeaderAndIsr" in line] == []
        scenario.put_state("t", 0, 1, 0, [1], 5)
        notice = isr_change.encode([TopicPartition("unknown", 0), T0])
        talk = await scenario.after(lambda: scenario.zk.put(f"{isr_change.PREFIX}0000000001", notice))
        assert "isr [1]" in metadata_of(talk, 2)[-1]
        assert not scenario.zk.tree.children(isr_change.PARENT) + scenario.zk.tree.children(log_dir_event.PARENT)
