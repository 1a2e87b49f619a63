"""klamm consume: prints records, one per line, and may commit what it printed for a group."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import typer

from klamm.admin.group_lag import check_inactive
from klamm.cli import completion
from klamm.cli.client import connected
from klamm.cli.output import DEFAULT_BOOTSTRAP, Bootstrap, Json, TopicName, fail
from klamm.cli.record_text import Form, line_of
from klamm.cli.times import milliseconds
from klamm.cli.topic_partitions import partitions_of
from klamm.model.ids import TopicPartition

if TYPE_CHECKING:
    from klamm.client.cluster import ClusterClient
    from klamm.client.reader import Reader

COMMIT_SECONDS: Final = 1.0


class Start(NamedTuple):
    """Where to begin: one of them, or the end."""

    from_beginning: bool = False
    offset: int | None = None
    time_ms: int | None = None

    @property
    def is_named(self) -> bool:
        return self != Start()


class Stop(NamedTuple):
    at_the_end: bool
    """Stop at the end that each log had when reading began."""
    max_messages: int | None
    timeout_ms: int | None


class Output(NamedTuple):
    form: Form
    separator: bytes


def consume(
    topic: TopicName,
    partition: Annotated[int | None, typer.Option(min=0, help="Read only this partition.")] = None,
    from_beginning: Annotated[bool, typer.Option("--from-beginning", help="Start with the oldest record.")] = False,
    from_offset: Annotated[int | None, typer.Option(min=0, help="Start at this offset; needs --partition.")] = None,
    from_time: Annotated[
        str | None, typer.Option(help="Start with the first record of this time: 2026-01-31T12:00, -90m, ...")
    ] = None,
    follow: Annotated[
        bool | None,
        typer.Option(help="Wait for more at the end. The default is to wait unless a start or a group is named."),
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(
            help="Go on where this group left off, and commit what was printed. The group must have no members.",
            autocompletion=completion.groups,
        ),
    ] = None,
    max_messages: Annotated[int | None, typer.Option(min=1, help="Stop after this many records.")] = None,
    timeout_ms: Annotated[
        int | None, typer.Option(min=1, help="Stop after this many milliseconds without a record.")
    ] = None,
    form: Annotated[Form, typer.Option("--format", help="Form of the lines.")] = Form.TEXT,
    key_separator: Annotated[str, typer.Option(help="Print keys too, with this text after them.")] = "",
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Print one record per line: its value, or a JSON object with --json. Ctrl-C ends it.

    Example: klamm consume orders --from-time -90m --follow --json
    """
    start = Start(from_beginning, from_offset, None if from_time is None else milliseconds(from_time))
    if sum((from_beginning, from_offset is not None, from_time is not None)) > 1:
        raise typer.BadParameter("use one of --from-beginning, --from-offset and --from-time")
    if from_offset is not None and partition is None:
        raise typer.BadParameter("--from-offset needs --partition")
    has_limit = max_messages is not None or timeout_ms is not None
    waits = follow if follow is not None else has_limit or not (start.is_named or group)
    stop = Stop(not waits, max_messages, timeout_ms)
    output = Output(Form.JSON if json else form, key_separator.encode())
    with connected(bootstrap) as client:
        known = partitions_of(client, topic, partition)
        wanted = [TopicPartition(topic, index) for index in (known if partition is None else [partition])]
        try:
            client.run(_consume(client.cluster, wanted, start, stop, output, group))
        except KeyboardInterrupt:
            pass


async def _consume(
    cluster: ClusterClient,
    partitions: list[TopicPartition],
    start: Start,
    stop: Stop,
    output: Output,
    group: str | None,
) -> None:
    from klamm.client.reader import LATEST, Reader, offsets_at

    positions = await _positions(cluster, partitions, start, group)
    ends = await offsets_at(cluster, partitions, LATEST) if stop.at_the_end else {}
    reader = Reader(cluster, positions)
    commits = _Commits(cluster, group, positions)
    try:
        await _print_records(reader, stop, ends, output, commits)
    finally:
        await reader.close()
        await commits.flush()


async def _print_records(
    reader: Reader, stop: Stop, ends: dict[TopicPartition, int], output: Output, commits: _Commits
) -> None:
    import asyncio

    printed = 0
    while not (stop.at_the_end and all(reader.positions[name] >= end for name, end in ends.items())):
        try:
            async with asyncio.timeout(None if stop.timeout_ms is None else stop.timeout_ms / 1000):
                while not (found := await reader.poll()):
                    if stop.at_the_end:
                        break
        except TimeoutError:
            return
        for place, record in found:
            if stop.at_the_end and record.offset >= ends[place]:
                continue
            sys.stdout.buffer.write(line_of(place, record, output.form, output.separator) + b"\n")
            printed += 1
            commits.printed(place, record.offset + 1)
            if printed == stop.max_messages:
                sys.stdout.buffer.flush()
                return
        sys.stdout.buffer.flush()
        await commits.flush(every=COMMIT_SECONDS)


async def _positions(
    cluster: ClusterClient, partitions: list[TopicPartition], start: Start, group: str | None
) -> dict[TopicPartition, int]:
    """A named start comes before the group's offsets, these come before the end."""
    from klamm.client.groups import GroupAdmin
    from klamm.client.reader import EARLIEST, LATEST, offsets_at

    if start.offset is not None:
        return dict.fromkeys(partitions, start.offset)
    ends = await offsets_at(cluster, partitions, LATEST)
    if start.time_ms is not None:
        found = await offsets_at(cluster, partitions, start.time_ms)
        return {name: offset if offset >= 0 else ends[name] for name, offset in found.items()}
    if start.from_beginning:
        return await offsets_at(cluster, partitions, EARLIEST)
    if group is None:
        return ends
    admin = GroupAdmin(cluster)
    described = await admin.describe(group)
    check_inactive(group, described.state, len(described.members))
    committed = await admin.offsets(group)
    earliest = await offsets_at(cluster, partitions, EARLIEST)
    return {name: max(committed.get(name, earliest[name]), earliest[name]) for name in partitions}


class _Commits:
    """Commits of what was printed, for a group or for none."""

    def __init__(self, cluster: ClusterClient, group: str | None, positions: dict[TopicPartition, int]) -> None:
        self._cluster = cluster
        self._group = group
        self._pending = dict(positions) if group else {}
        self._last = time.monotonic()

    def printed(self, name: TopicPartition, next_offset: int) -> None:
        if self._group:
            self._pending[name] = next_offset

    async def flush(self, every: float = 0.0) -> None:
        from klamm.client.groups import GroupAdmin

        if self._group is None or not self._pending or time.monotonic() - self._last < every:
            return
        outcomes = await GroupAdmin(self._cluster).commit(self._group, self._pending)
        refused = next((error for error in outcomes.values() if error is not None), None)
        if refused is not None:
            fail(f"the offsets of group {self._group} were not committed: {refused}")
        self._pending, self._last = {}, time.monotonic()
