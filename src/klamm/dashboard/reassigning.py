"""Makes, starts and cancels reassignments for a visitor, and removes the throttles when the moves have ended."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection
from typing import Final

from klamm.admin.balancing import plan_file
from klamm.admin.balancing.load import Goals, PartitionLoad, Plan, PlannedBroker
from klamm.admin.balancing.planner import PlanRefused, plan
from klamm.admin.balancing.validation import violations
from klamm.admin.replication_throttles import throttles_for
from klamm.client.admin import Admin, Outcome
from klamm.client.cluster import ClusterClient
from klamm.client.cluster_load import loaded_partitions
from klamm.client.throttles import remove_throttles, set_throttles
from klamm.dashboard.actions import ActionRefused, ClusterAccess
from klamm.dashboard.feed import Feed
from klamm.dashboard.plans import KeptPlan
from klamm.model.errors import KlammError
from klamm.model.ids import TopicPartition

logger = logging.getLogger(__name__)

WATCH_SECONDS: Final = 2.0


async def make_plan(cluster: ClusterClient, goals: Goals) -> tuple[Plan, bytes, int]:
    """The plan, its file and when it was made. Raises PlanRefused. The planner computes in a thread."""
    admin = Admin(cluster)
    _refuse_if_moving(await admin.reassignments())
    brokers = [PlannedBroker(broker.id, broker.rack) for broker in (await admin.brokers()).values()]
    loaded = await loaded_partitions(admin)
    partitions = [PartitionLoad(*each.name, each.replicas, each.size_bytes) for each in loaded]
    made = await asyncio.to_thread(plan, partitions, brokers, goals)
    wrong = violations(made, partitions, brokers, goals)
    assert not wrong, f"the planner broke its own rules: {wrong[:3]}"
    now_ms = int(time.time() * 1000)
    return made, plan_file.encode(made, cluster_id=cluster.cluster_id or "", made_at_ms=now_ms), now_ms


async def start(cluster: ClusterClient, kept: KeptPlan, rate: int | None) -> int:
    """Start the moves of a plan, throttled to `rate` bytes per second and broker; return their number. Raises
    PlanRefused if the cluster has changed since the plan was made, and ActionRefused if it refuses."""
    admin = Admin(cluster)
    changes = plan_file.decode(kept.document, cluster.cluster_id or "")
    _refuse_if_moving(await admin.reassignments())
    described = await admin.describe_topics()
    current = {(t.name, e.partition_index): tuple(e.replica_nodes) for t in described for e in t.partitions}
    difference = plan_file.changed_since(changes, current)
    if difference:
        raise PlanRefused(f"nothing was started: the cluster has changed since the plan was made: {difference}")
    targets = {TopicPartition(change.topic, change.partition): change.after for change in changes}
    if rate is not None:
        before = {TopicPartition(change.topic, change.partition): change.before for change in changes}
        await set_throttles(admin, *throttles_for(targets, before, rate))
    _refuse_if_any(await admin.alter_reassignments(targets), "started")
    return len(targets)


async def cancel(cluster: ClusterClient) -> int:
    """Cancel all moves that are running; return their number."""
    admin = Admin(cluster)
    moving = await admin.reassignments()
    if not moving:
        raise ActionRefused("nothing was done: no partition is being moved")
    _refuse_if_any(await admin.alter_reassignments(dict.fromkeys(moving)), "cancelled")
    return len(moving)


async def unthrottle_when_done(
    feed: Feed, access: ClusterAccess, cluster_id: str, topics: Collection[str], brokers: Collection[int]
) -> None:
    """Wait until nothing moves any more. If this fails, or the dashboard ends before, the throttles stay, and the page
    offers to remove them."""
    version = feed.current.version
    began = time.monotonic()
    while not feed.is_closed:
        observation = await feed.after(version, WATCH_SECONDS)
        version = observation.version
        snapshot = observation.snapshot
        is_fresh = observation.checked_at > began + WATCH_SECONDS
        if snapshot is not None and is_fresh and not any(topic.moving for topic in snapshot.topics.values()):
            break
    else:
        return
    try:
        async with access.brokers(cluster_id) as cluster:
            await remove_throttles(Admin(cluster), topics, brokers)
    except (KlammError, OSError, TimeoutError) as error:
        logger.warning("the throttles of the last moves could not be removed: %s", error)


def _refuse_if_moving(moving: Collection[TopicPartition]) -> None:
    if moving:
        raise PlanRefused(f"nothing was done: {min(moving)} is being moved already; wait for it, or cancel it")


def _refuse_if_any(outcomes: dict[TopicPartition, Outcome], word: str) -> None:
    refused = [f"{name} {error.code.name}" for name, error in sorted(outcomes.items()) if error is not None]
    if refused:
        raise ActionRefused(f"{len(refused)} of {len(outcomes)} were not {word}: {', '.join(refused[:5])}")
