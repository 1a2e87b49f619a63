"""klamm bench: figures of this machine, in one table or one JSON document."""

from __future__ import annotations

from typing import Annotated

import typer

from klamm.cli.output import Json, clear_errors, print_json, print_table

bench_app = typer.Typer(help="Measure klamm on this machine.", no_args_is_help=True)


@bench_app.command()
def controller(
    partitions: Annotated[int, typer.Option(min=1)] = 100_000,
    brokers: Annotated[int, typer.Option(min=3, help="Stub brokers that answer every control request at once.")] = 5,
    replication: Annotated[int, typer.Option(min=1)] = 3,
    rounds: Annotated[int, typer.Option(min=1, help="Figures are the median of so many.")] = 3,
    against: Annotated[
        str | None,
        typer.Option(help="Run apache-kafka-2.5.1 or apache-kafka-3.9.1 the same way, in turn, and print the ratios."),
    ] = None,
    json: Json = False,
) -> None:
    """Cold load, re-election, death and return of a broker: seconds until the last stub was told the last thing."""
    from klamm.bench.controller import bench

    with clear_errors():
        result = bench(
            partitions=partitions,
            brokers=brokers,
            replication=replication,
            rounds=rounds,
            against=against,
            progress=lambda line: typer.echo(line, err=True),
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
        loop = f", loop held at most {max(held)} ms, {max(busy)} of one by its own work" if held else ""
        typer.echo(f"{name}: memory {controller['memory_mb']['median']:.0f} MB{loop}")
    if "memory" in ratios:
        typer.echo(f"memory ratio {ratios['memory']:g}")


@bench_app.command()
def zookeeper(
    nodes: Annotated[int, typer.Option(min=1)] = 100_000,
    rounds: Annotated[int, typer.Option(min=1, help="Figures are the median of so many.")] = 3,
    json: Json = False,
) -> None:
    """Gets, fenced sets and watches of klamm's ZooKeeper client, and of kazoo's asynchronous one, on a real server."""
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
    partitions: Annotated[int, typer.Option(min=1, help="So many led by the victim, and as many followed.")] = 1_000,
    rounds: Annotated[int, typer.Option(min=1, help="Figures are the median of so many.")] = 3,
    zookeeper: Annotated[str, typer.Option(help="embedded, memory; empty: the real one if it is at hand.")] = "",
    json: Json = False,
) -> None:
    """kill -9 until the next acks=all acknowledgement on every partition, with fast fail-over on and off."""
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
