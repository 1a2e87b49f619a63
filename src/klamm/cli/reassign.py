"""klamm reassign: execute, status, cancel. A plan is the JSON document that Kafka's own tool takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import orjson
import typer

from klamm.admin.reassignment_plan import PlannedMove, parse, problems
from klamm.cli.client import admin
from klamm.cli.output import DEFAULT_BOOTSTRAP, Bootstrap, Json, fail, print_json, print_table
from klamm.model.errors import ErrorCode

if TYPE_CHECKING:
    from kafka.admin import KafkaAdminClient

reassign_app = typer.Typer(help="Move partitions between brokers.", no_args_is_help=True)

PLAN_FORM = '{"partitions":[{"topic":"t","partition":0,"replicas":[1,2]}]}'
Plan = Annotated[Path, typer.Argument(help=f"File with the plan, as Kafka's own tool takes it: {PLAN_FORM}")]


@reassign_app.command()
def execute(plan: Plan, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, json: Json = False) -> None:
    """Start all moves of a plan, or none if any is impossible. `status` shows the progress."""
    moves = _read(plan)
    with admin(bootstrap) as client:
        wrong = _problems(client, moves)
        if wrong:
            fail(f"nothing was started: {'; '.join(wrong)}")
        _request_directories(client, moves)
        _alter(client, {move: list(move.replicas) for move in moves}, json, "started")


@reassign_app.command()
def cancel(plan: Plan, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, json: Json = False) -> None:
    """Cancel the moves of a plan that are still running."""
    moves = _read(plan)
    with admin(bootstrap) as client:
        _alter(client, dict.fromkeys(moves), json, "cancelled")


@reassign_app.command()
def status(bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, json: Json = False) -> None:
    """List the partitions that are being moved."""
    with admin(bootstrap) as client:
        moving = sorted(client.list_partition_reassignments().items())
    if json:
        entries = [{"topic": name.topic, "partition": name.partition, **lists} for name, lists in moving]
        print_json({"reassignments": entries})
        return
    rows = []
    for name, lists in moving:
        brokers = [",".join(map(str, lists[key])) for key in ("replicas", "adding_replicas", "removing_replicas")]
        rows.append((name.topic, name.partition, *brokers))
    print_table(("TOPIC", "PARTITION", "REPLICAS", "ADDING", "REMOVING"), rows)


def _alter(client: KafkaAdminClient, targets: Mapping[PlannedMove, list[int] | None], json: bool, word: str) -> None:
    from kafka import TopicPartition

    answers = client.alter_partition_reassignments(
        {TopicPartition(move.topic, move.partition): replicas for move, replicas in targets.items()}
    )
    refused = {f"{name.topic}-{name.partition}": error.__name__ for name, error in sorted(answers.items()) if error}
    if json:
        print_json({word: len(answers) - len(refused), "refused": refused})
    else:
        typer.echo(f"{word}: {len(answers) - len(refused)} of {len(answers)} partitions")
    if refused:
        fail("refused: " + ", ".join(f"{name} {reason.removesuffix('Error')}" for name, reason in refused.items()))


def _problems(client: KafkaAdminClient, moves: Sequence[PlannedMove]) -> list[str]:
    known = {(t["name"], entry["partition_index"]) for t in client.describe_topics() for entry in t["partitions"]}
    brokers = {broker["broker_id"] for broker in client.describe_cluster()["brokers"]}
    asked = sorted({broker for move in moves if move.log_dirs for broker in move.replicas} & brokers)
    described = client.describe_log_dirs(brokers=asked) if asked else []
    directories = {entry["broker"]: {found["log_dir"] for found in entry["log_dirs"]} for entry in described}
    return problems(moves, known, brokers, directories)


def _request_directories(client: KafkaAdminClient, moves: Sequence[PlannedMove]) -> None:
    """Ask for log directories before the moves start.

    A broker that does not have the replica yet remembers where to create it and answers ReplicaNotAvailable.
    """
    wanted = {
        (move.topic, move.partition, broker): path
        for move in moves
        for broker, path in move.named_directories().items()
    }
    answers = client.alter_replica_log_dirs(wanted)
    refused = [
        f"{replica.topic}-{replica.partition} on broker {replica.broker_id} {error.__name__.removesuffix('Error')}"
        for replica, error in sorted(answers.items())
        if error.errno not in (ErrorCode.NONE, ErrorCode.REPLICA_NOT_AVAILABLE)
    ]
    if refused:
        fail(f"nothing was started: log directories refused: {', '.join(refused)}")


def _read(plan: Path) -> list[PlannedMove]:
    try:
        return parse(orjson.loads(plan.read_bytes()))
    except OSError as error:
        fail(f"cannot read {plan}: {error.strerror}")
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError) as error:
        fail(f"{plan} is not a plan: {type(error).__name__} {error}; the form is {PLAN_FORM}")
