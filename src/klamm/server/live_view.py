"""The live view of `klamm up` on a terminal: the banner above, the cluster as it is now below.

Where the output is no terminal there is no view: the banner and the news are plain lines.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from klamm.model.wording import count
from klamm.server.cluster_status import ClusterStatus, StatusReader
from klamm.server.local_cluster import LocalCluster

if TYPE_CHECKING:
    from rich.console import RenderableType

REFRESH_SECONDS: Final = 1.0
SAID_SHOWN: Final = 5


class LiveView:
    def __init__(self, cluster: LocalCluster, banner: list[str]) -> None:
        self._cluster = cluster
        self._banner = banner
        self._said: deque[str] = deque(maxlen=SAID_SHOWN)

    def say(self, line: str) -> None:
        """News of the processes, below the view."""
        self._said.append(line)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[LiveView]:
        from rich.console import Console
        from rich.live import Live

        reader = StatusReader(self._cluster)
        with Live(self._picture(ClusterStatus()), console=Console(highlight=False), auto_refresh=False) as live:

            async def refresh() -> None:
                while True:
                    live.update(self._picture(await reader.look()), refresh=True)
                    await asyncio.sleep(REFRESH_SECONDS)

            task = asyncio.create_task(refresh(), name="live-view")
            try:
                yield self
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    def _picture(self, status: ClusterStatus) -> RenderableType:
        return picture(status, self._banner, list(self._said))


class PlainLines:
    """The same for a file or a pipe: each line as it comes."""

    def __init__(self, banner: list[str]) -> None:
        self._banner = banner

    def say(self, line: str) -> None:
        print(line, flush=True)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[PlainLines]:
        self.say("\n".join(self._banner))
        yield self


def view_for(cluster: LocalCluster, banner: list[str]) -> LiveView | PlainLines:
    return LiveView(cluster, banner) if sys.stdout.isatty() else PlainLines(banner)


def picture(status: ClusterStatus, banner: list[str], said: list[str]) -> RenderableType:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table("broker", "address", "state", "leads", "replicas", "not in sync", box=None, pad_edge=False)
    for broker in status.brokers:
        name = f"{broker.id} controller" if broker.is_controller else str(broker.id)
        numbers = map(str, (broker.leaders, broker.replicas, broker.lagging))
        style = "red" if broker.state != "up" else "yellow" if broker.lagging else ""
        table.add_row(name, broker.address, broker.state, *numbers, style=style)
    health = Text(status.health, style="bold green" if status.health == "healthy" else "bold red")
    where = f"{count(status.topics, 'topic')}, {count(status.partitions, 'partition')}"
    rates = f"{status.records_per_second:,.0f} records/s, {status.bytes_per_second / 1024:,.1f} KiB/s in"
    parts: list[RenderableType] = [
        Text("\n".join(banner)),
        Text(),
        Text.assemble("cluster      ", health, f"; {where}; {rates}"),
        Text(f"controller   {status.controller or 'none'}"),
        Text(),
        table,
    ]
    for title, lines in (("last changes", status.changes), ("processes", said)):
        if lines:
            parts += [Text(), Text(title, style="bold"), Text("\n".join(lines))]
    return Group(*parts)
