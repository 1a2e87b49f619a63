"""klamm bench failover: from kill -9 to the next acknowledgement on every partition, fast fail-over on and off.

It runs real processes: three brokers and ZooKeeper. The victim leads half of the partitions and follows the other half;
in one run it is an ordinary broker, in the other the controller. A producer with acks=all writes to all partitions at a
steady pace before and after the kill, and sends one record to each at the kill. The figure is the time until every
partition has acknowledged a record that was sent after the kill. The events of the surviving brokers split it:

    detect   until the suspicion was decided, or without fast fail-over until the controller saw the session end
    decide   until the first new state was in ZooKeeper: the decision and its first write
    commit   until the last new state was in ZooKeeper
    tell     until the last broker had applied its last control request
    client   until the last partition had acknowledged a record
"""

from __future__ import annotations

import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

import orjson

from klamm.bench.producer import SteadyProducer
from klamm.client.admin import NewTopic
from klamm.client.blocking import blocking_client
from klamm.model.ids import TopicPartition
from klamm.testing.cluster import KlammCluster, running_cluster

SESSION_TIMEOUT_MS: Final = 6_000
GIVE_UP_S: Final = 120.0
STEADY_S: Final = 2.0
"""Time under load before the kill, so that fetchers, purgatories and connections are in their usual state."""
EVENTS_SETTLE_S: Final = 0.5
"""Events are written a moment later, off the critical path."""
LED, FOLLOWED = "led", "followed"
BROKER, CONTROLLER = "broker", "controller"
ON, OFF = "on", "off"


class FailoverTimes(NamedTuple):
    seconds: float
    """Until the last partition had acknowledged a record."""
    by_topic: dict[str, float]
    median: float
    split: dict[str, float]


def bench(*, partitions: int, rounds: int, zookeeper: str) -> dict[str, Any]:
    """The victim leads `partitions` partitions and follows as many others."""
    samples: dict[tuple[str, str], list[FailoverTimes]] = {}
    for _ in range(rounds):
        for victim in (BROKER, CONTROLLER):
            for fast in (ON, OFF):  # alternate, so that a busy minute of the machine affects both
                samples.setdefault((victim, fast), []).append(_round(partitions, victim, fast, zookeeper))
    return {
        "partitions_led": partitions,
        "partitions_followed": partitions,
        "session_timeout_ms": SESSION_TIMEOUT_MS,
        "rounds": rounds,
        "load_average": os.getloadavg()[0],
        "victims": {victim: _figures(samples[victim, ON], samples[victim, OFF]) for victim in (BROKER, CONTROLLER)},
    }


def _figures(on: Sequence[FailoverTimes], off: Sequence[FailoverTimes]) -> dict[str, Any]:
    return {
        "fast_failover_on": _summary(on),
        "fast_failover_off": _summary(off),
        "ratio": round(_median(s.seconds for s in off) / _median(s.seconds for s in on), 1),
    }


def _summary(samples: Sequence[FailoverTimes]) -> dict[str, Any]:
    seconds = [sample.seconds for sample in samples]
    return {
        "seconds": round(_median(seconds), 3),
        "least": round(min(seconds), 3),
        "most": round(max(seconds), 3),
        "median_partition": round(_median(sample.median for sample in samples), 3),
        **{f"last_{topic}": round(_median(s.by_topic[topic] for s in samples), 3) for topic in (LED, FOLLOWED)},
        "split": {step: round(_median(s.split[step] for s in samples), 3) for step in samples[0].split},
    }


def _median(values: Any) -> float:
    return float(statistics.median(list(values)))


def _round(partitions: int, victim: str, fast: str, zookeeper: str) -> FailoverTimes:
    with tempfile.TemporaryDirectory(prefix="klamm-bench-") as name:
        properties = {
            "zookeeper.session.timeout.ms": str(SESSION_TIMEOUT_MS),
            "klamm.fast.failover": "true" if fast == ON else "false",
            "auto.leader.rebalance.enable": "false",
        }
        with running_cluster(Path(name), zookeeper=zookeeper, properties=properties) as cluster:
            return measure(cluster, partitions, victim)


def measure(cluster: KlammCluster, partitions: int, victim: str) -> FailoverTimes:
    controller = cluster.controller
    broker = controller if victim == CONTROLLER else next(b for b in cluster.broker_ids if b != controller)
    create_topics(cluster, broker, partitions)
    killed, acknowledged = asyncio.run(_kill_under_load(cluster, broker))
    time.sleep(EVENTS_SETTLE_S)
    after = {name: at - killed for name, at in acknowledged.items()}
    return FailoverTimes(
        max(after.values()),
        {topic: max(took for name, took in after.items() if name.topic == topic) for topic in (LED, FOLLOWED)},
        statistics.median(after.values()),
        split(list(_events(cluster)), killed, killed + max(after.values())),
    )


async def _kill_under_load(cluster: KlammCluster, broker: int) -> tuple[float, dict[TopicPartition, float]]:
    bootstrap = [(host, int(port)) for host, port in (a.split(":") for a in cluster.bootstrap.split(","))]
    async with SteadyProducer(bootstrap, [LED, FOLLOWED]).running() as producer:
        began = time.time()
        await producer.send(producer.partitions)
        await producer.wait_acknowledged(began, GIVE_UP_S)
        await asyncio.sleep(STEADY_S)
        killed = time.time()
        await asyncio.to_thread(cluster.kill, broker)
        await producer.send(producer.partitions, behind=True)
        return killed, await producer.wait_acknowledged(killed, GIVE_UP_S)


def create_topics(cluster: KlammCluster, victim: int, partitions: int) -> None:
    """The victim is the first replica throughout one topic and the second throughout the other."""
    others = [b for b in cluster.broker_ids if b != victim]
    led, followed = {}, {}
    for number in range(partitions):
        first, second = (others[(number + i) % len(others)] for i in range(2))
        led[number] = [victim, first, second]
        followed[number] = [first, victim, second]
    with blocking_client(cluster.bootstrap, timeout=GIVE_UP_S) as client:
        topics = {LED: NewTopic(assignments=led), FOLLOWED: NewTopic(assignments=followed)}
        for error in client.run(client.admin.create_topics(topics)).values():
            if error is not None:
                raise error
    deadline = time.monotonic() + GIVE_UP_S
    while not all(_knows(cluster, broker, topic, partitions) for broker in cluster.alive for topic in (LED, FOLLOWED)):
        if time.monotonic() > deadline:
            raise TimeoutError(f"after {GIVE_UP_S:.0f} s some broker still did not know the topics")
        time.sleep(0.1)
    cluster.wait_until_healthy(timeout=GIVE_UP_S)


def _knows(cluster: KlammCluster, broker: int, topic: str, partitions: int) -> bool:
    return len(cluster.partitions(topic, seen_by=broker)) == partitions


# --- the split ---


def _events(cluster: KlammCluster) -> Iterator[dict[str, Any]]:
    """Events of the live brokers, unordered, without a line that is still being written."""
    for broker in cluster.alive:
        for line in (cluster.directory(broker) / "state-change.json").read_bytes().splitlines():
            try:
                yield orjson.loads(line)
            except orjson.JSONDecodeError:
                continue


def split(events: Sequence[Mapping[str, Any]], killed: float, acknowledged: float) -> dict[str, float]:
    """Seconds of each step; 0 if a step cannot be separated from the next, or if its events are not written yet. The
    steps add up to the whole: a moment that seems to come before an earlier one counts as that one."""
    since = [event for event in events if event["time_ms"] / 1000 >= killed]
    changes = [event for event in since if "partition" in event and event["time_ms"] / 1000 <= acknowledged]
    committed = sorted(e["time_ms"] / 1000 for e in changes if e["role"] == "controller")
    told = [e["time_ms"] / 1000 for e in changes if e["role"] == "broker"]
    detected = [
        (e["time_ms"] - (e["duration_ms"] if e["event"] == "broker-change" else 0)) / 1000
        for e in since
        if e.get("event") in ("broker-suspected", "controller-suspected", "controller-elected", "broker-change")
    ]
    moments = [
        killed,
        min(detected, default=killed),
        *((committed[0], committed[-1]) if committed else (killed, killed)),
    ]
    moments += [max(told, default=killed), acknowledged]
    in_order = list(accumulate((min(moment, acknowledged) for moment in moments), max))
    names = ("detect", "decide", "commit", "tell", "client")
    return {name: ended - began for name, (began, ended) in zip(names, pairwise(in_order), strict=True)}
