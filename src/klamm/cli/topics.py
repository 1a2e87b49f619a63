"""klamm topics: list, create, grow, delete, describe."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from klamm.cli.client import admin
from klamm.cli.output import DEFAULT_BOOTSTRAP, Bootstrap, Json, TopicName, fail, print_json, print_table
from klamm.model.errors import ErrorCode
from klamm.model.ids import INTERNAL_TOPICS

topics_app = typer.Typer(help="List, create, grow, delete and describe topics.", no_args_is_help=True)


@topics_app.command("list")
def list_topics(bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, json: Json = False) -> None:
    """List the names of all topics."""
    with admin(bootstrap) as client:
        names = sorted(client.list_topics())
    if json:
        print_json({"topics": names})
    else:
        for name in names:
            typer.echo(name)


@topics_app.command()
def create(
    name: TopicName,
    partitions: Annotated[int, typer.Option(min=1, help="Number of partitions.")] = 1,
    replication_factor: Annotated[
        int, typer.Option("--replication-factor", min=1, help="Replicas of each partition.")
    ] = 1,
    config: Annotated[list[str] | None, typer.Option("--config", help="key=value; may be repeated.")] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Create a topic and wait until every partition has a leader."""
    configs = dict(_key_value(entry) for entry in config or ())
    wanted = {"num_partitions": partitions, "replication_factor": replication_factor, "configs": configs}
    with admin(bootstrap) as client:
        answer = client.create_topics({name: wanted}, raise_errors=False)["topics"][0]
    _refuse_if_error(answer, f"topic {name} was not created")
    if json:
        print_json({"created": name, "partitions": partitions, "replication_factor": replication_factor})
    else:
        typer.echo(f"created topic {name} with {partitions} partitions, {replication_factor} replicas each")


@topics_app.command()
def grow(
    name: TopicName,
    partitions: Annotated[int, typer.Option(min=1, help="Number of partitions afterwards.")],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Add partitions to a topic. Keys may then map to other partitions than before."""
    _refuse_internal(name, "grown: the number of its partitions determines where groups and transactions are found")
    with admin(bootstrap) as client:
        (answer,) = client.create_partitions({name: partitions}, raise_errors=False).results
    _refuse_if_error(answer.to_dict(), f"topic {name} was not grown")
    if json:
        print_json({"grown": name, "partitions": partitions})
    else:
        typer.echo(f"topic {name} has {partitions} partitions")


@topics_app.command()
def delete(name: TopicName, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, json: Json = False) -> None:
    """Delete a topic and wait until it is gone from the metadata."""
    _refuse_internal(name, "deleted: it holds consumer groups or transactions")
    with admin(bootstrap) as client:
        answer = client.delete_topics([name], raise_errors=False)["topics"][0]
    _refuse_if_error(answer, f"topic {name} was not deleted")
    if json:
        print_json({"deleted": name})
    else:
        typer.echo(f"deleted topic {name}")


@topics_app.command()
def describe(
    name: TopicName,
    under_replicated: Annotated[
        bool, typer.Option("--under-replicated", help="Show only partitions whose ISR lacks a replica.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Show the leader, replicas and ISR of every partition."""
    with admin(bootstrap) as client:
        topic = client.describe_topics([name])[0]
        moving = client.list_partition_reassignments() if under_replicated else {}
    _refuse_if_error(topic, f"topic {name}")
    adding = {key.partition: set(lists["adding_replicas"]) for key, lists in moving.items() if key.topic == name}
    partitions = [
        {
            "partition": partition["partition_index"],
            "leader": partition["leader_id"],
            "leader_epoch": partition.get("leader_epoch", -1),
            "replicas": list(partition["replica_nodes"]),
            "isr": list(partition["isr_nodes"]),
            "offline": list(partition.get("offline_replicas") or ()),
        }
        for partition in sorted(topic["partitions"], key=lambda entry: entry["partition_index"])
        if not under_replicated or _lacks_a_replica(partition, adding.get(partition["partition_index"], set()))
    ]
    if json:
        print_json({"topic": name, "partitions": partitions})
        return
    print_table(
        ("PARTITION", "LEADER", "EPOCH", "REPLICAS", "ISR", "OFFLINE"),
        [
            (p["partition"], p["leader"], p["leader_epoch"], *(",".join(map(str, p[k])) for k in LISTS))
            for p in partitions
        ],
    )


LISTS = ("replicas", "isr", "offline")


def _lacks_a_replica(partition: dict[str, Any], adding: set[int]) -> bool:
    """A replica that is still being added does not count, because a move is not a failure."""
    return not set(partition["replica_nodes"]) - adding <= set(partition["isr_nodes"])


def _refuse_internal(name: str, what: str) -> None:
    if name in INTERNAL_TOPICS:
        fail(f"topic {name} is internal and must not be {what}")


def _key_value(entry: str) -> tuple[str, str]:
    key, equals, value = entry.partition("=")
    if not equals:
        raise typer.BadParameter(f"{entry!r} is not key=value")
    return key, value


def _refuse_if_error(answer: dict[str, Any], what: str) -> None:
    code = ErrorCode(answer["error_code"])
    if code is not ErrorCode.NONE:
        reason = answer.get("error_message") or code.name
        fail(f"{what}: {reason}")
