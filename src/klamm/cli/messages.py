"""klamm produce and klamm consume: one record per line, through the same client library that users have."""

from __future__ import annotations

import base64
import sys
from typing import Annotated, Any

import orjson
import typer

from klamm.cli.output import DEFAULT_BOOTSTRAP, Bootstrap, Json, TopicName, clear_errors, fail


def produce(
    topic: TopicName,
    key_separator: Annotated[
        str, typer.Option(help="Text between key and value. Without this option, records have no key.")
    ] = "",
    partition: Annotated[int | None, typer.Option(min=0, help="Send to this partition.")] = None,
    acks: Annotated[str, typer.Option(help="0, 1 or all.")] = "all",
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Read lines from standard input and send each as a record."""
    if acks not in {"0", "1", "all"}:
        raise typer.BadParameter(f"{acks!r} is not 0, 1 or all", param_hint="--acks")
    from kafka import KafkaProducer

    sent = []
    with clear_errors(bootstrap):
        producer = KafkaProducer(bootstrap_servers=bootstrap, acks=acks if acks == "all" else int(acks), linger_ms=5)
        try:
            _refuse_unknown(producer.partitions_for(topic), topic, partition)
            for line in sys.stdin.buffer:
                key, value = _split(line.rstrip(b"\r\n"), key_separator.encode())
                sent.append(producer.send(topic, value=value, key=key, partition=partition))
            producer.flush()
            places = [future.get(timeout=30) for future in sent]
        finally:
            producer.close()
    if json:
        offsets = [{"partition": place.partition, "offset": place.offset} for place in places]
        sys.stdout.write(orjson.dumps({"topic": topic, "records": offsets}).decode() + "\n")
    else:
        sys.stderr.write(f"sent {len(places)} records to {topic}\n")


def consume(
    topic: TopicName,
    partition: Annotated[int | None, typer.Option(min=0, help="Read only this partition.")] = None,
    from_beginning: Annotated[bool, typer.Option("--from-beginning", help="Start with the oldest record.")] = False,
    max_messages: Annotated[int | None, typer.Option(min=1, help="Stop after this many records.")] = None,
    timeout_ms: Annotated[
        int | None, typer.Option(min=1, help="Stop after this many milliseconds without a record.")
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Print one record per line: its value, or a JSON object with --json."""
    from kafka import KafkaConsumer, TopicPartition

    with clear_errors(bootstrap):
        consumer = KafkaConsumer(
            bootstrap_servers=bootstrap,
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="earliest" if from_beginning else "latest",
            consumer_timeout_ms=timeout_ms if timeout_ms else float("inf"),
        )
        try:
            known = consumer.partitions_for_topic(topic)
            _refuse_unknown(known, topic, partition)
            wanted = sorted(known) if partition is None else [partition]
            consumer.assign([TopicPartition(topic, index) for index in wanted])
            for count, record in enumerate(consumer, start=1):
                _print(record, json)
                if count == max_messages:
                    break
        except KeyboardInterrupt:
            pass
        finally:
            consumer.close()


def _refuse_unknown(partitions: set[int] | None, topic: str, partition: int | None) -> None:
    if not partitions:
        fail(f"topic {topic} does not exist")
    if partition is not None and partition not in partitions:
        fail(f"topic {topic} has partitions 0 to {max(partitions)}, not {partition}")


def _split(line: bytes, separator: bytes) -> tuple[bytes | None, bytes]:
    if not separator or separator not in line:
        return None, line
    key, _, value = line.partition(separator)
    return key, value


def _print(record: Any, json: bool) -> None:
    if not json:
        sys.stdout.buffer.write((record.value or b"") + b"\n")
        sys.stdout.buffer.flush()
        return
    document = {
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": _text(record.key),
        "value": _text(record.value),
    }
    sys.stdout.write(orjson.dumps(document).decode() + "\n")
    sys.stdout.flush()


def _text(data: bytes | None) -> str | dict[str, str] | None:
    """Text if the bytes are UTF-8, else base64."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}
