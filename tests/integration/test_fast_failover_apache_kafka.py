"""Fast fail-over together with Apache Kafka: its controller is killed, and klamm takes over before the session ends."""

from __future__ import annotations

import asyncio
from pathlib import Path

from klamm.model.events import StateChange
from klamm.model.ids import BrokerId
from klamm.zookeeper.server.embedded import EmbeddedZooKeeper

from .controller_beside_kafka import Led, active, has, kafka_with, led_by, produce, two_brokers


async def test_a_killed_jvm_controller_is_replaced_and_its_broker_relieved(tmp_path: Path) -> None:
    zookeeper = EmbeddedZooKeeper(tmp_path / "zookeeper", force_sync=False)
    async with kafka_with(tmp_path, *two_brokers(tmp_path), zookeeper=zookeeper) as kafka:
        await kafka.cluster.start()
        await kafka.eventually("a JVM controller", lambda: led_by(kafka, 1, 2))
        async with kafka.controller(klamm_fast_failover="true") as controller:
            await kafka.topic_tool("--create", "--topic", "t", "--replica-assignment", "1:2,2:1")
            for partition, leader in ((0, 1), (1, 2)):
                await kafka.eventually("t", lambda p=partition, b=leader: has(kafka, "t", p, leader=b, isr=[1, 2]))
            dead = int((await kafka.document("/controller"))["brokerid"])
            other = 3 - dead
            assert not controller.is_active
            await kafka.cluster[dead].kill()
            await kafka.eventually("our take-over", lambda: active(controller))
            for partition in (0, 1):
                await kafka.eventually("one leads", lambda p=partition: has(kafka, "t", p, leader=other, isr=[other]))
            await asyncio.to_thread(produce, kafka.cluster[other].address, "t", 2)
            decided = [r for r in kafka.sink.records if isinstance(r, StateChange)]
            assert {(r.partition, r.cause) for r in decided} == {(n, f"broker {dead} suspected") for n in (0, 1)}
            assert len(kafka.sink.named("controller-suspected")) == 1
            # Its session ends, it starts again, and the JVM leader adds it to the ISR again.
            await kafka.eventually("the end of its session", lambda: unregistered(kafka, dead))
            await kafka.cluster[dead].start()
            for partition in (0, 1):
                await kafka.eventually("the ISR is full", lambda p=partition: has(kafka, "t", p, isr=[1, 2]))
            assert controller.is_active and BrokerId(dead) in controller.statistics().live_brokers
            assert [d.event for d in kafka.sink.named("suspicion-ended")] == ["suspicion-ended"]
            assert not kafka.sink.named("controller-failed")


async def unregistered(kafka: Led, broker: int) -> bool:
    """A JVM broker that finds itself already registered gives up."""
    return not await kafka.document(f"/brokers/ids/{broker}")
