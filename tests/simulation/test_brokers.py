"""Whole real brokers, with producers and consumers, under simulated failures of network, disk, power and ZooKeeper."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable

import pytest

from klamm.simulation.cluster import simulate, with_brokers
from klamm.simulation.loop import Livelock, run_in_virtual_time
from klamm.simulation.seeds import SeedResult, run_seeds


@pytest.mark.timeout(7200)
def test_nothing_is_lost_and_the_cluster_heals(scaled: Callable[[int, int], int]) -> None:
    count = scaled(16, 2_000)
    ways: Counter[str] = Counter()
    violated: list[SeedResult] = []
    for result in run_seeds(range(count), real=True):
        if result.summary is None:
            violated.append(result)
        else:
            ways.update(result.summary.ways)
    for way, times in sorted(ways.items()):
        print(f"{way}: {times}")
    assert not violated, "\n".join(map(str, violated))
    assert ways["acknowledged with acks=-1"] > 20 * count


def test_one_seed_is_one_run() -> None:
    assert simulate(with_brokers(7)) == simulate(with_brokers(7))
    assert simulate(with_brokers(7)).digest != simulate(with_brokers(8)).digest


def test_one_seed_is_one_run_in_another_process_with_other_hashes() -> None:
    digests = set()
    for hash_seed in ("1", "2"):
        code = "from klamm.cli.main import main; main()"
        command = [sys.executable, "-c", code, "simulate", "--brokers", "--seed", "9", "--json"]
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        result = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
        digests.add(json.loads(result.stdout)["digest"])
    assert digests == {simulate(with_brokers(9)).digest}


def test_a_retry_without_a_pause_is_an_error_not_a_hang() -> None:
    async def spin() -> None:
        while True:
            await asyncio.sleep(0)

    with pytest.raises(Livelock):
        run_in_virtual_time(spin())
