"""Which periodic tasks run and which say why not; resignation ends them all."""

from __future__ import annotations

import asyncio

import pytest

from klamm.controller.events import BalanceLeaders, ControllerEvent, RetryPending
from klamm.controller.schedule import Schedule, entries_of
from klamm.controller.statistics import GAUGES, GROUP, TYPE
from klamm.model.config import BrokerConfig
from klamm.model.ids import BrokerEpoch, BrokerId
from klamm.simulation.loop import run_in_virtual_time

from .scenario import Scenario


def test_the_clock() -> None:
    async def play() -> None:
        happened: list[tuple[float, ControllerEvent]] = []
        clock = asyncio.get_running_loop().time
        work = [False]
        config = BrokerConfig(leader_imbalance_check_interval_seconds=40)
        schedule = Schedule(
            entries_of(config, has_pending=lambda: work[0]), lambda event: happened.append((round(clock()), event))
        )
        schedule.start()
        await asyncio.sleep(50)
        assert happened == [(5, BalanceLeaders()), (45, BalanceLeaders())]
        work[0] = True
        await asyncio.sleep(15)
        assert happened[2:] == [(60, RetryPending())]
        schedule.stop()
        await asyncio.sleep(1000)
        assert len(happened) == 3

    run_in_virtual_time(play())


def test_what_is_off_says_so() -> None:
    off = BrokerConfig(auto_leader_rebalance_enable=False)
    assert Schedule(entries_of(off, has_pending=bool), print).describe() == (
        ("retries", "every 30 s"),
        ("leader-balance", "off: auto.leader.rebalance.enable=false"),
        ("delegation-token-expiry", "off: no master key is set"),
    )
    with_key = BrokerConfig(delegation_token_master_key="secret")
    described = dict(Schedule(entries_of(with_key, has_pending=bool), print).describe())
    assert described["delegation-token-expiry"] == "off: delegation tokens are not served"


async def test_resigning_undoes_all_of_it_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Scenario().running(1, 2, 3) as scenario:
        await scenario.after(lambda: scenario.create_topic("t", [1, 2], [3]))
        await scenario.after(lambda: scenario.stop_broker(3))
        scenario.network.top_error = 77
        await scenario.after(lambda: scenario.create_topic("going", [2]))
        await scenario.after(lambda: scenario.zk.put("/admin/delete_topics/going"))
        await scenario.controller.controlled_shutdown(BrokerId(2), BrokerEpoch(-1))
        value = scenario.metrics.value
        for gauge in ("GlobalTopicCount", "OfflinePartitionsCount", "TopicsToDeleteCount", "ReplicasToDeleteCount"):
            assert value(GROUP, TYPE, gauge) > 0, gauge

        controller, term = scenario.controller, scenario.controller._term
        assert term is not None
        order: list[str] = []
        stop, close = term.schedule.stop, term._channels.close

        def stop_schedule() -> None:
            order.append(f"schedule, {value(GROUP, TYPE, 'GlobalTopicCount'):.0f} topics counted")
            stop()

        async def close_channels() -> None:
            order.append("channels")
            await close()

        monkeypatch.setattr(term.schedule, "stop", stop_schedule)
        monkeypatch.setattr(term._channels, "close", close_channels)

        def depose() -> None:
            scenario.zk.remove("/controller")
            scenario.zk.put("/controller", '{"version":1,"brokerid":1,"timestamp":"0"}', owner=1001)
            scenario.zk.put("/controller_epoch", "6")

        await scenario.settle()
        scenario.talk()
        assert await scenario.after(depose) == []
        # As in Kafka the gauges are zero before anything is torn down, and the senders stop last.
        assert order == ["schedule, 0 topics counted", "channels"]
        for gauge in ("ActiveControllerCount", *GAUGES):
            assert value(GROUP, TYPE, gauge) == 0, gauge
        seen = controller.statistics()
        assert seen[:2] == (False, 1)
        assert (seen.live_brokers, seen.shutting_down, seen.deletions, seen.schedule) == ((), (), (), ())
        ours = sorted(task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("controller-"))
        assert ours == ["controller-events"]
        # Watches that fire now do nothing.
        scenario.network.top_error = 0
        assert await scenario.after(lambda: scenario.stop_broker(1)) == []
        assert await scenario.after(lambda: scenario.create_topic("later", [2])) == []
