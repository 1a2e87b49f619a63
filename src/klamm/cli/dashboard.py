"""klamm dashboard: the cluster in a browser."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from klamm.cli.main import DASHBOARD_PORT, PORT_MAX
from klamm.cli.output import DEFAULT_BOOTSTRAP, Bootstrap, ZooKeeper, clear_errors, fail
from klamm.cli.zookeeper_address import zookeeper_of

PASSWORD_VARIABLE = "KLAMM_DASHBOARD_PASSWORD"
TOKEN_VARIABLE = "KLAMM_DASHBOARD_TOKEN"


def dashboard(
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    zookeeper: ZooKeeper = "",
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=PORT_MAX, help="0 picks a free port.")] = DASHBOARD_PORT,
    read_only: Annotated[bool, typer.Option("--read-only", help="Show everything, change nothing.")] = False,
    password_file: Annotated[
        Path | None, typer.Option(help=f"File with the password that visitors enter; or set {PASSWORD_VARIABLE}.")
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(help=f"File with a token for `Authorization: Bearer`; or set {TOKEN_VARIABLE}."),
    ] = None,
    tls_certificate: Annotated[Path | None, typer.Option(help="PEM file with the certificate chain.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="PEM file with the private key.")] = None,
    behind_proxy: Annotated[
        bool, typer.Option("--behind-proxy", help="A proxy in front of it speaks TLS with the browsers.")
    ] = False,
    host_name: Annotated[
        list[str] | None, typer.Option(help="Name under which browsers reach it; may be repeated.")
    ] = None,
    events: Annotated[
        list[Path] | None,
        typer.Option(
            help="Directory with the state-change.json files of klamm brokers, for causes; may be repeated.",
            exists=True,
            file_okay=False,
        ),
    ] = None,
) -> None:
    """Show the cluster in a browser: health, topics, controller, changes with causes, reassignments, messages.

    Works with klamm and with Apache Kafka in ZooKeeper mode. On another address than 127.0.0.1 it needs a password or
    token, and TLS. Example: klamm dashboard --bootstrap-server 127.0.0.1:9092 --read-only
    """
    with clear_errors():
        from klamm.dashboard.run_dashboard import run_dashboard
        from klamm.dashboard.settings import DashboardSettings

        run_dashboard(
            DashboardSettings(
                bootstrap=bootstrap,
                zookeeper=zookeeper_of(bootstrap, zookeeper),
                host=host,
                port=port,
                read_only=read_only,
                password=_secret(password_file, PASSWORD_VARIABLE),
                token=_secret(token_file, TOKEN_VARIABLE),
                certificate=tls_certificate,
                key=tls_key,
                behind_proxy=behind_proxy,
                host_names=tuple(host_name or ()),
                events=tuple(events or ()),
            )
        )


def _secret(file: Path | None, variable: str) -> str:
    """Secrets are not options, because every user of the machine can read the options of a process."""
    if file is None:
        return os.environ.get(variable, "")
    try:
        return file.read_text().strip() or fail(f"{file} is empty")
    except OSError as error:
        fail(f"cannot read {file}: {error.strerror}")
