"""Reads about the controller and pending deletions from ZooKeeper, for the command line. Nothing here writes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, NamedTuple

from klamm.model.errors import ConfigError, ZNodeError
from klamm.model.ids import BrokerId
from klamm.model.partition import Assignment
from klamm.server.runtime import real_ports
from klamm.zookeeper.client import ZooKeeperClient
from klamm.zookeeper.client.address import ConnectString
from klamm.zookeeper.controller_requests import holder, live_brokers, preferred_brokers
from klamm.zookeeper.retries import children_or_none
from klamm.zookeeper.znodes import candidates, controller, controller_epoch, delete_topics, quarantine
from klamm.zookeeper.znodes import topic as topic_znode
from klamm.zookeeper.znodes.quarantine import Quarantined

SESSION_TIMEOUT_MS = 10_000


class MarkedTopic(NamedTuple):
    """A topic that is marked for deletion."""

    topic: str
    since: str
    partitions: dict[int, Assignment] | None
    """None if its znode is gone or unreadable."""
    problem: str
    quarantined: bool


class Marked(NamedTuple):
    topics: list[MarkedTopic]
    live: frozenset[BrokerId]
    has_controller: bool


@asynccontextmanager
async def zookeeper(connect: str) -> AsyncIterator[ZooKeeperClient]:
    """A name that does not resolve is reported at once. A broker waits for it, because it may come up with DNS."""
    await _check_names(connect)
    ports = real_ports()
    client = ZooKeeperClient(ports.network, ports.clock, ports.random, connect, SESSION_TIMEOUT_MS)
    async with client.running():
        yield client


async def _check_names(connect: str) -> None:
    """Raises ConfigError if none of the hosts has an address."""
    hosts = [server.host for server in ConnectString.parse(connect).servers]
    failures = []
    for host in hosts:
        try:
            await asyncio.get_running_loop().getaddrinfo(host, None)
        except OSError as error:
            failures.append(f"{host} does not resolve ({error.strerror})")
    if len(failures) == len(hosts):
        raise ConfigError(f"no ZooKeeper at {connect}: {', '.join(failures)}")


async def controller_term(connect: str) -> dict[str, Any]:
    """The controller's epoch, the creation time of its znode, the candidates and the quarantined znodes."""
    async with zookeeper(connect) as zk:
        node, epoch = await zk.get_many([controller.PATH, controller_epoch.PATH])
        since = None
        if node is not None:
            since = datetime.fromtimestamp(node.stat.ctime_ms / 1000, UTC).isoformat(timespec="milliseconds")
        try:
            number = controller_epoch.decode(controller_epoch.PATH, epoch.data if epoch else None)
        except ZNodeError:
            number = None
        return {
            "epoch": number,
            "since": since,
            "candidates": await preferred_brokers(zk),
            "quarantined": [{"path": entry.path, "reason": entry.reason} for entry in await _quarantined(zk)],
        }


async def candidates_report(connect: str) -> list[dict[str, Any]]:
    async with zookeeper(connect) as zk:
        live, leading = await live_brokers(zk), await holder(zk)
        names = await children_or_none(zk, candidates.PARENT) or []
        junk = [name for name in names if not candidates.ids_of([name])]
        report: list[dict[str, Any]] = [
            {"broker": broker, "alive": broker in live, "controller": broker == leading}
            for broker in candidates.ids_of(names)
        ]
        return report + [{"broker": name, "ignored": "not a broker id"} for name in junk]


async def marked_topics(connect: str) -> Marked:
    async with zookeeper(connect) as zk:
        topics = await children_or_none(zk, delete_topics.PARENT) or []
        markers = await zk.get_many([delete_topics.path(topic) for topic in topics])
        nodes = await zk.get_many([topic_znode.path(topic) for topic in topics])
        aside = {entry.path for entry in await _quarantined(zk)}
        marked = []
        for topic, marker, node in zip(topics, markers, nodes, strict=True):
            path, partitions, problem = topic_znode.path(topic), None, ""
            try:
                partitions = topic_znode.decode(path, node.data).partitions if node else None
            except ZNodeError as error:
                problem = error.reason
            since = datetime.fromtimestamp(marker.stat.ctime_ms / 1000, UTC).isoformat("T", "seconds") if marker else ""
            marked.append(MarkedTopic(topic, since, partitions, problem, path in aside))
        return Marked(marked, frozenset(await live_brokers(zk)), await holder(zk) is not None)


async def _quarantined(zk: ZooKeeperClient) -> list[Quarantined]:
    """The entries that still apply. A znode that has changed is released, even if its entry still exists."""
    paths = [f"{quarantine.PARENT}/{name}" for name in await children_or_none(zk, quarantine.PARENT) or ()]
    entries = []
    for path, node in zip(paths, await zk.get_many(paths), strict=True):
        try:
            entries.append(quarantine.decode(path, node.data if node else None))
        except ZNodeError:
            continue
    nodes = await zk.get_many([entry.path for entry in entries])
    return [e for e, node in zip(entries, nodes, strict=True) if node is not None and node.stat.mzxid == e.mzxid]
