"""klamm lake: ingest topics into Delta tables exactly once, and audit the result.

PySpark is imported only when a command runs, so the commands exist without it and say what to install.
Exit codes: 0 done or clean, 1 failed or with findings, 2 wrong usage.
"""

from __future__ import annotations

import json
import re
import signal
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, NoReturn, TypeVar

import typer

lake_app = typer.Typer(
    name="lake",
    help="Ingest topics into a Delta lake with Spark, exactly once, and audit the result.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

BOOTSTRAP_VARIABLE = "KLAMM_BOOTSTRAP_SERVER"
_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_RESERVED = "_klamm"
_NAME = re.compile(r"[a-zA-Z0-9._-]{1,100}")
_SECONDS = re.compile(r"(\d+(?:\.\d+)?)s")
_T = TypeVar("_T")


def _parse_topics(text: str) -> list[str]:
    topics = [topic.strip() for topic in text.split(",")]
    for topic in topics:
        if not _TOPIC.fullmatch(topic) or topic in (".", ".."):
            raise typer.BadParameter(f"{topic!r} is not a topic name", param_hint="--topics")
        if topic == _RESERVED:
            raise typer.BadParameter(f"{topic!r} is reserved: the lake keeps its work there", param_hint="--topics")
    if len(set(topics)) < len(topics):
        raise typer.BadParameter("a topic is listed twice", param_hint="--topics")
    return topics


def _parse_trigger(text: str) -> float | None:
    if text == "available-now":
        return None
    match = _SECONDS.fullmatch(text)
    if not match or float(match.group(1)) <= 0:
        raise typer.BadParameter(f"{text!r}: use available-now, or seconds such as 10s", param_hint="--trigger")
    return float(match.group(1))


def _parse_bootstrap(text: str) -> str:
    for address in text.split(","):
        host, _, port = address.strip().rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise typer.BadParameter(f"{address!r} is not HOST:PORT", param_hint="--bootstrap-server")
    return text


def _parse_lake(text: str) -> str:
    from klamm.pipelines.lake_location import parse_location

    try:
        return parse_location(text)
    except ValueError as e:
        raise typer.BadParameter(str(e), param_hint="--lake") from e


def _parse_conf(settings: list[str] | None) -> dict[str, str]:
    pairs = [setting.partition("=") for setting in settings or ()]
    for key, equals, _ in pairs:
        if not key or not equals:
            raise typer.BadParameter(f"{key!r} is not KEY=VALUE", param_hint="--conf")
    return {key: value for key, _, value in pairs}


def _parse_decode(
    name: str,
    schema: str | None,
    max_value_bytes: int | None = None,
    registry: str | None = None,
    *,
    inferred: bool = True,
) -> Any:
    from klamm.pipelines.decode import Decode, Format

    if name not in list(Format):
        raise typer.BadParameter(f"{name!r}: use raw, json or avro", param_hint="--decode")
    decode = Format(name)
    if registry is not None and (decode is not Format.AVRO or not registry.startswith(("http://", "https://"))):
        raise typer.BadParameter("takes a http:// or https:// URL, with --decode avro", param_hint="--registry")
    if schema is not None and decode is Format.RAW:
        raise typer.BadParameter(f"{name} takes no --schema", param_hint="--decode")
    if schema is None and decode is not Format.RAW and registry is None and not (inferred and decode is Format.JSON):
        raise typer.BadParameter(f"{name} needs a --schema", param_hint="--decode")
    if decode is Format.AVRO and schema is not None:
        try:
            schema = Path(schema).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as e:
            raise typer.BadParameter(f"cannot read {schema}: {e}", param_hint="--schema") from e
    return Decode(decode, schema or "", max_value_bytes, registry)


def _parse_bound(text: str | None, option: str) -> Any:
    from klamm.pipelines.backfill import parse_bound

    try:
        return None if text is None else parse_bound(text)
    except ValueError as e:
        raise typer.BadParameter(
            f"{text!r}: use an offset, or a time such as 2026-11-17T08:00", param_hint=option
        ) from e


def _end(number: int, _frame: FrameType | None) -> NoReturn:
    """Exit through the `finally` blocks, which stop the JVM. A running batch is committed as a whole or not at all."""
    raise SystemExit(128 + number)


def _run(job: Callable[[], _T]) -> _T:
    """Run the job; print an expected failure as one line."""
    from klamm.pipelines.lake_state import LakeError

    before = {number: signal.signal(number, _end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        return job()
    except LakeError as e:
        print(f"klamm: {' '.join(str(e).split())}", file=sys.stderr)
        raise typer.Exit(1) from e
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


Servers = Annotated[str, typer.Option(help="HOST:PORT of a broker.", envvar=BOOTSTRAP_VARIABLE)]
Topics = Annotated[str, typer.Option(help="One topic, or several separated by commas.")]
Lake = Annotated[
    str, typer.Option(help="Directory of the lake. The table of a topic is in the subdirectory with the topic's name.")
]
Master = Annotated[str, typer.Option(help="Spark master.")]
DriverMemory = Annotated[str, typer.Option(help="Memory of the driver's JVM.")]
ExecutorMemory = Annotated[str | None, typer.Option(help="Memory of each executor on a Spark cluster.")]
ExecutorCores = Annotated[int | None, typer.Option(min=1, help="Cores of each executor on a Spark cluster.")]
Conf = Annotated[list[str] | None, typer.Option(help="KEY=VALUE: a setting of Spark. Repeatable.")]
DecodeFormat = Annotated[str, typer.Option(help="raw, json or avro: how to decode values into the column data.")]
Schema = Annotated[
    str | None,
    typer.Option(help="With json: 'id long, name string'; inferred by default. With avro: a schema file (.avsc)."),
]
MaxValueBytes = Annotated[int | None, typer.Option(min=0, help="Larger values are dead letters and are not decoded.")]
Registry = Annotated[
    str | None, typer.Option(help="URL of a schema registry such as Confluent's, for avro. --schema is optional then.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


@lake_app.command()
def ingest(
    bootstrap_server: Servers,
    lake: Lake,
    topics: Annotated[str | None, typer.Option(help="One topic, or several separated by commas.")] = None,
    pattern: Annotated[
        str | None, typer.Option(help="Regular expression for the names of topics, looked up at the start.")
    ] = None,
    trigger: Annotated[
        str,
        typer.Option(help="available-now ingests what is there and exits. 10s keeps running, with a batch every 10 s."),
    ] = "available-now",
    max_offsets_per_trigger: Annotated[
        int | None, typer.Option(min=1, help="Largest number of offsets in one batch, instead of --max-bytes.")
    ] = None,
    max_bytes: Annotated[int, typer.Option(min=1, help="About the largest number of bytes in one batch.")] = 1 << 30,
    name: Annotated[str, typer.Option(help="Name of the ingest. A table belongs to one ingest.")] = "main",
    on_new_log: Annotated[
        str,
        typer.Option(help="A topic that was recreated or truncated: fail, or new-incarnation to ingest it anew."),
    ] = "fail",
    take_over: Annotated[bool, typer.Option(help="Wait for the end of another ingest of these topics.")] = False,
    accept_version: Annotated[
        int, typer.Option(help="Accept changes of rows by other programs up to this version of the table.")
    ] = -1,
    group: Annotated[
        str | None, typer.Option(help="Consumer group to commit the positions to, so that Kafka's tools show the lag.")
    ] = None,
    max_dead_letters: Annotated[
        int | None, typer.Option(min=0, help="Stop a topic after more bad records than this in one run.")
    ] = None,
    partition_by: Annotated[
        str, typer.Option(help="date, or date,hour: directories by the records' timestamps.")
    ] = "none",
    decode: DecodeFormat = "raw",
    schema: Schema = None,
    registry: Registry = None,
    max_value_bytes: MaxValueBytes = None,
    progress: Annotated[
        float | None,
        typer.Option(min=0.1, help="Seconds between lines about each topic's lag and speed, on standard error."),
    ] = None,
    master: Master = "local[*]",
    driver_memory: DriverMemory = "1g",
    executor_memory: ExecutorMemory = None,
    executor_cores: ExecutorCores = None,
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """Ingest topics into Delta tables, exactly once. You can kill it at any moment and start it again.

    Example: klamm lake ingest --bootstrap-server 127.0.0.1:9092 --topics orders --lake /data/lake --trigger 10s
    """
    if not _NAME.fullmatch(name) or name in (".", ".."):
        raise typer.BadParameter(f"{name!r}: use letters, digits, dots, dashes and underscores", param_hint="--name")
    if (topics is None) == (pattern is None):
        raise typer.BadParameter("name --topics or a --pattern", param_hint="--topics")
    try:
        re.compile(pattern or "")
    except re.error as e:
        raise typer.BadParameter(f"{pattern!r}: {e}", param_hint="--pattern") from e
    names = [] if topics is None else _parse_topics(topics)
    interval, servers = _parse_trigger(trigger), _parse_bootstrap(bootstrap_server)
    directory, settings = _parse_lake(lake), _parse_conf(conf)

    from klamm.pipelines.columns import PartitionBy
    from klamm.pipelines.ingest import run_ingest
    from klamm.pipelines.ingest_options import IngestOptions, OnNewLog
    from klamm.pipelines.spark_session import SparkOptions

    if on_new_log not in list(OnNewLog):
        raise typer.BadParameter(f"{on_new_log!r}: use fail or new-incarnation", param_hint="--on-new-log")
    if partition_by not in list(PartitionBy):
        raise typer.BadParameter(f"{partition_by!r}: use date, or date,hour", param_hint="--partition-by")
    options = IngestOptions(
        bootstrap_server=servers,
        topics=names,
        lake=directory,
        interval_seconds=interval,
        spark=SparkOptions(master, driver_memory, executor_memory, executor_cores, settings),
        max_offsets_per_trigger=max_offsets_per_trigger,
        max_bytes=max_bytes,
        name=name,
        on_new_log=OnNewLog(on_new_log),
        pattern=pattern,
        take_over=take_over,
        partition_by=PartitionBy(partition_by),
        accept_version=accept_version,
        group=group,
        max_dead_letters=max_dead_letters,
        decode=_parse_decode(decode, schema, max_value_bytes, registry),
        progress_seconds=progress,
        say=lambda line: print(line, file=sys.stderr, flush=True),
    )
    reports = _run(lambda: run_ingest(options))
    _print(reports, as_json=as_json)
    failed = [report for report in reports if report.failure]
    for report in failed:
        print(f"klamm: {' '.join(str(report.failure).split())}", file=sys.stderr)
    if failed:
        raise typer.Exit(1)


@lake_app.command()
def status(
    lake: Lake,
    topics: Topics,
    bootstrap_server: Servers,
    master: Master = "local[*]",
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """Show how far each topic is: lag, speed, time left, last commit, open transactions, dead letters.

    Needs Spark only for a lake that is not a directory of this machine.
    Example: klamm lake status --bootstrap-server 127.0.0.1:9092 --topics orders --lake /data/lake
    """
    names, directory, settings = _parse_topics(topics), _parse_lake(lake), _parse_conf(conf)
    servers = _parse_bootstrap(bootstrap_server)

    from klamm.pipelines.spark_session import SparkOptions
    from klamm.pipelines.status import lake_status

    found = _run(lambda: lake_status(directory, names, servers, SparkOptions(master, conf=settings)))
    _print(found, as_json=as_json)


@lake_app.command()
def audit(
    lake: Lake,
    topics: Topics,
    bootstrap_server: Servers,
    master: Master = "local[*]",
    driver_memory: DriverMemory = "1g",
    executor_memory: ExecutorMemory = None,
    executor_cores: ExecutorCores = None,
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """Check that each offset is in the table exactly once, or is missing for a known reason. Exit 1 if not.

    Example: klamm lake audit --bootstrap-server 127.0.0.1:9092 --topics orders --lake /data/lake
    """
    names, directory, settings = _parse_topics(topics), _parse_lake(lake), _parse_conf(conf)
    servers = _parse_bootstrap(bootstrap_server)

    from klamm.pipelines.audit_job import audit_topics
    from klamm.pipelines.spark_session import SparkOptions

    options = SparkOptions(master, driver_memory, executor_memory, executor_cores, settings)
    reports = _run(lambda: audit_topics(directory, names, servers, options))
    if as_json:
        print(json.dumps({"topics": [report.fields() for report in reports]}))
    else:
        for report in reports:
            print("\n".join(report.lines()))
    if not all(report.is_clean for report in reports):
        raise typer.Exit(1)


@lake_app.command()
def replay(
    lake: Lake,
    topics: Topics,
    nanoseconds: Annotated[
        bool, typer.Option("--nanoseconds", help="Impossible timestamps are nanoseconds: set the right ones.")
    ] = False,
    decode: Annotated[str, typer.Option(help="json or avro: decode undecodable values again.")] = "raw",
    schema: Annotated[str | None, typer.Option(help="As for ingest, corrected.")] = None,
    master: Master = "local[*]",
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """Repair dead letters after a fix. They stay at their offsets, and their error is cleared.

    Example: klamm lake replay --topics orders --lake /data/lake --decode json --schema orders.json
    """
    decoding = _parse_decode(decode, schema, inferred=False)
    if nanoseconds == (decoding.data is not None):
        raise typer.BadParameter("use --nanoseconds, or --decode with a --schema", param_hint="--decode")
    _maintain(
        *(lake, topics, master, conf),
        lambda table: table.replay_timestamps() if nanoseconds else table.replay_values(decoding),
        as_json=as_json,
    )


@lake_app.command()
def forget(
    lake: Lake,
    topics: Topics,
    key: Annotated[str, typer.Option(help="The key whose rows are erased, as text.")],
    master: Master = "local[*]",
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """Erase all rows with a key. The audit knows their offsets. VACUUM removes the old files.

    Example: klamm lake forget --topics orders --lake /data/lake --key customer-7
    """
    _maintain(lake, topics, master, conf, lambda table: table.forget(key.encode()), as_json=as_json)


@lake_app.command()
def backfill(
    lake: Lake,
    topics: Topics,
    bootstrap_server: Servers,
    first: Annotated[
        str | None,
        typer.Option("--from", help="First offset, or a time (2026-11-17T08:00, UTC). Default: the log start."),
    ] = None,
    last: Annotated[
        str | None, typer.Option("--to", help="Offset or time before which it ends. Default: where the table ends.")
    ] = None,
    decode: DecodeFormat = "raw",
    schema: Schema = None,
    registry: Registry = None,
    max_value_bytes: MaxValueBytes = None,
    master: Master = "local[*]",
    driver_memory: DriverMemory = "1g",
    executor_memory: ExecutorMemory = None,
    executor_cores: ExecutorCores = None,
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """Read a range of topics again, and add the rows that their tables lack. Forgotten rows stay away.

    Example: klamm lake backfill --bootstrap-server 127.0.0.1:9092 --topics orders --lake /data/lake --from 1000
    """
    names, directory, settings = _parse_topics(topics), _parse_lake(lake), _parse_conf(conf)
    servers, decoding = _parse_bootstrap(bootstrap_server), _parse_decode(decode, schema, max_value_bytes, registry)
    bounds = _parse_bound(first, "--from"), _parse_bound(last, "--to")

    from klamm.pipelines.backfill import backfill_topics
    from klamm.pipelines.spark_session import SparkOptions

    options = SparkOptions(master, driver_memory, executor_memory, executor_cores, settings)
    _print(_run(lambda: backfill_topics(directory, names, servers, options, decoding, *bounds)), as_json=as_json)


@lake_app.command()
def compact(
    lake: Lake, topics: Topics, master: Master = "local[*]", conf: Conf = None, as_json: AsJson = False
) -> None:
    """Join small files of the tables.

    Example: klamm lake compact --topics orders --lake /data/lake
    """
    _maintain(lake, topics, master, conf, lambda table: table.compact(), as_json=as_json)


def _maintain(
    lake: str,
    topics: str,
    master: str,
    conf: list[str] | None,
    work: Callable[[Any], Any],
    *,
    as_json: bool,
) -> None:
    names, directory, settings = _parse_topics(topics), _parse_lake(lake), _parse_conf(conf)

    from klamm.pipelines.maintenance_job import maintained
    from klamm.pipelines.spark_session import SparkOptions

    def job() -> list[Any]:
        with maintained(directory, names, SparkOptions(master, conf=settings)) as tables:
            return [work(table) for table in tables]

    _print(_run(job), as_json=as_json)


def _print(reports: Iterable[Any], *, as_json: bool) -> None:
    """Each report has `fields` and `line`."""
    if as_json:
        print(json.dumps({"topics": [report.fields() for report in reports]}))
    else:
        for report in reports:
            print(report.line())
