"""klamm reassign: execute, status, cancel. The plan is the JSON document that Kafka's own tool takes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer

from klamm.cli.client import admin
from klamm.cli.output import DEFAULT_BOOTSTRAP, Bootstrap, Json, fail, print_json, print_table

reassign_app = typer.Typer(help="Move partitions between brokers.", no_args_is_help=True)

PLAN_FORM = '{"partitions":[{"topic":"t","partition":0,"replicas":[1,2]}]}'
Plan = Annotated[Path, typer.Argument(help=PLAN_FORM)]


@reassign_app.command()
def execute(plan: Plan, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, json: Json = False) -> None:
    """Start the moves of a plan, all or none; `status` shows how far they are."""
    targets = _read(plan)
    with admin(bootstrap) as client:
        wrong = _what_is_wrong(targets, client.describe_topics(), client.describe_cluster())
    if wrong:
        fail(f"nothing was started: {'; '.join(wrong)}")
    _alter(targets, bootstrap, json, "started")


@reassign_app.command()
def cancel(plan: Plan, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, json: Json = False) -> None:
    """Take back the moves of a plan that are still running."""
    _alter(dict.fromkeys(_read(plan)), bootstrap, json, "cancelled")


@reassign_app.command()
def status(bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, json: Json = False) -> None:
    """Every partition that is on the move."""
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


def _alter(targets: Mapping[tuple[str, int], list[int] | None], bootstrap: str, json: bool, word: str) -> None:
    from kafka import TopicPartition

    with admin(bootstrap) as client:
        answers = client.alter_partition_reassignments(
            {TopicPartition(topic, partition): replicas for (topic, partition), replicas in targets.items()}
        )
    refused = {f"{name.topic}-{name.partition}": error.__name__ for name, error in sorted(answers.items()) if error}
    if json:
        print_json({word: len(answers) - len(refused), "refused": refused})
    else:
        typer.echo(f"{word}: {len(answers) - len(refused)} of {len(answers)} partitions")
    if refused:
        fail("refused: " + ", ".join(f"{name} {reason.removesuffix('Error')}" for name, reason in refused.items()))


def _what_is_wrong(
    targets: dict[tuple[str, int], list[int]], topics: list[dict[str, Any]], cluster: dict[str, Any]
) -> list[str]:
    known = {(topic["name"], entry["partition_index"]) for topic in topics for entry in topic["partitions"]}
    brokers = {broker["broker_id"] for broker in cluster["brokers"]}
    wrong = []
    for (topic, partition), replicas in targets.items():
        name = f"{topic}-{partition}"
        if (topic, partition) not in known:
            wrong.append(f"{name} does not exist")
        elif not replicas:
            wrong.append(f"{name} would have no replica")
        elif len(set(replicas)) < len(replicas):
            wrong.append(f"{name} names a broker twice")
        elif not brokers.issuperset(replicas):
            wrong.append(f"{name} names unknown brokers {sorted(set(replicas) - brokers)}")
    return wrong


def _read(plan: Path) -> dict[tuple[str, int], list[int]]:
    try:
        document: Any = orjson.loads(plan.read_bytes())
        return {
            (str(entry["topic"]), int(entry["partition"])): [int(broker) for broker in entry["replicas"]]
            for entry in document["partitions"]
        }
    except OSError as error:
        fail(f"cannot read {plan}: {error.strerror}")
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError) as error:
        fail(f"{plan} is no plan: {type(error).__name__} {error}; it must be {PLAN_FORM}")
