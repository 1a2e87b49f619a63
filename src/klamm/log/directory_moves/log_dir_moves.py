"""Replicas that move between the log directories of a broker (KIP-113): copied beside the running log, then exchanged.

The copy is a log of its own in `<topic>-<partition>.<32 hex>-future`, filled from the present one chunk by chunk while
that goes on taking appends. When both end at the same offset they are exchanged in one step of the loop: the copy gets
the plain name, then the old one is renamed for deletion. A crash in between leaves both names, which stops the next
start with a clear line; nothing is lost. A truncation of the present log starts the copy over. Copies that a former
life left behind are removed at the start: the move has to be asked for again.
"""

from __future__ import annotations

import asyncio
import logging
import random
from typing import Final

from klamm.log.directories.log_directory import LogDirectory, future_name
from klamm.log.log import Log
from klamm.log.log_manager import LogManager
from klamm.log.recovery import load_log
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import TopicPartition
from klamm.model.ports import Clock, Disk

logger = logging.getLogger(__name__)

CHUNK_BYTES: Final = 1 << 20


class Relocation:
    """One replica on its way. Owner of the copy, which asks for nothing but what `flush` does."""

    def __init__(self, manager: LogManager, current: Log, target: LogDirectory) -> None:
        self._manager = manager
        self.current = current
        self.target = target
        self.copy: Log | None = None
        self._generation = current.generation

    @property
    def lag(self) -> int:
        return self.current.log_end_offset - (0 if self.copy is None else self.copy.log_end_offset)

    def copy_some(self) -> bool:
        """True when nothing is missing at this moment."""
        current, copy = self.current, self.copy
        assert copy is not None
        if current.generation != self._generation or copy.log_end_offset < current.log_start_offset:
            self._generation = current.generation
            copy.truncate_fully_and_start_at(current.log_start_offset)
        if copy.log_end_offset < current.log_end_offset:
            end = current.log_end_offset
            read = current.read(copy.log_end_offset, CHUNK_BYTES, upper_bound=end, at_least_one=True)
            copy.append_as_follower(read.records)
        return copy.log_end_offset == current.log_end_offset

    def settle(self) -> None:
        """Where the log begins, and what is committed: the batches do not tell."""
        assert self.copy is not None
        self.copy.update_high_watermark(self.current.high_watermark)
        self.copy.advance_log_start(self.current.log_start_offset)

    # --- LogOwner ---

    def flush_soon(self, log: Log) -> None: ...

    def flush_within(self, log: Log, delay_ms: int) -> None: ...

    def truncating(self, log: Log, offset: int, *, recovery_point_lowered: bool) -> None: ...

    def remove_later(self, paths: list[str], delay_ms: int) -> None:
        self._manager.remove_later(paths, 0)  # nobody reads a copy

    def storage_failed(self, log: Log, error: OSError) -> None:
        self._manager.directory_failed(self.target, error)


class Relocations:
    """Those under way, one at a time; the broker runs `move` for each."""

    def __init__(self, disk: Disk, clock: Clock, random: random.Random, manager: LogManager) -> None:
        self._disk = disk
        self._clock = clock
        self._random = random
        self._manager = manager
        self._under_way: dict[TopicPartition, Relocation] = {}

    def get(self, partition: TopicPartition) -> Relocation | None:
        return self._under_way.get(partition)

    async def move(self, partition: TopicPartition, target: LogDirectory) -> bool:
        """True when the log lives in `target`; the caller then holds the new one. False if it was given up: the log is
        gone, or a directory failed. Cancelled, it leaves nothing behind but what the next start removes."""
        current = self._manager.get(partition)
        if current is None or self._manager.home_of(partition) is target:
            return False
        relocation = self._under_way[partition] = Relocation(self._manager, current, target)
        path = target.file(future_name(partition, f"{self._random.getrandbits(128):032x}"))
        try:
            with self._manager.cleaner.paused(partition):
                relocation.copy = copy = await self._disk.run(lambda: self._begin(path, relocation))
                if copy.log_end_offset != current.log_start_offset:
                    copy.truncate_fully_and_start_at(current.log_start_offset)
                return await self._fill(partition, relocation)
        except OSError as error:
            self._manager.directory_failed(target, error)
        except KafkaError as error:
            logger.warning("%s does not move to %s: %s", partition, target.path, error)
        finally:
            del self._under_way[partition]
            if relocation.copy is not None:
                relocation.copy.close_files()
            if target.failure is None and self._disk.exists(path):
                self._manager.remove_later([path], 0)
        return False

    def _begin(self, path: str, relocation: Relocation) -> Log:
        current = relocation.current
        self._disk.make_directories(path)
        start = current.log_start_offset
        loaded = load_log(
            self._disk,
            path,
            current.config,
            log_start_offset=start,
            recovery_point=start,
            clean=True,
            now_ms=self._clock.wall_ms(),
        )
        name, config = current.topic_partition, current.config
        return Log(self._disk, self._clock, self._random, name, path, config, loaded, relocation)

    async def _fill(self, partition: TopicPartition, relocation: Relocation) -> bool:
        assert relocation.copy is not None
        while self._manager.get(partition) is relocation.current:
            if not relocation.copy_some():
                await asyncio.sleep(0)
                continue
            await relocation.copy.flush()  # the bulk of it, off the loop
            if self._manager.get(partition) is relocation.current and relocation.copy_some():
                relocation.settle()
                relocation.copy.close()
                self._manager.exchange(partition, relocation.target, relocation.copy.directory)
                return True
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "it is no longer here")
