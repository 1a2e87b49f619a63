"""What a log must still have when its broker starts again.

- After `kill -9`: everything.
- After a power cut: everything below the recovery point, which says what was flushed.
- After a clean stop: the log start.
- What was deleted is not there again.
- In no case more is committed than some replica had committed before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from klamm.log.log import Log
from klamm.log.log_manager import LogManager
from klamm.model.ids import TopicPartition
from klamm.simulation.invariants import Problem
from klamm.simulation.log_checks import content_of, is_sound
from klamm.wire.records import read_header


class Survival:
    """For one broker."""

    def __init__(self) -> None:
        self._expected: dict[TopicPartition, list[bytes]] = {}
        self._is_durable = True
        self._starts: dict[TopicPartition, int] = {}
        self.deleted: set[TopicPartition] = set()
        """A StopReplica that deletes was obeyed, and no order since."""

    def ends(self, logs: Iterable[Log], *, power_lost: bool) -> None:
        """Call it before the disk forgets. A log that has failed already promises nothing."""
        self._is_durable = power_lost
        self._expected = {
            log.topic_partition: content_of(log, log.recovery_point if power_lost else log.log_end_offset)
            for log in logs
            if not log.failed
        }

    def closed(self, logs: Iterable[Log]) -> None:
        """It stopped in order. Only then it is certain that log starts were written."""
        self._starts = {log.topic_partition: log.log_start_offset for log in logs if not log.failed}

    def ends_again(self, *, power_lost: bool) -> None:
        """It ended before its logs were open."""
        if power_lost and not self._is_durable:
            self.forget()

    def forget(self) -> None:
        self._expected = {}
        self._starts = {}

    def begins(self, logs: LogManager, committed: Callable[[TopicPartition], int]) -> Problem:
        """The logs are open, and no order was obeyed yet."""
        expected, starts = self._expected, self._starts
        self.forget()
        for name, batches in expected.items():
            if not logs.is_offline(name) and (wrong := lacks(name, logs.get(name), batches)) is not None:
                return wrong
        for log in logs.logs():
            name = log.topic_partition
            if log.log_start_offset < starts.get(name, 0):
                return f"{name} starts at {log.log_start_offset}, it stopped with {starts[name]}"
            if name in self.deleted:
                return f"{name} is here again, although it was deleted"
            if log.high_watermark > committed(name):
                return f"{name} starts with high watermark {log.high_watermark}, up to {committed(name)} was committed"
            wrong = is_sound(name, log, content_of(log, log.log_end_offset))
            if wrong is not None:
                return wrong
        return None


def lacks(name: TopicPartition, log: Log | None, batches: list[bytes]) -> Problem:
    if log is not None:
        batches = [batch for batch in batches if read_header(batch).last_offset >= log.log_start_offset]
    if not batches:
        return None
    start, end = read_header(batches[0]).base_offset, read_header(batches[-1]).next_offset
    if log is None:
        return f"{name} is gone, it had offsets up to {end}"
    if log.log_end_offset < end or content_of(log, end, start) != batches:
        return f"{name} had offsets up to {end}, it ends at {log.log_end_offset} or has other records"
    return None
