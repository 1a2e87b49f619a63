"""Opens logs again that are offline alone: their directory works, so what kept them closed may pass.

A log goes offline alone if it cannot be opened, or if memory and files disagree. It is tried again after a pause that
doubles from 1 to 30 s, with a recovery, as at the next start. A log whose directory fails meanwhile, or which is
deleted, is forgotten.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple

from klamm.log.directories.log_directory import LogDirectory
from klamm.log.log_creation import Adopt
from klamm.log.log_registry import LogRegistry
from klamm.log.recovery import LoadedLog, load_log
from klamm.log.storage_errors import is_passing
from klamm.model.config import TopicConfig
from klamm.model.guard import pause_after
from klamm.model.ids import TopicPartition
from klamm.model.ports import Clock, Disk

logger = logging.getLogger(__name__)


class ClosedLog(NamedTuple):
    """What the next opening must know."""

    partition: TopicPartition
    directory: LogDirectory
    path: str
    config: TopicConfig
    log_start_offset: int
    recovery_point: int
    high_watermark: int
    clean: bool


class LogReopening:
    def __init__(
        self,
        disk: Disk,
        clock: Clock,
        registry: LogRegistry,
        adopt: Adopt,
        settled: Callable[[Iterable[TopicPartition]], Awaitable[None]],
        on_reopened: Callable[[TopicPartition], None],
    ) -> None:
        """`settled` waits until nothing in the pool works on the files of these partitions."""
        self._disk = disk
        self._clock = clock
        self._registry = registry
        self._adopt = adopt
        self._settled = settled
        self._on_reopened = on_reopened
        self._closed: dict[TopicPartition, tuple[ClosedLog, int, float]] = {}
        """With the number of attempts so far and the time of the next."""
        self._has_closed = asyncio.Event()

    def later(self, log: ClosedLog, attempts: int = 0) -> None:
        due = self._clock.monotonic() + pause_after(attempts + 1)
        self._closed[log.partition] = (log, attempts, due)
        self._has_closed.set()

    async def run(self) -> None:
        while True:
            await self._has_closed.wait()
            now = self._clock.monotonic()
            for partition, (log, attempts, due) in list(self._closed.items()):
                if not self._is_wanted(log):
                    self._closed.pop(partition, None)
                elif due <= now:
                    await self._try(log, attempts + 1)
            if not self._closed:
                self._has_closed.clear()
                continue
            earliest = min(due for _, _, due in self._closed.values())
            await asyncio.sleep(max(earliest - self._clock.monotonic(), 0.01))

    def _is_wanted(self, log: ClosedLog) -> bool:
        """It is still offline, in a directory that works."""
        is_here = self._registry.home_of(log.partition) is log.directory and log.directory.failure is None
        return is_here and self._registry.is_offline(log.partition)

    async def _try(self, log: ClosedLog, attempts: int) -> None:
        def job() -> LoadedLog:
            return load_log(
                self._disk,
                log.path,
                log.config,
                log_start_offset=log.log_start_offset,
                recovery_point=log.recovery_point,
                clean=log.clean,
                now_ms=self._clock.wall_ms(),
            )

        await self._settled([log.partition])
        try:
            loaded = await self._disk.run(job)
        except OSError as error:
            if is_passing(error):
                self._again(log, attempts, error)
            else:
                self._registry.take_offline(log.directory, error)
        except Exception as error:
            self._again(log, attempts, error)
        else:
            self._opened(log, loaded)

    def _again(self, log: ClosedLog, attempts: int, error: Exception) -> None:
        logger.warning("%s cannot be opened yet, attempt %d: %s", log.path, attempts, error)
        self.later(log, attempts)

    def _opened(self, log: ClosedLog, loaded: LoadedLog) -> None:
        self._closed.pop(log.partition, None)
        if not self._is_wanted(log):  # deleted, or its directory failed, during the recovery
            for segment in loaded.segments:
                segment.close_files()
            return
        self._registry.back_online(log.partition)
        opened = self._adopt(log.partition, log.directory, log.config, loaded)
        opened.update_high_watermark(log.high_watermark)
        logger.info("%s is online again", log.partition)
        self._on_reopened(log.partition)
