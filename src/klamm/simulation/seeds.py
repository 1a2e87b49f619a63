"""Runs many seeds in parallel processes; runs share nothing."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import partial
from multiprocessing import get_context
from typing import Any

from klamm.simulation.checker import Violation
from klamm.simulation.cluster import RunSummary, Scenario, simulate, with_brokers

SEEDS_AT_ONCE = 4


@dataclass(frozen=True, slots=True)
class SeedResult:
    """The summary of a run, or the violated invariant and the last events before it."""

    seed: int
    summary: RunSummary | None = None
    invariant: str = ""
    about: str = ""
    seconds: float = 0.0
    events: tuple[str, ...] = field(default_factory=tuple)

    @property
    def holds(self) -> bool:
        return self.summary is not None

    def __str__(self) -> str:
        if self.summary is not None:
            return f"seed {self.seed}: {self.summary.digest}"
        return f"seed {self.seed}: {self.invariant} violated at {self.seconds:.3f} s: {self.about}"

    def describe(self) -> str:
        """The long form, for a single run."""
        if self.summary is None:
            return "\n".join((*self.events, str(self)))
        run = self.summary
        return f"{self} ({run.events} events, {run.elections} elections, {run.seconds:.0f} s, invariants held)"

    def document(self) -> dict[str, Any]:
        if self.summary is not None:
            return {"holds": True, **asdict(self.summary)}
        return {"holds": False, **{key: value for key, value in asdict(self).items() if key != "summary"}}


def run_seed(seed: int, real: bool = False) -> SeedResult:
    try:
        return SeedResult(seed, simulate(with_brokers(seed) if real else Scenario(seed=seed)))
    except Violation as found:
        return SeedResult(seed, None, found.invariant, found.about, found.seconds, found.events)
    except Exception as error:
        # An error of the simulation itself, or one that no controller catches: a finding like any other.
        return SeedResult(seed, None, type(error).__name__, str(error))


def run_seeds(seeds: Sequence[int], processes: int | None = None, *, real: bool = False) -> Iterator[SeedResult]:
    """Yield results in the order of the seeds, as soon as they are known. Workers are forked, not spawned: this process
    has no threads, and the imports of each spawned worker would take as long as several runs."""
    run = partial(run_seed, real=True) if real else run_seed
    workers = min(processes or os.cpu_count() or 1, len(seeds))
    if workers <= 1:
        yield from map(run, seeds)
        return
    with ProcessPoolExecutor(workers, mp_context=get_context("fork"), initializer=_be_quiet) as pool:
        yield from pool.map(run, seeds, chunksize=SEEDS_AT_ONCE)


def _be_quiet() -> None:
    """Drop what controllers log about the failures, which are intended here."""
    logging.disable(logging.CRITICAL)
