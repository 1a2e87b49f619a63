"""The tree: a rollback leaves no trace, and repeated effects give the same tree."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.model.errors import BadArguments
from klamm.model.ports import OPEN_ACL
from klamm.zookeeper.jute import OpCode
from klamm.zookeeper.server.access import Caller
from klamm.zookeeper.server.database import Database, Failed
from klamm.zookeeper.server.rules import CheckVersion, CreateNode, DeleteNode, Operation, SetData, validate_path
from klamm.zookeeper.server.sessions import SessionTable
from klamm.zookeeper.server.transaction_records import pack_snapshot
from klamm.zookeeper.server.tree import Effect, Transaction

PATHS = ("/a", "/b", "/a/x", "/a/y", "/a/x/deep", "/b/s-")


class StandingClock:
    def wall_ms(self) -> int:
        return 1_700_000_000_000

    def monotonic(self) -> float:
        return 5.0


def database(committed: list[tuple[int, int, list[Effect]]] | None = None) -> Database[Any]:
    def on_commit(transaction: Transaction, session_id: int) -> None:
        if committed is not None:
            committed.append((transaction.zxid, transaction.time_ms, list(transaction.effects)))

    sessions: SessionTable[Any] = SessionTable(
        tick_ms=500, timeout_ms_min=1000, timeout_ms_max=10_000, random=random.Random(1)
    )
    return Database(StandingClock(), sessions, on_commit)


def state(of: Database[Any]) -> tuple[bytes, dict[int, list[str]], list[str]]:
    """Everything that a client can read. The order of nodes and children does not matter."""
    tree = of.tree
    rows = sorted(
        (path, node.data, node.packed_stat(), sorted(node.children or ())) for path, node in tree.nodes.items()
    )
    owned = {owner: sorted(paths) for owner, paths in tree.ephemerals.items()}
    return repr(rows).encode(), owned, sorted(tree.containers)


operations = st.one_of(
    st.builds(
        lambda path, flags: CreateNode(OpCode.CREATE2, path, b"new", OPEN_ACL, flags),
        st.sampled_from(PATHS),
        st.sampled_from((0, 0, 0, 1, 2, 3, 4)),
    ),
    st.builds(lambda path, version: DeleteNode(path, version), st.sampled_from(PATHS), st.sampled_from((-1, -1, 0))),
    st.builds(lambda path, data: SetData(path, data, -1), st.sampled_from(PATHS), st.sampled_from((None, b"", b"x"))),
    st.builds(lambda path: CheckVersion(path, 0), st.sampled_from(PATHS)),
)
multis = st.lists(st.lists(operations, max_size=8), max_size=12)


@given(multis)
def test_a_failed_multi_leaves_no_trace(batches: list[list[Operation]]) -> None:
    changed = database()
    caller = Caller(session_id=7)
    for batch in batches:
        before = state(changed)
        zxid = changed.zxid
        outcome = changed.multi(batch, caller)
        assert changed.zxid == zxid + 1
        if isinstance(outcome, Failed):
            assert state(changed) == before
        else:
            assert len(outcome) == len(batch)


@given(multis)
def test_effects_repeated_elsewhere_give_the_same_tree(batches: list[list[Operation]]) -> None:
    committed: list[tuple[int, int, list[Effect]]] = []
    first, second = database(committed), database()
    session = first.open_session(4000)
    caller = Caller(session_id=session.id)
    for batch in batches:
        first.multi(batch, caller)
    first.close_session(session.id)
    for record in committed:
        second.replay(*record)
    assert state(second) == state(first)
    assert pack_snapshot(second.zxid, second.tree, second.sessions) == pack_snapshot(
        first.zxid, first.tree, first.sessions
    )


@pytest.mark.case("ZK-30")
@pytest.mark.parametrize(
    "path", ["", "a", "//", "/a/", "/a//b", "/.", "/..", "/a/./b", "/a/..", "/\x00", "/\U0001f600"]
)
def test_bad_paths(path: str) -> None:
    with pytest.raises(BadArguments):
        validate_path(path)


@pytest.mark.case("ZK-30")
@pytest.mark.parametrize("path", ["/", "/a", "/...", "/.a", "/a b", "/ü", "/a/..b", "/a/b."])
def test_good_paths(path: str) -> None:
    validate_path(path)


def test_an_empty_container_goes_once_it_had_a_child() -> None:
    base = database()
    caller = Caller()
    base.write(CreateNode(OpCode.CREATE_CONTAINER, "/c", b"", OPEN_ACL, 4), caller)
    base.delete_empty_containers()
    assert "/c" in base.tree.nodes
    base.write(CreateNode(OpCode.CREATE, "/c/x", b"", OPEN_ACL, 0), caller)
    base.delete_empty_containers()
    base.write(DeleteNode("/c/x", -1), caller)
    base.delete_empty_containers()
    assert "/c" not in base.tree.nodes
    assert not base.tree.containers
