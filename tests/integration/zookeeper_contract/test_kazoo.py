"""The recipes of kazoo, an independent client, on our server and on the real one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import BadVersionError, NoAuthError, NodeExistsError, NoNodeError, NotEmptyError
from kazoo.security import make_digest_acl

pytestmark = pytest.mark.asyncio(loop_scope="session")
PATIENCE = 10


@contextmanager
def kazoo(port: int, **options: Any) -> Iterator[KazooClient]:
    client = KazooClient(hosts=f"127.0.0.1:{port}", timeout=4, **options)
    client.start(timeout=PATIENCE)
    try:
        yield client
    finally:
        client.stop()
        client.close()


async def off_the_loop(work: Callable[[], None]) -> None:
    """Runs in a thread, because kazoo blocks and our server runs in this loop."""
    await asyncio.to_thread(work)


async def test_nodes(port: int) -> None:
    def work() -> None:
        with kazoo(port) as client:
            client.create("/kazoo-nodes/a/b", b"1", makepath=True)
            assert client.get("/kazoo-nodes/a/b")[0] == b"1"
            assert client.set("/kazoo-nodes/a/b", b"2", version=0).version == 1
            with pytest.raises(BadVersionError):
                client.set("/kazoo-nodes/a/b", b"3", version=0)
            with pytest.raises(NodeExistsError):
                client.create("/kazoo-nodes/a")
            with pytest.raises(NoNodeError):
                client.get("/kazoo-nodes/missing")
            with pytest.raises(NotEmptyError):
                client.delete("/kazoo-nodes/a")
            names = [client.create("/kazoo-nodes/s-", sequence=True, ephemeral=True) for _ in range(3)]
            assert names == sorted(names)
            assert client.create("/kazoo-nodes/with-stat", include_data=True)[1].version == 0
            assert client.sync("/kazoo-nodes") == "/kazoo-nodes"
            client.delete("/kazoo-nodes", recursive=True)
            assert client.exists("/kazoo-nodes") is None

    await off_the_loop(work)


async def test_transaction(port: int) -> None:
    def work() -> None:
        with kazoo(port) as client:
            client.create("/kazoo-transaction", b"")
            whole = client.transaction()
            whole.check("/kazoo-transaction", 0)
            whole.create("/kazoo-transaction/a", b"1")
            whole.set_data("/kazoo-transaction", b"x")
            results = whole.commit()
            assert results[:2] == [True, "/kazoo-transaction/a"]
            failing = client.transaction()
            failing.create("/kazoo-transaction/b")
            failing.check("/kazoo-transaction", 0)
            assert [type(result).__name__ for result in failing.commit()] == ["RolledBackError", "BadVersionError"]
            assert client.exists("/kazoo-transaction/b") is None

    await off_the_loop(work)


async def test_watches(port: int) -> None:
    def work() -> None:
        seen: list[bytes | None] = []
        listed: list[list[str]] = []
        changed = threading.Semaphore(0)
        with kazoo(port) as client, kazoo(port) as other:
            client.create("/kazoo-watches", b"0")

            @client.DataWatch("/kazoo-watches")
            def on_data(data: bytes | None, stat: Any) -> None:
                seen.append(data)
                changed.release()

            @client.ChildrenWatch("/kazoo-watches")
            def on_children(children: list[str]) -> None:
                listed.append(sorted(children))
                changed.release()

            def wait() -> None:
                assert changed.acquire(timeout=PATIENCE)

            wait(), wait()
            for number in (b"1", b"2"):
                other.set("/kazoo-watches", number)
                wait()
            for name in ("x", "y"):
                other.create(f"/kazoo-watches/{name}")
                wait()
        assert seen == [b"0", b"1", b"2"]
        assert listed == [[], ["x"], ["x", "y"]]

    await off_the_loop(work)


async def test_lock_passes_on_when_its_owner_dies(port: int) -> None:
    def work() -> None:
        with kazoo(port) as second:
            with kazoo(port) as first:
                assert first.Lock("/kazoo-lock", "first").acquire(timeout=PATIENCE)
                waiting = second.Lock("/kazoo-lock", "second")
                assert not waiting.acquire(blocking=False)
            assert waiting.acquire(timeout=PATIENCE)
            waiting.release()

    await off_the_loop(work)


async def test_election_counter_queue_and_party(port: int) -> None:
    def work() -> None:
        with kazoo(port) as client, kazoo(port) as other:
            led: list[str] = []
            client.Election("/kazoo-election", "a").run(led.append, "a")
            other.Election("/kazoo-election", "b").run(led.append, "b")
            assert led == ["a", "b"]
            counter, same = client.Counter("/kazoo-counter"), other.Counter("/kazoo-counter")
            counter += 2
            same += 3
            assert counter.value == 5
            queue = client.Queue("/kazoo-queue")
            for item in (b"1", b"2"):
                queue.put(item)
            assert [other.Queue("/kazoo-queue").get(), queue.get(), queue.get()] == [b"1", b"2", None]
            party = client.Party("/kazoo-party", "me")
            party.join()
            assert list(other.Party("/kazoo-party")) == ["me"]

    await off_the_loop(work)


async def test_access_lists(port: int) -> None:
    def work() -> None:
        with (
            kazoo(port, auth_data=[("digest", "user:secret")]) as owner,
            kazoo(port) as stranger,
        ):
            owner.create("/kazoo-acl", b"1", acl=[make_digest_acl("user", "secret", all=True)])
            assert owner.get("/kazoo-acl")[0] == b"1"
            with pytest.raises(NoAuthError):
                stranger.get("/kazoo-acl")
            stranger.add_auth("digest", "user:secret")
            assert stranger.get("/kazoo-acl")[0] == b"1"

    await off_the_loop(work)


async def test_chroot(port: int) -> None:
    def work() -> None:
        with kazoo(port) as plain:
            plain.ensure_path("/kazoo-chroot")
            with kazoo(port) as rooted:
                rooted.chroot = "/kazoo-chroot"
                assert rooted.create("/a", b"1", sequence=True) == "/a0000000000"
            assert plain.get("/kazoo-chroot/a0000000000")[0] == b"1"

    await off_the_loop(work)
