"""Partitions as rows and documents, and the filters by what is wrong with them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from klamm.admin.partition_health import Trouble, troubles
from klamm.cli.output import fail, joined, print_table
from klamm.model.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from klamm.client.blocking import BlockingClient
    from klamm.client.cluster_view import SeenPartition

UnderReplicated = Annotated[bool, typer.Option("--under-replicated", help="Only partitions whose ISR lacks a replica.")]
UnderMinIsr = Annotated[
    bool, typer.Option("--under-min-isr", help="Only partitions with fewer in-sync replicas than acks=all needs.")
]
Offline = Annotated[bool, typer.Option("--offline", help="Only partitions without a leader.")]
NotPreferred = Annotated[
    bool, typer.Option("--not-preferred", help="Only partitions that another replica than the first one leads.")
]


def wanted_troubles(
    under_replicated: bool, under_min_isr: bool, offline: bool, not_preferred: bool
) -> frozenset[Trouble]:
    """Several filters together show what any of them shows."""
    asked = (under_replicated, under_min_isr, offline, not_preferred)
    order = (Trouble.UNDER_REPLICATED, Trouble.UNDER_MIN_ISR, Trouble.OFFLINE, Trouble.NOT_PREFERRED)
    return frozenset(trouble for trouble, is_asked in zip(order, asked, strict=True) if is_asked)


def look(client: BlockingClient, topics: list[str] | None, wanted: frozenset[Trouble]) -> list[SeenPartition]:
    from klamm.client.cluster_view import seen_partitions

    needs_min_isr = Trouble.UNDER_MIN_ISR in wanted
    try:
        found = client.run(seen_partitions(client.admin, topics, with_min_isr=needs_min_isr))
    except KafkaError as error:
        fail(error.message if error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and error.message else str(error))
    return [partition for partition in found if not wanted or wanted & troubles_of(partition)]


def troubles_of(seen: SeenPartition) -> frozenset[Trouble]:
    return troubles(leader=seen.leader, replicas=seen.replicas, isr=seen.isr, min_isr=seen.min_isr, adding=seen.adding)


def document(seen: SeenPartition) -> dict[str, Any]:
    return {
        "partition": seen.name.partition,
        "leader": seen.leader,
        "leader_epoch": seen.leader_epoch,
        "replicas": seen.replicas,
        "isr": seen.isr,
        "offline": seen.offline,
        "adding": seen.adding,
        "removing": seen.removing,
    }


def print_partitions(partitions: Iterable[SeenPartition], *, with_topic: bool) -> None:
    columns = ("PARTITION", "LEADER", "EPOCH", "REPLICAS", "ISR", "OFFLINE")
    rows = [
        (
            *((each.name.topic,) if with_topic else ()),
            each.name.partition,
            each.leader if each.leader >= 0 else "none",
            each.leader_epoch,
            *map(joined, (each.replicas, each.isr, each.offline)),
        )
        for each in partitions
    ]
    print_table(("TOPIC", *columns) if with_topic else columns, rows, none="no partition is like that")
