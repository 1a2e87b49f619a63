"""Moves replicas between the log directories of this broker, one after the other, as AlterReplicaLogDirs asks.

The last word counts: another target for a replica that waits replaces the first, and one that is under way is given up.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from klamm.log.directories.log_directory import LogDirectory
from klamm.log.directory_moves.log_dir_moves import Relocation, Relocations
from klamm.model.ids import TopicPartition

log = logging.getLogger(__name__)


class Relocator:
    def __init__(self, relocations: Relocations, on_moved: Callable[[TopicPartition], None]) -> None:
        """`on_moved` is called in the very step of the loop in which the logs were exchanged."""
        self._relocations = relocations
        self._on_moved = on_moved
        self._wanted: dict[TopicPartition, LogDirectory] = {}
        self._has_work = asyncio.Event()
        self._moving: tuple[TopicPartition, asyncio.Task[None]] | None = None

    def ask(self, partition: TopicPartition, target: LogDirectory) -> None:
        self.give_up(partition)
        self._wanted[partition] = target
        self._has_work.set()

    def give_up(self, partition: TopicPartition) -> None:
        self._wanted.pop(partition, None)
        if self._moving is not None and self._moving[0] == partition:
            self._moving[1].cancel()

    def under_way(self, partition: TopicPartition) -> Relocation | None:
        return self._relocations.get(partition)

    async def run(self) -> None:
        while True:
            while not self._wanted:
                self._has_work.clear()
                await self._has_work.wait()
            partition = next(iter(self._wanted))
            target = self._wanted.pop(partition)
            moving = asyncio.create_task(self._move(partition, target), name=f"relocate-{partition}")
            self._moving = (partition, moving)
            try:
                await asyncio.wait([moving])
            finally:
                moving.cancel()  # if it is we who end
                self._moving = None
            if not moving.cancelled():
                moving.result()

    async def _move(self, partition: TopicPartition, target: LogDirectory) -> None:
        if await self._relocations.move(partition, target):
            self._on_moved(partition)
            log.info("%s now lives in %s", partition, target.path)
