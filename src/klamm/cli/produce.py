"""klamm produce: one record per line of standard input."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, BinaryIO, Final

import orjson
import typer

from klamm.cli.client import connected
from klamm.cli.output import DEFAULT_BOOTSTRAP, Bootstrap, Json, TopicName, fail, key_values
from klamm.cli.progress import Progress
from klamm.cli.record_text import Form, ParsedLine, parse
from klamm.cli.topic_partitions import partitions_of
from klamm.model.wording import count

if TYPE_CHECKING:
    from klamm.client.producer import Producer
    from klamm.wire.records import Record

CHUNK_BYTES: Final = 256 * 1024


class Compression(StrEnum):
    NONE = "none"
    GZIP = "gzip"
    SNAPPY = "snappy"
    LZ4 = "lz4"
    ZSTD = "zstd"


def produce(
    topic: TopicName,
    key_separator: Annotated[
        str, typer.Option(help="Text between key and value. Without this option, records have no key.")
    ] = "",
    form: Annotated[
        Form, typer.Option("--format", help="Form of the lines. json: objects with key, value, headers, partition.")
    ] = Form.TEXT,
    header: Annotated[list[str] | None, typer.Option(help="name=value for every record; may be repeated.")] = None,
    compression: Annotated[Compression, typer.Option(help="How batches are compressed.")] = Compression.NONE,
    partition: Annotated[int | None, typer.Option(min=0, help="Send to this partition.")] = None,
    acks: Annotated[str, typer.Option(help="0, 1 or all.")] = "all",
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Read lines from standard input and send each as a record.

    Example: echo '{"key": "4711", "value": "paid"}' | klamm produce orders --format json --compression zstd
    """
    if acks not in {"0", "1", "all"}:
        raise typer.BadParameter(f"{acks!r} is not 0, 1 or all", param_hint="--acks")
    from klamm.client.producer import ALL_REPLICAS, Producer
    from klamm.wire.records import Codec

    headers = tuple((name, value.encode()) for name, value in key_values(header).items())
    places: list[tuple[int, int]] = []
    progress = Progress("records")
    with connected(bootstrap) as client:
        known = partitions_of(client, topic, partition)
        codec = Codec[compression.name]
        producer = Producer(client.cluster, acks=ALL_REPLICAS if acks == "all" else int(acks), codec=codec)
        try:
            for lines in _chunks_of_lines(sys.stdin.buffer):
                now = int(time.time() * 1000)
                parsed = [parse(line, form, key_separator.encode(), headers, now) for line in lines]
                offsets = client.run(producer.send(topic, _spread(producer, parsed, known, partition)))
                places += [(index, offset) for index, found in offsets.items() for offset in found]
                progress.at(len(places))
        except KeyboardInterrupt:
            pass  # what was sent is counted below
    progress.end()
    if json:
        found = [{"partition": index, "offset": offset} for index, offset in places]
        sys.stdout.write(orjson.dumps({"topic": topic, "records": found}).decode() + "\n")
    else:
        sys.stderr.write(f"sent {count(len(places), 'record')} to {topic}\n")


def _spread(
    producer: Producer, parsed: Sequence[ParsedLine], known: list[int], partition: int | None
) -> dict[int, list[Record]]:
    """By the option, by the line itself, else by key."""
    if partition is not None:
        return {partition: [line.record for line in parsed]}
    free = [line.record for line in parsed if line.partition is None]
    spread = producer.spread(free, known) if free else {}
    for line in parsed:
        if line.partition is not None:
            if line.partition not in known:
                fail(f"a line names partition {line.partition}; the topic has 0 to {max(known)}")
            spread.setdefault(line.partition, []).append(line.record)
    return spread


def _chunks_of_lines(source: BinaryIO) -> Iterator[list[bytes]]:
    """The lines that are there, as soon as they are: one at a terminal, thousands from a file."""
    rest = b""
    while chunk := source.read1(CHUNK_BYTES):  # type: ignore[attr-defined]
        *lines, rest = (rest + chunk).split(b"\n")
        if lines:
            yield [line.removesuffix(b"\r") for line in lines]
    if rest:
        yield [rest.removesuffix(b"\r")]
