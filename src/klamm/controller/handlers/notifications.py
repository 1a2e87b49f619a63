"""Events that others announce through ZooKeeper: ISR changes, failed log directories, changed configurations."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from klamm.controller.decisions import notifications
from klamm.controller.decisions.leadership import elect_leaderless
from klamm.controller.execution.commit import Committer
from klamm.controller.handlers.services import TermServices
from klamm.model.errors import ZNodeError
from klamm.zookeeper.znodes import config_change, isr_change, log_dir_event

T = TypeVar("T")


class NotificationEvents:
    """Belongs to one term."""

    def __init__(self, services: TermServices) -> None:
        self._context = services.context
        self._reader = services.reader
        self._recorder = services.recorder
        self._runner = services.runner

    async def discard(self, committer: Committer) -> None:
        """Delete old notifications before a load, which makes them superfluous."""
        for parent in (log_dir_event.PARENT, isr_change.PARENT):
            names = await self._reader.names_if_permitted(parent)
            stuck = await committer.delete([f"{parent}/{name}" for name in names])
            self._recorder.writes_refused(stuck.values())

    async def on_isr_change(self) -> None:
        paths = [isr_change.path(name) for name in await self._reader.names_if_permitted(isr_change.PARENT)]
        found = await self._read(paths, isr_change.decode)
        if paths:
            changed = [partition for partitions in found for partition in partitions]
            decision = notifications.on_isr_change(self._context, changed, paths)
            await self._runner.run(decision, "ISR change by the leader")

    async def on_log_dir_event(self) -> None:
        paths = [log_dir_event.path(name) for name in await self._reader.names_if_permitted(log_dir_event.PARENT)]
        failed = await self._read(paths, log_dir_event.decode)
        if paths:
            decision = notifications.on_log_dir_event(self._context, failed, paths)
            await self._runner.run(decision, f"log directory failure on {sorted(set(failed))}")

    async def watch_configurations(self) -> None:
        """Reads only to set the watch: configurations are read when they matter."""
        await self._reader.names_if_permitted(config_change.PARENT)

    async def on_config_change(self) -> None:
        await self.watch_configurations()
        await self._runner.run(elect_leaderless(self._context), "configuration changed")

    async def _read(self, paths: list[str], decode: Callable[[str, bytes | None], T]) -> list[T]:
        found: list[T] = []
        for path, node in zip(paths, await self._reader.nodes(paths), strict=True):
            try:
                found += [decode(path, node.data)] if node else ()
            except ZNodeError as error:
                self._recorder.znode_skipped(error)
        return found
