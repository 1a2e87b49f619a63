"""durable: what a log says to survive a power cut would survive it.

Power is cut rarely, and mostly at a moment when nothing depends on it. So a log is also opened, again and again, from a
copy of its disk as a power cut could leave it now, while its broker runs on.
"""

from __future__ import annotations

import random

from klamm.log.directories.log_directory import LogDirectory
from klamm.log.log import Log
from klamm.log.recovery import load_log
from klamm.model.errors import KafkaError
from klamm.model.ports import Clock
from klamm.simulation.disk import SimulatedDisk
from klamm.simulation.invariants import Problem
from klamm.simulation.log_checks import content_of, is_sound
from klamm.simulation.survival import lacks


class _NoOwner:
    """The owner of a log that is only read."""

    def flush_within(self, log: Log, delay_ms: int) -> None:
        return


def survives(disk: SimulatedDisk, log: Log, clock: Clock, rng: random.Random) -> Problem:
    """It has everything below its recovery point, and its parts agree."""
    name, expected = log.topic_partition, content_of(log, log.recovery_point)
    left = disk.after_power_cut(rng, log.directory)
    directory = LogDirectory(left, log.directory.rpartition("/")[0])
    previous = directory.take_previous_run()
    if previous.clean:
        return f"{name}: after a power cut its directory would count as cleanly closed"
    if not left.exists(log.directory):
        return lacks(name, None, expected)
    try:
        loaded = load_log(
            left,
            log.directory,
            log.config,
            log_start_offset=previous.log_start_offsets.get(name, 0),
            recovery_point=previous.recovery_points.get(name, 0),
            clean=False,
            now_ms=clock.wall_ms(),
        )
    except KafkaError as error:
        return f"{name} would not open after a power cut: {error}"
    found = Log(left, clock, rng, name, log.config, loaded, _NoOwner())  # type: ignore[arg-type]
    wrong = lacks(name, found, expected) or is_sound(name, found, content_of(found, found.log_end_offset))
    return None if wrong is None else f"after a power cut: {wrong}"
