"""klamm topics: list, create, alter, grow, delete, describe."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from klamm.admin.pending_deletions import waits_for
from klamm.cli.client import connected
from klamm.cli.output import (
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    Json,
    TopicName,
    Yes,
    fail,
    key_values,
    print_json,
)
from klamm.cli.partition_table import (
    NotPreferred,
    Offline,
    UnderMinIsr,
    UnderReplicated,
    document,
    look,
    print_partitions,
    wanted_troubles,
)
from klamm.model.errors import ErrorCode
from klamm.model.ids import INTERNAL_TOPICS, BrokerId
from klamm.model.partition import Assignment
from klamm.model.wording import count, size

if TYPE_CHECKING:
    from klamm.client.blocking import BlockingClient
    from klamm.client.cluster_view import SeenPartition
    from klamm.model.errors import KafkaError

BROKERS_CHOICE = -1
topics_app = typer.Typer(help="List, create, alter, grow, delete and describe topics.", no_args_is_help=True)


@topics_app.command("list")
def list_topics(
    under_replicated: UnderReplicated = False,
    under_min_isr: UnderMinIsr = False,
    offline: Offline = False,
    not_preferred: NotPreferred = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """List the names of all topics, or of those with a partition that a filter selects.

    Example: klamm topics list --under-replicated
    """
    wanted = wanted_troubles(under_replicated, under_min_isr, offline, not_preferred)
    with connected(bootstrap) as client:
        if wanted:
            names = sorted({each.name.topic for each in look(client, None, wanted)})
        else:
            names = client.run(client.admin.topic_names())
    if json:
        print_json({"topics": names})
    else:
        for name in names:
            typer.echo(name)


@topics_app.command()
def create(
    name: TopicName,
    partitions: Annotated[
        int | None, typer.Option(min=1, help="Number of partitions. The default is the brokers' num.partitions.")
    ] = None,
    replication_factor: Annotated[
        int | None,
        typer.Option(
            "--replication-factor",
            min=1,
            help="Replicas of each partition. The default is the brokers' default.replication.factor.",
        ),
    ] = None,
    config: Annotated[list[str] | None, typer.Option("--config", help="key=value; may be repeated.")] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Create a topic and wait until every partition has a leader.

    Example: klamm topics create orders --partitions 6 --replication-factor 3 --config retention.ms=86400000
    """
    from klamm.client.admin import NewTopic

    configs = key_values(config)
    with connected(bootstrap) as client:
        wanted = NewTopic(partitions or BROKERS_CHOICE, replication_factor or BROKERS_CHOICE, configs=configs)
        outcomes = client.run(client.admin.create_topics({name: wanted}))
        _refuse_if_error(outcomes[name], f"topic {name} was not created")
        client.run(client.cluster.repeating(f"leaders of topic {name}", lambda: _all_led(client, name)))
        (topic,) = client.run(client.admin.describe_topics([name]))
    replicas = len(topic.partitions[0].replica_nodes)
    if json:
        print_json({"created": name, "partitions": len(topic.partitions), "replication_factor": replicas})
    else:
        counts = f"{count(len(topic.partitions), 'partition')}, {count(replicas, 'replica')} each"
        typer.echo(f"created topic {name} with {counts}")


@topics_app.command()
def grow(
    name: TopicName,
    partitions: Annotated[int, typer.Option(min=1, help="Number of partitions afterwards.")],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Add partitions to a topic. Keys may then map to other partitions than before.

    Example: klamm topics grow orders --partitions 12
    """
    _refuse_internal(name, "grown: the number of its partitions determines where groups and transactions are found")
    with connected(bootstrap) as client:
        outcomes = client.run(client.admin.create_partitions({name: partitions}))
    _refuse_if_error(outcomes[name], f"topic {name} was not grown")
    if json:
        print_json({"grown": name, "partitions": partitions})
    else:
        typer.echo(f"topic {name} has {count(partitions, 'partition')}")


@topics_app.command()
def alter(
    name: TopicName,
    config: Annotated[list[str] | None, typer.Option("--config", help="key=value; may be repeated.")] = None,
    delete_config: Annotated[
        list[str] | None, typer.Option("--delete-config", help="Key that goes back to its default; may be repeated.")
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Change settings of a topic. klamm configs describe --topic shows them.

    Example: klamm topics alter orders --config retention.ms=86400000 --delete-config max.message.bytes
    """
    from klamm.client.admin import DELETE, SET, TOPIC

    wanted = key_values(config)
    removed = delete_config or []
    changes: dict[str, tuple[int, str | None]] = {key: (SET, value) for key, value in wanted.items()}
    changes |= dict.fromkeys(removed, (DELETE, None))
    if not changes:
        raise typer.BadParameter("use --config or --delete-config")
    with connected(bootstrap) as client:
        client.run(client.admin.alter_configs(TOPIC, name, changes))
    if json:
        print_json({"altered": name, "set": wanted, "unset": removed})
    else:
        typer.echo(f"altered topic {name}: {', '.join([*(config or ()), *(f'{key} unset' for key in removed)])}")


@topics_app.command()
def delete(name: TopicName, yes: Yes = False, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, json: Json = False) -> None:
    """Delete a topic and wait until it is gone from the metadata. klamm deletions says what a deletion waits for.

    Example: klamm topics delete orders --yes
    """
    _refuse_internal(name, "deleted: it holds consumer groups or transactions")
    from klamm.client.cluster_view import seen_partitions

    with connected(bootstrap) as client:
        seen = client.run(seen_partitions(client.admin, [name]))
        if not yes:
            fail(f"this deletes topic {name} with {_contents(client, seen)}: add --yes to do it")
        error = client.run(client.admin.delete_topics([name]))[name]
        if error is not None and error.code is ErrorCode.REQUEST_TIMED_OUT:
            fail(f"topic {name} is marked for deletion, which waits for {_obstacle(client, seen)}; see klamm deletions")
    _refuse_if_error(error, f"topic {name} was not deleted")
    if json:
        print_json({"deleted": name})
    else:
        typer.echo(f"deleted topic {name}")


@topics_app.command()
def describe(
    name: TopicName,
    under_replicated: UnderReplicated = False,
    under_min_isr: UnderMinIsr = False,
    offline: Offline = False,
    not_preferred: NotPreferred = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Show the leader, replicas and ISR of every partition, or of those that a filter selects.

    Example: klamm topics describe orders
    """
    wanted = wanted_troubles(under_replicated, under_min_isr, offline, not_preferred)
    with connected(bootstrap) as client:
        found = look(client, [name], wanted)
    if json:
        print_json({"topic": name, "partitions": [document(each) for each in found]})
    else:
        print_partitions(found, with_topic=False)


async def _all_led(client: BlockingClient, name: str) -> None:
    """Raises KafkaError while a partition has no leader."""
    (topic,) = (await client.cluster.metadata([name])).topics
    for partition in range(max(len(topic.partitions), 1)):
        await client.cluster.leader_of(name, partition)


def _contents(client: BlockingClient, seen: list[SeenPartition]) -> str:
    from klamm.client.cluster_load import replica_sizes

    sizes = client.run(replica_sizes(client.admin, [each.name for each in seen]))
    largest = sum(max(by_broker.values(), default=0) for by_broker in sizes.values())
    return f"{count(len(seen), 'partition')} and {size(largest)} of records"


def _obstacle(client: BlockingClient, seen: list[SeenPartition]) -> str:
    """What a deletion waits for, as far as the brokers tell."""
    live = {BrokerId(broker) for broker in client.run(client.admin.brokers())}
    assignments = {
        each.name.partition: Assignment(
            tuple(map(BrokerId, each.replicas)), tuple(map(BrokerId, each.adding)), tuple(map(BrokerId, each.removing))
        )
        for each in seen
    }
    return waits_for(assignments, live, has_controller=client.cluster.controller_id >= 0)


def _refuse_internal(name: str, what: str) -> None:
    if name in INTERNAL_TOPICS:
        fail(f"topic {name} is internal and must not be {what}")


def _refuse_if_error(error: KafkaError | None, what: str) -> None:
    if error is not None:
        fail(f"{what}: {error.message or error.code.name}")
