"""klamm bench: measurements of this machine, printed as one table or one JSON document."""

from __future__ import annotations

from typing import Annotated

import typer

from klamm.cli.output import Json, clear_errors, print_json, print_table

bench_app = typer.Typer(
    help="Measure klamm on this machine. Each benchmark starts what it needs and stops it.", no_args_is_help=True
)
Against = Annotated[
    str | None,
    typer.Option(help="Also run apache-kafka-2.5.1 or apache-kafka-3.9.1, round by round, and print the ratios."),
]
Rounds = Annotated[int, typer.Option(min=1, help="Rounds to run; the figures are their median.")]


def _progress(line: str) -> None:
    typer.echo(line, err=True)


@bench_app.command()
def controller(
    partitions: Annotated[int, typer.Option(min=1, help="Partitions in the cluster.")] = 100_000,
    brokers: Annotated[
        int, typer.Option(min=3, help="Number of stub brokers, which answer every control request at once.")
    ] = 5,
    replication: Annotated[int, typer.Option(min=1, help="Replicas of each partition.")] = 3,
    rounds: Rounds = 3,
    against: Against = None,
    json: Json = False,
) -> None:
    """Time a controller that loads the cluster, is re-elected, and loses and regains a broker.

    Each figure is the time until the last stub broker has received the last control request.

    Example: klamm bench controller --partitions 20000 --json
    """
    from klamm.bench.controller import bench

    with clear_errors():
        result = bench(
            partitions=partitions,
            brokers=brokers,
            replication=replication,
            rounds=rounds,
            against=against,
            progress=_progress,
        )
    if json:
        print_json(result)
        return
    ratios = result.get("ratios", {})
    rows = [
        (what, name, *(f"{value:.3f}" for value in figures.values()), f"{ratios[what]:g}" if what in ratios else "")
        for what in result["controllers"]["klamm"]["seconds"]
        for name, controller in result["controllers"].items()
        for figures in (controller["seconds"][what],)
    ]
    print_table(("SECONDS", "CONTROLLER", "MEDIAN", "LEAST", "MOST", "RATIO"), rows)
    for name, controller in result["controllers"].items():
        held, busy = (
            [hold for hold in controller[figure].values() if hold is not None]
            for figure in ("loop_held_longest_ms", "loop_busy_longest_ms")
        )
        loop = f", event loop blocked for at most {max(held)} ms ({max(busy)} ms of its own work)" if held else ""
        typer.echo(f"{name}: memory {controller['memory_mb']['median']:.0f} MB{loop}")
    if "memory" in ratios:
        typer.echo(f"memory ratio {ratios['memory']:g}")


@bench_app.command()
def zookeeper(
    nodes: Annotated[int, typer.Option(min=1, help="Znodes to read, write and watch.")] = 100_000,
    rounds: Rounds = 3,
    json: Json = False,
) -> None:
    """Time gets, fenced sets and watches with klamm's ZooKeeper client and with kazoo on a real server.

    Example: klamm bench zookeeper --json
    """
    from klamm.bench.zookeeper import bench

    with clear_errors():
        result = bench(nodes=nodes, rounds=rounds)
    if json:
        print_json(result)
        return
    columns = ("seconds", "seconds_least", "seconds_most", "operations_per_second")
    rows = [
        (name, client, *(f"{figures[client][column]:g}" for column in columns), f"{figures['ratio']:g}")
        for name, figures in result["results"].items()
        for client in ("klamm", "kazoo")
    ]
    print_table(("OPERATION", "CLIENT", "SECONDS", "LEAST", "MOST", "PER SECOND", "RATIO"), rows)


@bench_app.command()
def failover(
    partitions: Annotated[
        int, typer.Option(min=1, help="Partitions that the killed broker leads; it also follows as many others.")
    ] = 1_000,
    rounds: Rounds = 3,
    zookeeper: Annotated[
        str, typer.Option(help="embedded or memory. The default is embedded if Java and its jars are installed.")
    ] = "",
    json: Json = False,
) -> None:
    """Time from kill -9 to the next acks=all acknowledgement on every partition, with fast fail-over on and off.

    Example: klamm bench failover --json
    """
    from klamm.bench.failover import bench

    with clear_errors():
        result = bench(partitions=partitions, rounds=rounds, zookeeper=zookeeper)
    if json:
        print_json(result)
        return
    rows = []
    for victim, figures in result["victims"].items():
        for fast in ("on", "off"):
            summary = figures[f"fast_failover_{fast}"]
            seconds = (f"{summary[column]:.2f}" for column in ("seconds", "least", "most"))
            steps = (f"{took:.2f}" for took in summary["split"].values())
            rows.append((victim, fast, *seconds, *steps, f"{figures['ratio']:g}"))
    print_table(
        ("VICTIM", "FAST", "SECONDS", "LEAST", "MOST", "DETECT", "DECIDE", "COMMIT", "TELL", "CLIENT", "RATIO"), rows
    )


@bench_app.command()
def start(
    rounds: Rounds = 5,
    against: Against = None,
    json: Json = False,
) -> None:
    """Time three brokers and a ZooKeeper from nothing to ready, and measure their memory.

    Example: klamm bench start --json
    """
    from klamm.bench.start import bench

    with clear_errors():
        result = bench(rounds=rounds, against=against, progress=_progress)
    if json:
        print_json(result)
        return
    rows = [(name, f["ready_seconds"], f["memory_mb"]) for name, f in result["clusters"].items()]
    print_table(("CLUSTER", "READY AFTER S", "MEMORY MB"), rows)
    if "ratios" in result:
        ratios = result["ratios"]
        first, following = ratios["ready_seconds"], ratios["next_ready_seconds"]
        typer.echo(f"klamm is ready {first:g}x as fast, with 1/{ratios['memory_mb']:g} of the memory; ", nl=False)
        typer.echo(f"the next cluster of the same process {following:g}x as fast")


@bench_app.command()
def data(
    rounds: Rounds = 3,
    scale: Annotated[float, typer.Option(min=0.001, help="Multiplies the number of records of each load.")] = 1.0,
    load: Annotated[list[str] | None, typer.Option(help="Run only this load; may be given several times.")] = None,
    against: Against = None,
    json: Json = False,
) -> None:
    """Measure what three brokers take and give, with the clients and performance tools of Apache Kafka 2.5.1.

    Example: klamm bench data --json
    """
    from klamm.bench.data import bench

    with clear_errors():
        result = bench(
            rounds=rounds,
            scale=scale,
            against=against,
            only=load or (),
            progress=_progress,
        )
    if json:
        print_json(result)
        return
    ratios = result.get("ratios", {"loads": {}})
    rows = [
        (load, figure, name, *(f"{value:,.1f}" for value in f[figure].values()), _ratio(ratios["loads"], load, figure))
        for load, figures in result["clusters"]["klamm"]["loads"].items()
        for figure in figures
        for name, cluster in result["clusters"].items()
        for f in (cluster["loads"][load],)
    ]
    print_table(("LOAD", "FIGURE", "CLUSTER", "MEDIAN", "LEAST", "MOST", "RATIO"), rows)
    for name, cluster in result["clusters"].items():
        typer.echo(f"{name}: memory of the brokers {cluster['memory_mb']['median']:.0f} MB")


def _ratio(ratios: dict[str, dict[str, float]], load: str, figure: str) -> str:
    return f"{ratios[load][figure]:g}" if load in ratios else ""


@bench_app.command()
def lake(
    records: Annotated[int, typer.Option(min=1000, help="Records in the topic.")] = 2_000_000,
    record_bytes: Annotated[int, typer.Option(min=20, help="Bytes of each value.")] = 200,
    limit: Annotated[int, typer.Option(min=1, help="Offsets of a batch in the limited pair.")] = 1_000_000,
    rounds: Rounds = 3,
    json: Json = False,
) -> None:
    """Time klamm lake ingest beside the plain Spark job, without and with a limit, and its cold start.

    Example: klamm bench lake --records 200000 --json
    """
    from klamm.bench.lake import bench

    with clear_errors():
        result = bench(
            records=records,
            record_bytes=record_bytes,
            limit=limit,
            rounds=rounds,
            progress=_progress,
        )
    if json:
        print_json(result)
        return
    print_table(("JOB", "SECONDS"), [(name, f"{seconds:.2f}") for name, seconds in result["medians"].items()])
    ratios = result["ratios"]
    typer.echo(
        f"klamm is {ratios['without_limit']:g}x as fast as the plain job, {ratios['same_limit']:g}x with a limit"
    )
    typer.echo(f"cold start to the first commit: {result['cold_start_seconds']:g} s")
