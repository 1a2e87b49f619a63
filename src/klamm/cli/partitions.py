"""klamm partitions: list and describe."""

from __future__ import annotations

from typing import Annotated

import typer

from klamm.cli.client import connected
from klamm.cli.completion import topics as topic_names
from klamm.cli.output import DEFAULT_BOOTSTRAP, Bootstrap, Json, TopicName, fail, joined, print_json, print_table
from klamm.cli.partition_table import (
    NotPreferred,
    Offline,
    UnderMinIsr,
    UnderReplicated,
    document,
    look,
    print_partitions,
    troubles_of,
    wanted_troubles,
)
from klamm.model.wording import size

partitions_app = typer.Typer(help="List and describe partitions.", no_args_is_help=True)


@partitions_app.command("list")
def list_partitions(
    topic: Annotated[
        list[str] | None, typer.Option(help="Only of this topic; may be repeated.", autocompletion=topic_names)
    ] = None,
    under_replicated: UnderReplicated = False,
    under_min_isr: UnderMinIsr = False,
    offline: Offline = False,
    not_preferred: NotPreferred = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """List partitions with leader, replicas and ISR. Several filters show what any of them shows.

    Example: klamm partitions list --offline --under-min-isr
    """
    wanted = wanted_troubles(under_replicated, under_min_isr, offline, not_preferred)
    with connected(bootstrap) as client:
        found = look(client, topic, wanted)
    if json:
        print_json({"partitions": [{"topic": each.name.topic, **document(each)} for each in found]})
    else:
        print_partitions(found, with_topic=True)


@partitions_app.command()
def describe(
    topic: TopicName,
    partition: Annotated[int, typer.Argument(help="Number of the partition.", min=0)],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Describe one partition: leader, replicas with sizes, offsets, and what is wrong.

    Example: klamm partitions describe orders 0
    """
    from klamm.client.cluster_load import replica_sizes
    from klamm.client.cluster_view import seen_partitions
    from klamm.client.groups import GroupAdmin

    with connected(bootstrap) as client:
        all_of_it = client.run(seen_partitions(client.admin, [topic], with_min_isr=True))
        seen = next((each for each in all_of_it if each.name.partition == partition), None)
        if seen is None:
            fail(f"topic {topic} has partitions 0 to {len(all_of_it) - 1}, not {partition}")
        sizes = client.run(replica_sizes(client.admin, [seen.name])).get(seen.name, {})
        ranges = client.run(GroupAdmin(client.cluster).log_ranges([seen.name])) if seen.leader >= 0 else {}
    start, end = ranges.get(seen.name, (None, None))
    wrong = sorted(trouble.value for trouble in troubles_of(seen))
    if json:
        more = {"log_start_offset": start, "log_end_offset": end, "min_isr": seen.min_isr, "troubles": wrong}
        print_json({"topic": topic, **document(seen), **more, "size_bytes": sizes})
        return
    rows = [
        ("leader", f"{seen.leader if seen.leader >= 0 else 'none'} (epoch {seen.leader_epoch})"),
        ("replicas", joined(seen.replicas)),
        ("isr", f"{joined(seen.isr)} (at least {seen.min_isr} for acks=all)"),
        ("offline replicas", joined(seen.offline)),
        ("being added, removed", f"{joined(seen.adding)}, {joined(seen.removing)}"),
        ("offsets", "unknown" if start is None else f"{start} to {end}"),
        ("sizes", ", ".join(f"broker {broker}: {size(number)}" for broker, number in sorted(sizes.items())) or "-"),
        ("wrong", ", ".join(wrong) or "nothing"),
    ]
    print_table((str(seen.name), ""), rows)
