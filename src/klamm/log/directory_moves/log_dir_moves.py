"""Moves replicas between the log directories of a broker (KIP-113), one after the other, as AlterReplicaLogDirs asks.

The copy is a log of its own in `<topic>-<partition>.<32 hex>-future`. It is filled from the current log chunk by chunk
while that log goes on taking appends; a truncation of the current log starts the copy over. When both end at the same
offset they are exchanged in one step of the loop: the copy gets the plain name, then the old directory is renamed for
deletion. A crash in between leaves both names, and a power cut may bring the old one back later. So the copy holds the
file `klamm-moved-here` until the old directory is gone for good: it tells the next start which of the two counts. The
next start removes unfinished copies: their moves have to be requested again.

The last request wins: a new target replaces one that still waits, and cancels a move that is under way.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from klamm.log.directories.log_directory import MOVED_HERE, LogDirectory, future_name
from klamm.log.directory_moves.log_dir_move import LogDirMove
from klamm.log.log import Log
from klamm.log.recovery import load_log
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import TopicPartition
from klamm.model.ports import Clock, Disk

if TYPE_CHECKING:
    from klamm.log.log_manager import LogManager

logger = logging.getLogger(__name__)


class LogDirMoves:
    def __init__(self, disk: Disk, clock: Clock, random: Random, manager: LogManager) -> None:
        self._disk = disk
        self._clock = clock
        self._random = random
        self._manager = manager
        self._wanted: dict[TopicPartition, LogDirectory] = {}
        self._has_work = asyncio.Event()
        self._task: tuple[TopicPartition, asyncio.Task[None]] | None = None
        self._moves: dict[TopicPartition, LogDirMove] = {}
        self.on_moved: Callable[[TopicPartition], None] | None = None
        """Called in the same step of the loop in which the logs were exchanged."""

    # --- requests ----------------------------------------------------------------------------------------------------

    def request(self, partition: TopicPartition, target: LogDirectory) -> None:
        self.cancel(partition)
        self._wanted[partition] = target
        self._has_work.set()

    def cancel(self, partition: TopicPartition) -> None:
        self._wanted.pop(partition, None)
        if self._task is not None and self._task[0] == partition:
            self._task[1].cancel()

    def under_way(self, partition: TopicPartition) -> LogDirMove | None:
        return self._moves.get(partition)

    async def run(self) -> None:
        while True:
            while not self._wanted:
                self._has_work.clear()
                await self._has_work.wait()
            partition = next(iter(self._wanted))
            target = self._wanted.pop(partition)
            task = asyncio.create_task(self._move(partition, target), name=f"log-dir-move-{partition}")
            self._task = (partition, task)
            try:
                await asyncio.wait([task])
            finally:
                task.cancel()  # if `run` itself is cancelled
                self._task = None
            if not task.cancelled():
                task.result()

    async def _move(self, partition: TopicPartition, target: LogDirectory) -> None:
        source = self._manager.home_of(partition)
        if await self.move(partition, target):
            if self.on_moved is not None:
                self.on_moved(partition)
            logger.info("%s moved to %s", partition, target.path)
            if source is not None and source.failure is None:
                await self._disk.run(partial(self._settle, source.path, target.file(str(partition))))

    def _settle(self, source: str, path: str) -> None:
        """The old directory stays away, even after a power cut. If this fails, the file stays, which does no harm."""
        try:
            self._disk.sync_directory(source)
            self._disk.remove(f"{path}/{MOVED_HERE}")
        except OSError as error:
            logger.info("%s keeps the file that says that it was moved: %s", path, error)

    # --- one move ----------------------------------------------------------------------------------------------------

    async def move(self, partition: TopicPartition, target: LogDirectory) -> bool:
        """True when the log is in `target` and the manager has the new one. False if the move was abandoned because the
        log is gone or a directory failed. If cancelled, it leaves only what the next start removes."""
        current = self._manager.get(partition)
        if current is None or self._manager.home_of(partition) is target:
            return False
        move = self._moves[partition] = LogDirMove(self._manager, current, target)
        path = target.file(future_name(partition, f"{self._random.getrandbits(128):032x}"))
        try:
            with self._manager.cleaner.paused(partition):
                move.copy = await self._disk.run(lambda: self._create_copy(path, move))
                return await self._fill(partition, move)
        except OSError as error:
            self._manager.directory_failed(target, error)
        except KafkaError as error:
            logger.warning("%s does not move to %s: %s", partition, target.path, error)
        finally:
            del self._moves[partition]
            if move.copy is not None:
                move.copy.close_files()
            if target.failure is None and self._disk.exists(path):
                self._manager.remove_later([path], 0)
        return False

    def _create_copy(self, path: str, move: LogDirMove) -> Log:
        current = move.current
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
        return Log(self._disk, self._clock, self._random, name, config, loaded, move)

    async def _fill(self, partition: TopicPartition, move: LogDirMove) -> bool:
        assert move.copy is not None
        while self._manager.get(partition) is move.current:
            if not move.copy_chunk():
                await asyncio.sleep(0)
                continue
            await move.copy.flush()  # most of it, off the loop
            if self._manager.get(partition) is move.current and move.copy_chunk():
                move.copy_offsets()
                move.copy.close()
                self._exchange(move, move.copy.directory)
                return True
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "the log was deleted or its directory failed")

    def _exchange(self, move: LogDirMove, copy: str) -> None:
        """Put the closed and complete log at `copy` in the place of the current one."""
        current, target = move.current, move.target
        path = target.file(str(current.topic_partition))
        if self._disk.exists(of_former_move := f"{current.directory}/{MOVED_HERE}"):
            self._disk.remove(of_former_move)
        self._disk.write_atomically(f"{copy}/{MOVED_HERE}", b"")
        self._disk.rename(copy, path)
        self._disk.sync_directory(target.path)
        try:
            loaded = load_log(
                self._disk,
                path,
                current.config,
                log_start_offset=current.log_start_offset,
                recovery_point=current.log_end_offset,
                clean=True,
                now_ms=self._clock.wall_ms(),
            )
        except KafkaError:
            self._disk.rename(path, copy)  # otherwise the partition would exist twice, and the next start would fail
            raise
        self._manager.replace(current, target, loaded)
