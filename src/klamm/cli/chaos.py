"""klamm chaos: break a cluster of `klamm up` on this machine, to watch it heal.

Only processes that a `klamm up` started are killed, because it starts them again. A broker is found by the port that it
advertises, so nothing else on this machine can be hit.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Annotated, Final

import typer

from klamm.cli.client import connected
from klamm.cli.output import DEFAULT_BOOTSTRAP, Bootstrap, Json, TopicName, fail, print_json
from klamm.model.errors import ErrorCode

chaos_app = typer.Typer(no_args_is_help=True)

LOCAL: Final = ("127.0.0.1", "localhost")


@chaos_app.callback()
def _group() -> None:
    """Kill processes of a cluster that klamm up runs on this machine, to watch it heal."""


@chaos_app.command("kill-leader")
def kill_leader(
    topic: TopicName,
    partition: Annotated[int, typer.Option(min=0, help="Number of the partition.")] = 0,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Kill the broker that leads a partition with kill -9. klamm up starts it again after a second.

    Example: klamm chaos kill-leader orders --partition 0
    """
    with connected(bootstrap) as client:
        (described,) = client.run(client.admin.describe_topics([topic]))
        brokers = client.run(client.admin.brokers())
    if described.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        fail(f"topic {topic} does not exist")
    leader = next((entry.leader_id for entry in described.partitions if entry.partition_index == partition), None)
    if leader is None:
        fail(f"topic {topic} has no partition {partition}")
    if leader not in brokers:
        fail(f"{topic}-{partition} has no leader at the moment")
    pid = _process_of(leader, *brokers[leader].address)
    os.kill(pid, signal.SIGKILL)
    if json:
        print_json({"topic": topic, "partition": partition, "broker": leader, "process": pid})
    else:
        typer.echo(f"killed broker {leader}, the leader of {topic}-{partition} (process {pid})")


def _process_of(broker: int, host: str, port: int) -> int:
    from klamm.server.sockets import listener_on

    if host not in LOCAL:
        fail(f"broker {broker} is at {host}:{port}, not on this machine")
    pid = listener_on(port)
    if pid is None or not _runs_below_up(pid):
        fail(f"broker {broker} at {host}:{port} was not started by a klamm up of yours, so nothing would bring it back")
    return pid


def _runs_below_up(pid: int) -> bool:
    """Whether an ancestor of the process is `klamm up`: its parent is the fork server."""
    while pid > 1:
        try:
            status = Path(f"/proc/{pid}/status").read_text()
            pid = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("PPid:"))
            arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            return False
        if b"up" in arguments and any(b"klamm" in argument for argument in arguments):
            return True
    return False
