"""Executes a plan: checks, throttles, starts, watches. What is executed is what was shown, or nothing.

Order: everything is checked, then throttles are set, then log directories are asked for, then all moves start in one
request. A throttle that is set too early slows nothing down; one that is set too late would not protect clients.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from klamm.admin.balancing.plan_file import changed_since, is_frozen
from klamm.admin.balancing.plan_file import decode as decode_plan
from klamm.admin.reassignment_plan import PlannedMove, problems
from klamm.admin.reassignment_progress import (
    Move,
    MoveProgress,
    Rate,
    incoming_bytes,
    lacking_space,
    progress_of,
    rate_of,
)
from klamm.admin.replication_throttles import throttles_for
from klamm.cli.output import fail
from klamm.cli.progress import Progress
from klamm.cli.reassign import NOTHING_MOVES
from klamm.client.cluster_load import Sizes, replica_sizes
from klamm.client.cluster_view import SeenPartition, seen_partitions
from klamm.client.throttles import remove_throttles, set_throttles, throttled
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ids import TopicPartition

if TYPE_CHECKING:
    from klamm.client.blocking import BlockingClient

LOOK_AGAIN: Final = 1.0
FORGET_SECONDS: Final = 5.0
FORGET_POLL: Final = 0.1
Targets = dict[TopicPartition, list[int]]


def start(
    client: BlockingClient, data: bytes, moves: Sequence[PlannedMove], throttle: int | None, *, ignore_space: bool
) -> int:
    """The number of partitions whose moves began. Fails, with nothing started, if anything speaks against it."""
    _check_frozen(client, data)
    seen = client.run(seen_partitions(client.admin))
    current = {each.name: each.replicas for each in seen}
    _check_possible(client, moves, current)
    targets = {TopicPartition(move.topic, move.partition): list(move.replicas) for move in moves}
    if not ignore_space:
        _check_space(client, targets, current)
    if throttle is not None:
        wanted = throttles_for(targets, current, throttle)
        client.run(set_throttles(client.admin, wanted.topics, wanted.brokers))
    _request_directories(client, moves)
    outcomes = alter(client, targets)
    refused = {str(name): error.code.name for name, error in sorted(outcomes.items()) if error is not None}
    if refused:
        fail("refused: " + ", ".join(f"{name} {reason}" for name, reason in refused.items()))
    return len(outcomes)


def alter(
    client: BlockingClient, targets: Mapping[TopicPartition, Sequence[int] | None]
) -> dict[TopicPartition, KafkaError | None]:
    return client.run(client.admin.alter_reassignments(targets))


def _check_frozen(client: BlockingClient, data: bytes) -> None:
    """What is executed must be what was shown, on the cluster that it was shown for."""
    if not is_frozen(data):
        return  # a plan by hand or by Kafka's own tool says nothing about the cluster
    changes = decode_plan(data, client.cluster.cluster_id or "")
    moving = client.run(client.admin.reassignments())
    if moving:
        fail(f"nothing was started: {min(moving)} is being moved already; wait for it, or cancel it")
    described = client.run(client.admin.describe_topics())
    current = {(t.name, e.partition_index): tuple(e.replica_nodes) for t in described for e in t.partitions}
    difference = changed_since(changes, current)
    if difference:
        fail(f"nothing was started: the cluster has changed since the plan was made: {difference}; make a new plan")


def _check_possible(
    client: BlockingClient, moves: Sequence[PlannedMove], current: Mapping[TopicPartition, Sequence[int]]
) -> None:
    brokers = set(client.run(client.admin.brokers()))
    asked = sorted({broker for move in moves if move.log_dirs for broker in move.replicas} & brokers)
    directories = {broker: {found.log_dir for found in client.run(client.admin.log_dirs(broker))} for broker in asked}
    wrong = problems(moves, current, brokers, directories)
    if wrong:
        fail(f"nothing was started: {'; '.join(wrong)}")


def _check_space(client: BlockingClient, targets: Targets, current: Mapping[TopicPartition, Sequence[int]]) -> None:
    """By the free space that brokers tell (klamm, and Kafka since 3.3). The directories of a broker count together."""
    incoming = incoming_bytes(targets, current, client.run(replica_sizes(client.admin, targets)))
    free: dict[int, int | None] = {}
    for broker in incoming:
        told = [entry.usable_bytes for entry in client.run(client.admin.log_dirs(broker, ())) if not entry.error_code]
        free[broker] = sum(told) if told and min(told) >= 0 else None
    lacking = lacking_space(incoming, free)
    if lacking:
        fail(f"nothing was started: {'; '.join(lacking)}; --ignore-space starts it anyway")


def _request_directories(client: BlockingClient, moves: Sequence[PlannedMove]) -> None:
    """Ask for log directories before the moves start.

    A broker that does not have the replica yet remembers where to create it and answers REPLICA_NOT_AVAILABLE.
    """
    wanted: dict[int, dict[TopicPartition, str]] = {}
    for move in moves:
        for broker, path in move.named_directories().items():
            wanted.setdefault(broker, {})[TopicPartition(move.topic, move.partition)] = path
    refused = [
        f"{name} on broker {broker} {error.code.name}"
        for broker, paths in sorted(wanted.items())
        for name, error in sorted(client.run(client.admin.alter_log_dirs(broker, paths)).items())
        if error is not None and error.code is not ErrorCode.REPLICA_NOT_AVAILABLE
    ]
    if refused:
        fail(f"nothing was started: log directories refused: {', '.join(refused)}")


def moving_now(client: BlockingClient) -> list[tuple[SeenPartition, MoveProgress]]:
    names = set(client.run(client.admin.reassignments()))
    if not names:
        return []
    seen = client.run(seen_partitions(client.admin, {name.topic for name in names}))
    moving = [each for each in seen if each.name in names and (each.adding or each.removing)]
    sizes: Sizes = client.run(replica_sizes(client.admin, [each.name for each in moving]))
    found = progress_of([Move(each.name, each.leader, each.adding) for each in moving], sizes)
    return list(zip(moving, found, strict=True))


def look_twice(
    client: BlockingClient, interval: float
) -> tuple[list[tuple[SeenPartition, MoveProgress]], Rate, tuple[list[str], dict[int, int]]]:
    """The moves, their rate over the interval, and the throttles. Without moves there is nothing to wait for."""
    first, began = moving_now(client), time.monotonic()
    moving = first
    rate = Rate(0.0, 0.0)
    if first:
        time.sleep(interval)
        moving = moving_now(client)
        rate = rate_of([p for _, p in first], [p for _, p in moving], time.monotonic() - began)
    return moving, rate, client.run(throttled(client.admin))


def wait_until_moved(client: BlockingClient) -> None:
    """Then the throttles are removed. Ctrl-C leaves everything as it is: the moves go on."""
    moving = moving_now(client)
    total = sum(progress.total_bytes for _, progress in moving)
    line = Progress("bytes", total, in_bytes=True)
    try:
        while moving:
            left = sum(progress.left_bytes for _, progress in moving)
            line.at(total - left, f"waiting for {len(moving)} partitions, first {moving[0][0].name}")
            time.sleep(LOOK_AGAIN)
            moving = moving_now(client)
    except KeyboardInterrupt:
        line.end()
        fail("the moves go on, and so does their throttle: klamm reassign status --wait, or cancel")
    line.end()
    clear_throttles(client)


def clear_throttles(client: BlockingClient) -> list[int]:
    topics, rates = client.run(throttled(client.admin))
    client.run(remove_throttles(client.admin, topics, rates))
    # Brokers hear of it through ZooKeeper. What is shown next must not tell of throttles that are removed.
    deadline = time.monotonic() + FORGET_SECONDS
    while (topics or rates) and any(client.run(throttled(client.admin))) and time.monotonic() < deadline:
        time.sleep(FORGET_POLL)
    return sorted(rates)


def change_throttle(client: BlockingClient, rate: int) -> list[int]:
    """On the brokers of the running moves."""
    moving = moving_now(client)
    if not moving:
        fail(NOTHING_MOVES)
    targets = {each.name: each.replicas for each, _ in moving}
    current = {each.name: [b for b in each.replicas if b not in each.adding] for each, _ in moving}
    wanted = throttles_for(targets, current, rate)
    client.run(set_throttles(client.admin, wanted.topics, wanted.brokers))
    return sorted(wanted.brokers)
