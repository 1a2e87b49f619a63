"""What the shell completes: topics, groups, brokers and contexts of the cluster that the line so far names.

A completion must be quick and silent: without an answer within two seconds there is none.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Final

import typer

from klamm.cli import context_file
from klamm.model.errors import KlammError

if TYPE_CHECKING:
    from klamm.client.blocking import BlockingClient

TIMEOUT: Final = 2.0


def topics(ctx: typer.Context, incomplete: str) -> list[str]:
    return _matching(ctx, incomplete, lambda client: client.admin.topic_names())


def groups(ctx: typer.Context, incomplete: str) -> list[str]:
    from klamm.client.groups import GroupAdmin

    async def names(client: BlockingClient) -> list[str]:
        return [group.name for group in await GroupAdmin(client.cluster).list_all()]

    return _matching(ctx, incomplete, names)


def brokers(ctx: typer.Context, incomplete: str) -> list[str]:
    async def ids(client: BlockingClient) -> list[str]:
        return [str(broker) for broker in sorted(await client.admin.brokers())]

    return _matching(ctx, incomplete, ids)


def contexts(incomplete: str) -> list[str]:
    try:
        return [name for name in sorted(context_file.read().by_name) if name.startswith(incomplete)]
    except KlammError:
        return []


def _matching(
    ctx: typer.Context, incomplete: str, ask: Callable[[BlockingClient], Awaitable[Iterable[str]]]
) -> list[str]:
    from klamm.cli.output import bootstrap_of
    from klamm.client.blocking import blocking_client

    async def asked(client: BlockingClient) -> list[str]:
        return [name for name in await ask(client) if name.startswith(incomplete)]

    try:
        with blocking_client(bootstrap_of(ctx), client_id="klamm-completion", timeout=TIMEOUT) as client:
            return client.run(asked(client))
    except (KlammError, OSError):
        return []
