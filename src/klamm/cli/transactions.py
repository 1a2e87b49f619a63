"""klamm transactions: list, describe, hanging, abort."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from klamm.cli import completion
from klamm.cli.client import connected
from klamm.cli.output import DEFAULT_BOOTSTRAP, Bootstrap, Json, fail, print_json, print_table

if TYPE_CHECKING:
    from klamm.client.transactions import OpenTransaction

transactions_app = typer.Typer(
    help="List and describe transactions; find and end those that hang.", no_args_is_help=True
)
Topic = Annotated[str, typer.Option("--topic", help="Name of the topic.", autocompletion=completion.topics)]


@transactions_app.command("list")
def list_transactions(
    state: Annotated[list[str] | None, typer.Option("--state", help="Ongoing, Empty, ...; may be repeated.")] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """List all transactional ids with their coordinators.

    Example: klamm transactions list --state Ongoing
    """
    from klamm.client.transactions import TransactionAdmin

    with connected(bootstrap) as client:
        found = sorted(
            client.run(TransactionAdmin(client.cluster).list_all(state or ())), key=lambda t: t.transactional_id
        )
    if json:
        print_json({"transactions": [entry._asdict() for entry in found]})
    else:
        rows = [(entry.transactional_id, entry.coordinator, entry.producer_id, entry.state) for entry in found]
        print_table(("TRANSACTIONAL ID", "COORDINATOR", "PRODUCER ID", "STATE"), rows, none="no transaction")


@transactions_app.command()
def describe(
    transactional_id: Annotated[str, typer.Argument(help="The transactional id.")],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Describe one transactional id: producer, state, timeout, partitions.

    Example: klamm transactions describe billing-1
    """
    from klamm.client.transactions import TransactionAdmin

    with connected(bootstrap) as client:
        found = client.run(TransactionAdmin(client.cluster).describe(transactional_id))
    partitions = [str(name) for name in sorted(found.partitions)]
    if json:
        print_json({**found._asdict(), "partitions": partitions})
        return
    rows = [
        ("producer id", found.producer_id),
        ("producer epoch", found.producer_epoch),
        ("state", found.state),
        ("timeout ms", found.timeout_ms),
        ("started ms", found.start_ms if found.start_ms >= 0 else "-"),
        ("partitions", ", ".join(partitions) or "-"),
    ]
    print_table((transactional_id, ""), rows)


@transactions_app.command()
def hanging(
    topic: Topic,
    older_than: Annotated[
        int,
        typer.Option("--older-than", min=0, help="Seconds since its last record."),
    ] = 900,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Find transactions that a partition has open and that no coordinator will end.

    Example: klamm transactions hanging --topic orders
    """
    from klamm.client.transactions import TransactionAdmin

    with connected(bootstrap) as client:
        search = TransactionAdmin(client.cluster).hanging_on(
            topic, now_ms=int(time.time() * 1000), older_than_ms=older_than * 1000
        )
        found = client.run(search)
    if json:
        print_json({"hanging": [{**entry._asdict(), "partition": str(entry.partition)} for entry in found]})
    elif not found:
        typer.echo(f"no transaction hangs on {topic}")
    else:
        rows = [(e.partition, e.start_offset, e.producer_id, e.producer_epoch, e.coordinator_epoch) for e in found]
        print_table(("PARTITION", "START OFFSET", "PRODUCER ID", "PRODUCER EPOCH", "COORDINATOR EPOCH"), rows)


@transactions_app.command()
def abort(
    topic: Topic,
    partition: Annotated[int, typer.Option(min=0, help="Number of the partition.")],
    start_offset: Annotated[int, typer.Option("--start-offset", min=0, help="Where the transaction begins.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do it: the transaction hangs, you are sure.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """End an open transaction of one partition by an abort marker. Its records are then never visible to read-committed
    consumers. The address must be one of the listener that brokers use among themselves.

    Example: klamm transactions abort --topic orders --partition 0 --start-offset 42 --yes
    """
    from klamm.client.transactions import TransactionAdmin

    with connected(bootstrap) as client:
        admin = TransactionAdmin(client.cluster)
        opened = client.run(admin.open_on(topic))
        found = _beginning_at(opened, partition, start_offset)
        if found is None:
            fail(f"{topic}-{partition} has no open transaction that begins at {start_offset}")
        if not yes:
            fail(
                f"this aborts the transaction of producer {found.producer_id} on {found.partition}: add --yes to do it"
            )
        client.run(admin.abort(found))
    if json:
        print_json({"aborted": {**found._asdict(), "partition": str(found.partition)}})
    else:
        typer.echo(f"aborted the transaction of producer {found.producer_id} on {found.partition}")


def _beginning_at(opened: list[OpenTransaction], partition: int, start_offset: int) -> OpenTransaction | None:
    return next((e for e in opened if e.partition.partition == partition and e.start_offset == start_offset), None)
