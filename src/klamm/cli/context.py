"""klamm context: name clusters, and choose the one that commands talk to."""

from __future__ import annotations

from typing import Annotated

import typer

from klamm.cli import completion, context_file
from klamm.cli.context_file import PLAINTEXT, Context
from klamm.cli.output import Json, clear_errors, fail, print_json, print_table

context_app = typer.Typer(help="Name clusters and choose the one that commands talk to.", no_args_is_help=True)
Name = Annotated[str, typer.Argument(help="Name of the context.", autocompletion=completion.contexts)]


@context_app.command("list")
def list_contexts(json: Json = False) -> None:
    """List all contexts; a star marks the one in use.

    Example: klamm context list
    """
    with clear_errors():
        contexts = context_file.read()
    if json:
        entries = {name: context._asdict() for name, context in contexts.by_name.items()}
        print_json({"used": contexts.used or None, "contexts": entries})
        return
    rows = [
        ("*" if name == contexts.used else "", name, context.bootstrap_server, context.zookeeper)
        for name, context in sorted(contexts.by_name.items())
    ]
    print_table(("", "NAME", "BOOTSTRAP SERVER", "ZOOKEEPER"), rows, none="no context: klamm context set NAME")


@context_app.command("set")
def set_context(
    name: Name,
    address: Annotated[str, typer.Option("--bootstrap-server", help="HOST:PORT of brokers, several with commas.")],
    zookeeper: Annotated[str, typer.Option(help="HOST:PORT or HOST:PORT/chroot, if brokers do not say it.")] = "",
    security_protocol: Annotated[str, typer.Option(help="Only PLAINTEXT, until klamm has TLS and SASL.")] = PLAINTEXT,
    sasl_mechanism: Annotated[str, typer.Option(help="Refused until klamm has SASL.")] = "",
    tls_ca_file: Annotated[str, typer.Option(help="Refused until klamm has TLS.")] = "",
    json: Json = False,
) -> None:
    """Add a context or replace it. The first one is used at once.

    Example: klamm context set prod --bootstrap-server kafka-1:9092,kafka-2:9092
    """
    from klamm.client.addresses import addresses

    with clear_errors():
        context_file.check_security(security_protocol)
        if sasl_mechanism or tls_ca_file:
            fail("TLS and SASL are not supported yet: klamm's client speaks PLAINTEXT only")
        addresses(address)  # raises for what is no address
        contexts = context_file.read()
        changed = {**contexts.by_name, name: Context(address, zookeeper, security_protocol)}
        used = contexts.used or name
        context_file.write(contexts._replace(used=used, by_name=changed))
    if json:
        print_json({"set": name, "used": used})
    else:
        typer.echo(f"context {name} is {address}{', in use' if used == name else ''}")


@context_app.command()
def use(name: Name, json: Json = False) -> None:
    """Choose the context that commands use from now on.

    Example: klamm context use prod
    """
    with clear_errors():
        found = context_file.chosen(name)
        context_file.write(context_file.read()._replace(used=name))
    assert found is not None
    if json:
        print_json({"used": name})
    else:
        typer.echo(f"commands now talk to {name}, {found.bootstrap_server}")


@context_app.command()
def remove(name: Name, json: Json = False) -> None:
    """Remove a context. Nothing happens to the cluster.

    Example: klamm context remove prod
    """
    with clear_errors():
        contexts = context_file.read()
        if name not in contexts.by_name:
            fail(f"there is no context {name} in {context_file.path()}")
        left = {key: context for key, context in contexts.by_name.items() if key != name}
        used = "" if contexts.used == name else contexts.used
        context_file.write(contexts._replace(used=used, by_name=left))
    if json:
        print_json({"removed": name, "used": used or None})
    else:
        typer.echo(f"removed context {name}{'' if used or not left else '; none is in use now'}")
