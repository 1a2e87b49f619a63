"""Real controllers under simulated failures; invariants are checked after every event and at the end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable

import pytest
from typer.testing import CliRunner

from klamm.cli.app import app
from klamm.simulation import seeds as seeds_module
from klamm.simulation.cluster import Scenario, simulate
from klamm.simulation.seeds import SeedResult, run_seeds

RARE = (
    "controller-resigned",
    "ISR write of unknown outcome",
    "ISR write found by reading back",
    "registration of a former session replaced",
    "stale broker epoch refused",
    "stale controller epoch refused",
    "reassignment-completed",
    "topic-deleted",
    "topic-gone",
    "topic-grown",
    "znode-skipped",
    "write-refused",
    "state-lost",
    "reassignment-waits",
)
"""Paths without which a clean run proves little. With the full count, 1 % of the seeds must take each."""

KEPT = (95, 158, 534, 784, 942, 1258, 1389, 1981, 2603, 3110, 3547, 3725, 4707)
"""Seeds that once found something: a replica of the ISR that was deleted (1389, 1981, 2603), a deleted topic that
stayed in the metadata of a broker (942, 1258, 3110, 4707), a leader that was never told (3547, 3725), a deletion that
lost its marker (158) or half of its znodes (784), or was held for a broker that had left the topic (534), a completed
reassignment that was never written (95). Their histories change with the code, so each finding also has a test of its
own."""


@pytest.mark.timeout(3600)
def test_invariants_hold_and_the_cluster_heals(scaled: Callable[[int, int], int]) -> None:
    count = scaled(40, 2_000)
    ways: Counter[str] = Counter()
    violated: list[SeedResult] = []
    for result in run_seeds(sorted({*range(count), *KEPT})):
        if result.summary is None:
            violated.append(result)
        else:
            ways.update(result.summary.ways.keys())
    for way, seeds in sorted(ways.items()):
        print(f"{way}: {100 * seeds / count:.0f} % of {count} seeds")
    assert not violated, "\n".join(map(str, violated))
    assert not [way for way in RARE if ways[way] * 100 < count]


def test_one_seed_is_one_run() -> None:
    assert simulate(Scenario(seed=7)) == simulate(Scenario(seed=7))
    assert simulate(Scenario(seed=7)).digest != simulate(Scenario(seed=8)).digest


def test_one_seed_is_one_run_in_another_process_with_other_hashes() -> None:
    """A run must not depend on the order of a set."""
    digests = set()
    for hash_seed in ("1", "2"):
        command = [sys.executable, "-c", "from klamm.cli.main import main; main()", "simulate", "--seed", "9", "--json"]
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        result = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
        digests.add(json.loads(result.stdout)["digest"])
    assert digests == {simulate(Scenario(seed=9)).digest}


# --- the command ---


def test_the_command_prints_the_digest() -> None:
    result = CliRunner().invoke(app, ["simulate", "--seed", "5"])
    assert result.exit_code == 0
    assert simulate(Scenario(seed=5)).digest in result.stdout


def test_the_command_runs_many_seeds() -> None:
    result = CliRunner().invoke(app, ["simulate", "--seed", "5", "--seeds", "3", "--processes", "1", "--json"])
    document = json.loads(result.stdout)
    assert (document["seeds"], document["violated"]) == (3, 0)
    assert [run["seed"] for run in document["runs"]] == [5, 6, 7]


def test_the_command_tells_what_was_violated(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = SeedResult(6, None, "S4", "brokers 1 and 2 both lead", 3.25, ("3.1 crash", "3.2 create /controller"))
    judged = {5: SeedResult(5, simulate(Scenario(seed=5))), 6: broken}
    monkeypatch.setattr(seeds_module, "run_seed", judged.__getitem__)
    result = CliRunner().invoke(app, ["simulate", "--seed", "5", "--seeds", "2", "--processes", "1"])
    assert result.exit_code == 1
    assert "3.2 create /controller\nseed 6: S4 violated at 3.250 s: brokers 1 and 2 both lead\n" in result.stdout
    assert "1 of 2 seeds" in result.stdout
    assert "simulated hours" in result.stdout


def test_the_command_stops_at_the_first_violation_if_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seeds_module, "run_seed", lambda seed: SeedResult(seed, None, "S4", "two leaders"))
    options = ["--seed", "5", "--seeds", "9", "--processes", "1", "--fail-fast", "--json"]
    document = json.loads(CliRunner().invoke(app, ["simulate", *options]).stdout)
    assert [run["seed"] for run in document["runs"]] == [5]
