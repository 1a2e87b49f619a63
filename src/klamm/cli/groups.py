"""klamm groups: list, describe with lag, reset with a plan first, delete."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from klamm.admin.group_lag import Kind, PlannedReset, ResetTo, check_inactive, lags, plan_reset, total_lag
from klamm.cli import completion
from klamm.cli.client import connected
from klamm.cli.output import DEFAULT_BOOTSTRAP, Bootstrap, GroupName, Json, Yes, fail, joined, print_json, print_table
from klamm.cli.times import milliseconds
from klamm.model.ids import TopicPartition
from klamm.model.wording import count

if TYPE_CHECKING:
    from klamm.client.blocking import BlockingClient
    from klamm.client.groups import DescribedGroup

groups_app = typer.Typer(help="List, describe, reset and delete consumer groups.", no_args_is_help=True)


@groups_app.command("list")
def list_groups(
    state: Annotated[list[str] | None, typer.Option(help="Stable, Empty, ...; may be repeated.")] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """List all groups with their states and coordinators.

    Example: klamm groups list --state Stable
    """
    from klamm.client.groups import GroupAdmin

    wanted = {entry.lower() for entry in state or ()}
    with connected(bootstrap) as client:
        found = client.run(GroupAdmin(client.cluster).list_all())
    found = [group for group in found if not wanted or group.state.lower() in wanted]
    if json:
        print_json({"groups": [group._asdict() for group in found]})
    else:
        rows = [(g[0], g[1] or "-", g[2], g[3]) for g in found]
        print_table(("GROUP", "TYPE", "STATE", "COORDINATOR"), rows, none="no group" if not wanted else "no such group")


@groups_app.command()
def describe(name: GroupName, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, json: Json = False) -> None:
    """Describe a group: its members, and how far it is behind in each partition.

    Example: klamm groups describe billing
    """
    from klamm.client.groups import GroupAdmin

    with connected(bootstrap) as client:
        admin = GroupAdmin(client.cluster)
        group = client.run(admin.describe(name))
        committed = client.run(admin.offsets(name))
        members = group.member_of()
        found = lags(committed, client.run(admin.log_ranges({*committed, *members})), members)
    _refuse_unknown(group, committed)
    if json:
        entries = [{**lag.partition._asdict(), **lag._asdict(), "partition": lag.partition.partition} for lag in found]
        people = [{**m._asdict(), "partitions": [str(each) for each in m.partitions]} for m in group.members]
        print_json({**group._asdict(), "members": people, "partitions": entries, "total_lag": total_lag(found)})
        return
    how = f", assigned by {group.assignor}" if group.assignor else ""
    typer.echo(f"group {name} is {group.state} with {count(len(group.members), 'member')}{how}")
    if group.members:
        rows = [(m.client_id, m.host, m.member_id, joined(m.partitions)) for m in group.members]
        print_table(("CLIENT", "HOST", "MEMBER", "PARTITIONS"), rows)
        typer.echo("")
    columns = ("TOPIC", "PARTITION", "COMMITTED", "END", "LAG", "EXPIRED UNREAD", "CLIENT")
    cells = [(*lag.partition, lag.committed, lag.end, lag.lag, lag.expired or "-", lag.member or "-") for lag in found]
    print_table(columns, [["-" if cell is None else cell for cell in row] for row in cells])
    typer.echo(f"{count(total_lag(found), 'record')} behind")


@groups_app.command()
def reset(
    name: GroupName,
    topic: Annotated[
        list[str] | None,
        typer.Option(
            help="TOPIC or TOPIC:0,1; may be repeated. The default is everything that is committed.",
            autocompletion=completion.topics,
        ),
    ] = None,
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="To the first record of each log.")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="To the end of each log.")] = False,
    to_time: Annotated[
        str | None, typer.Option(help="To the first record of this time: 2026-01-31T12:00, 1700000000000 or -90m.")
    ] = None,
    to_offset: Annotated[int | None, typer.Option(min=0, help="To this offset.")] = None,
    shift: Annotated[int | None, typer.Option(help="By this many records; -100 reads 100 again.")] = None,
    execute: Annotated[bool, typer.Option("--execute", help="Do it. Without this, only show the plan.")] = False,
    yes: Yes = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Show what a reset of the group's offsets would do, or do it with --execute. The group must have no members.

    A reset that goes forward skips records, which the group then never reads: it needs --yes.

    Example: klamm groups reset billing --topic orders --to-time -90m --execute
    """
    from klamm.client.groups import GroupAdmin

    to = _target(to_earliest, to_latest, to_time, to_offset, shift)
    with connected(bootstrap) as client:
        admin = GroupAdmin(client.cluster)
        group = client.run(admin.describe(name))
        committed = client.run(admin.offsets(name))
        partitions = _partitions(client, topic) if topic else sorted(committed)
        if not partitions:
            fail(f"group {name} has committed nothing: name the topics with --topic")
        plan = _plan(client, to, partitions, committed)
        if not json:
            _print_plan(plan)
        if execute:
            check_inactive(name, group.state, len(group.members))
            skipped = sum(entry.skipped for entry in plan)
            if skipped and not yes:
                fail(f"group {name} would never read {count(skipped, 'record')} that it skips: add --yes to do it")
            outcomes = client.run(admin.commit(name, {entry.partition: entry.after for entry in plan}))
            refused = [f"{place} {error.code.name}" for place, error in sorted(outcomes.items()) if error is not None]
            if refused:
                fail(f"refused: {', '.join(refused)}")
    if json:
        entries = [{**p.partition._asdict(), "before": p.before, "after": p.after, "note": p.note} for p in plan]
        print_json({"group": name, "executed": execute, "partitions": entries})
    else:
        said = f"group {name} reads from there" if execute else "nothing was changed: add --execute to do it"
        typer.echo(said)


@groups_app.command()
def delete(name: GroupName, yes: Yes = False, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, json: Json = False) -> None:
    """Delete a group without members, with all its committed offsets.

    Example: klamm groups delete billing --yes
    """
    from klamm.client.groups import GroupAdmin

    with connected(bootstrap) as client:
        admin = GroupAdmin(client.cluster)
        group = client.run(admin.describe(name))
        committed = client.run(admin.offsets(name))
        _refuse_unknown(group, committed)
        check_inactive(name, group.state, len(group.members))
        if not yes:
            fail(f"this deletes {count(len(committed), 'committed offset')} of group {name}: add --yes to do it")
        client.run(admin.delete(name))
    if json:
        print_json({"deleted": name})
    else:
        typer.echo(f"deleted group {name}")


def _refuse_unknown(group: DescribedGroup, committed: dict[TopicPartition, int]) -> None:
    if group.state == "Dead" and not committed:
        fail(f"group {group.name} does not exist")


def _target(
    to_earliest: bool, to_latest: bool, to_time: str | None, to_offset: int | None, shift: int | None
) -> ResetTo:
    asked: list[ResetTo] = []
    if to_earliest:
        asked.append(ResetTo(Kind.EARLIEST))
    if to_latest:
        asked.append(ResetTo(Kind.LATEST))
    if to_time is not None:
        asked.append(ResetTo(Kind.TIME, milliseconds(to_time)))
    if to_offset is not None:
        asked.append(ResetTo(Kind.OFFSET, to_offset))
    if shift is not None:
        asked.append(ResetTo(Kind.SHIFT, shift))
    if len(asked) != 1:
        raise typer.BadParameter("use one of --to-earliest, --to-latest, --to-time, --to-offset and --shift")
    return asked[0]


def _partitions(client: BlockingClient, topics: list[str]) -> list[TopicPartition]:
    from klamm.client.cluster_view import seen_partitions

    wanted: list[TopicPartition] = []
    for entry in topics:
        topic, colon, numbers = entry.partition(":")
        if colon and not all(number.isdecimal() for number in numbers.split(",")):
            raise typer.BadParameter(f"{entry!r} is not TOPIC or TOPIC:0,1", param_hint="--topic")
        known = [each.name for each in client.run(seen_partitions(client.admin, [topic]))]
        asked = {TopicPartition(topic, int(number)) for number in numbers.split(",")} if colon else set(known)
        missing = sorted(asked - set(known))
        if missing:
            fail(f"{missing[0]} does not exist")
        wanted += asked
    return sorted(set(wanted))


def _plan(
    client: BlockingClient, to: ResetTo, partitions: list[TopicPartition], committed: dict[TopicPartition, int]
) -> list[PlannedReset]:
    from klamm.client.groups import GroupAdmin
    from klamm.client.reader import offsets_at

    ranges = client.run(GroupAdmin(client.cluster).log_ranges(partitions))
    at_time = client.run(offsets_at(client.cluster, ranges, to.value)) if to.kind is Kind.TIME else {}
    return plan_reset(to, ranges, committed, at_time)


def _print_plan(plan: list[PlannedReset]) -> None:
    columns = ("TOPIC", "PARTITION", "BEFORE", "AFTER", "SKIPPED", "READ AGAIN", "NOTE")
    rows = [
        (*entry.partition, "-" if entry.before is None else entry.before, entry.after, *counts, entry.note)
        for entry in plan
        for counts in ((entry.skipped, entry.again),)
    ]
    print_table(columns, rows)
