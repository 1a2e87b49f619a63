"""How long a coordinator takes to load ten thousand groups, as a client sees it.

All partitions of `__consumer_offsets` move to one broker by an election of preferred leaders. The figure is the time
from that request until the broker answers DescribeGroups for every group.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final

from klamm.client.addresses import addresses
from klamm.client.admin import Admin
from klamm.client.cluster import ClusterClient
from klamm.client.groups import GroupAdmin
from klamm.model.errors import ErrorCode
from klamm.model.ids import CONSUMER_OFFSETS, TopicPartition
from klamm.testing.waiting import eventually
from klamm.wire.apis import ApiKey
from klamm.wire.messages import request_class

AT_ONCE: Final = 50
DESCRIBED_AT_ONCE: Final = 500
PARTITIONS_EACH: Final = 5
"""Committed offsets of each group."""
PAUSE_SECONDS: Final = 0.01
PREFERRED: Final = 0
REQUEST_SECONDS: Final = 30.0
ELSEWHERE, HERE = 2, 1
"""Brokers: where the groups are loaded first, and where they are loaded against the clock."""


async def loading_seconds(bootstrap: str, topic: str, groups: int) -> float:
    names = [f"group-{number}" for number in range(groups)]
    async with ClusterClient(addresses(bootstrap), timeout=REQUEST_SECONDS).running() as client:
        await _commit(client, topic, names)
        await _move(client, ELSEWHERE, names)
        return await _move(client, HERE, names)


async def _commit(client: ClusterClient, topic: str, names: Iterable[str]) -> None:
    offsets = {TopicPartition(topic, number): 1 for number in range(PARTITIONS_EACH)}
    for chunk in _chunks(names, AT_ONCE):
        await asyncio.gather(*(_commit_one(client, name, offsets) for name in chunk))


async def _commit_one(client: ClusterClient, name: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Kafka 2.5 lets some of ten thousand commits time out, so it is asked again, as Kafka's own consumer does."""

    async def attempt() -> None:
        for error in (await GroupAdmin(client).commit(name, offsets)).values():
            if error is not None:
                raise error

    await client.repeating(f"the commit of {name}", attempt)


async def _move(client: ClusterClient, broker: int, names: Sequence[str]) -> float:
    """Make a broker lead all partitions; return how long it took until it answered for every group."""
    wanted = await _put_first(client, broker)
    asked_at = time.monotonic()
    election = asyncio.create_task(Admin(client).elect_leaders(PREFERRED, wanted))
    await _until_loaded(client, broker, names)
    took = time.monotonic() - asked_at
    for error in (await election).values():
        if error is not None and getattr(error, "code", None) is not ErrorCode.ELECTION_NOT_NEEDED:
            raise error
    return took


async def _put_first(client: ClusterClient, broker: int) -> dict[TopicPartition, list[int]]:
    """Make a broker the preferred leader of all partitions. The replicas stay where they are."""
    admin = Admin(client)
    (described,) = await admin.describe_topics([CONSUMER_OFFSETS])
    wanted = {
        TopicPartition(CONSUMER_OFFSETS, entry.partition_index): [
            broker,
            *(replica for replica in entry.replica_nodes if replica != broker),
        ]
        for entry in described.partitions
    }
    for error in (await admin.alter_reassignments(wanted)).values():
        if error is not None:
            raise error

    async def is_done() -> bool:
        return not await admin.reassignments()

    await eventually("the new order of replicas", is_done, timeout=120.0)
    return wanted


async def _until_loaded(client: ClusterClient, broker: int, names: Iterable[str]) -> None:
    cls = request_class(ApiKey.DESCRIBE_GROUPS)
    for chunk in _chunks(names, DESCRIBED_AT_ONCE):
        waiting = chunk
        while waiting:
            answer = await client.ask_broker(broker, ApiKey.DESCRIBE_GROUPS, cls(groups=waiting))
            waiting = [entry.group_id for entry in answer.groups if entry.error_code]
            if waiting:
                await asyncio.sleep(PAUSE_SECONDS)


def _chunks(names: Iterable[str], size: int) -> Iterator[list[str]]:
    rest = iter(names)
    while chunk := list(islice(rest, size)):
        yield chunk
