"""The watch table against a simple model of its rules."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.model.ports import OPEN_ACL, WatchKind
from klamm.zookeeper.server.tree import Event, NodeCreated, Transaction, Tree
from klamm.zookeeper.server.watch_table import Mode, WatchTable

PATHS = ("/", "/a", "/a/b", "/a/b/c", "/ab")
Registration = tuple[str, str, str]  # watcher, kind, path


def expected(registered: set[Registration], kind: WatchKind, path: str) -> tuple[set[str], set[Registration]]:
    """The watchers that receive the event, and the watches that are left."""
    ancestors = {"/"} | {path[:at] for at in range(1, len(path)) if path[at] == "/"}
    families = {
        WatchKind.CREATED: {"data"},
        WatchKind.DATA_CHANGED: {"data"},
        WatchKind.DELETED: {"data", "child"},
        WatchKind.CHILDREN_CHANGED: {"child"},
    }[kind]
    told: set[str] = set()
    spent: set[Registration] = set()
    for watcher, mode, watched in registered:
        if mode in families and watched == path:
            spent.add((watcher, mode, watched))
            told.add(watcher)
        lasting = mode == "persistent" and watched == path
        below = (
            mode == "recursive" and kind is not WatchKind.CHILDREN_CHANGED and (watched == path or watched in ancestors)
        )
        if lasting or below:
            told.add(watcher)
    return told, registered - spent


steps = st.lists(
    st.one_of(
        st.tuples(
            st.sampled_from(("x", "y")),
            st.sampled_from(("data", "child", "persistent", "recursive")),
            st.sampled_from(PATHS),
        ),
        st.tuples(st.sampled_from(list(WatchKind)), st.sampled_from(PATHS)),
        st.sampled_from(("x", "y")),
    ),
    max_size=30,
)


@given(steps)
def test_any_sequence(sequence: list[Registration | tuple[WatchKind, str] | str]) -> None:
    table: WatchTable[str] = WatchTable()
    registered: set[Registration] = set()
    for step in sequence:
        if isinstance(step, str):
            table.forget(step)
            registered = {entry for entry in registered if entry[0] != step}
        elif len(step) == 3:
            register(table, step)
            registered.add(step)
        else:
            wanted, registered = expected(registered, *step)
            assert sorted(told_of(table, *step)) == sorted(wanted)
    for watcher in ("x", "y"):
        table.forget(watcher)
    assert len(table) == 0
    assert not table.data.by_path
    assert not table.child.by_path


def register(table: WatchTable[str], entry: Registration) -> None:
    watcher, mode, path = entry
    match mode:
        case "data":
            table.data.add(path, watcher, Mode.ONE_SHOT)
        case "child":
            table.child.add(path, watcher, Mode.ONE_SHOT)
        case "persistent":
            table.add_persistent(path, watcher)
        case _:
            table.add_recursive(path, watcher)


def told_of(table: WatchTable[str], kind: WatchKind, path: str) -> list[str]:
    told: list[str] = []
    table.fire(Event(kind, path, OPEN_ACL), lambda watcher, kind, path: told.append(watcher))
    return told


@pytest.mark.case("ZK-70")
def test_a_watch_is_spent_by_its_event() -> None:
    table: WatchTable[str] = WatchTable()
    table.data.add("/a", "x", Mode.ONE_SHOT)
    assert told_of(table, WatchKind.DATA_CHANGED, "/a") == ["x"]
    assert told_of(table, WatchKind.DATA_CHANGED, "/a") == []


@pytest.mark.case("ZK-72")
def test_a_child_watch_hears_of_the_nodes_own_deletion() -> None:
    table: WatchTable[str] = WatchTable()
    table.child.add("/a", "x", Mode.ONE_SHOT)
    table.data.add("/a", "y", Mode.ONE_SHOT)
    assert sorted(told_of(table, WatchKind.DELETED, "/a")) == ["x", "y"]


@pytest.mark.case("ZK-97")
def test_a_mode_is_taken_away_without_the_others() -> None:
    table: WatchTable[str] = WatchTable()
    table.data.add("/a", "x", Mode.ONE_SHOT)
    table.add_persistent("/a", "x")
    assert table.data.discard("/a", "x", Mode.ONE_SHOT)
    assert not table.data.discard("/a", "x", Mode.ONE_SHOT)
    assert table.data.has("/a", "x", Mode.PERSISTENT)


def test_set_again_fires_only_for_what_is_newer_than_the_zxid() -> None:
    """The zxid is that of the reply that told the client about the node, so that reply includes a change at this
    zxid."""
    tree = Tree()
    tree.apply(NodeCreated("/a", b"", OPEN_ACL, 0, False), Transaction(7, 0))
    tree.apply(NodeCreated("/a/b", b"", OPEN_ACL, 0, False), Transaction(9, 0))
    told: list[tuple[WatchKind, str]] = []

    def set_again(zxid: int) -> WatchTable[str]:
        table: WatchTable[str] = WatchTable()
        told.clear()
        table.set_again(
            "x",
            tree.nodes,
            zxid,
            data=["/a"],
            exist=[],
            child=["/a"],
            tell=lambda _, kind, path: told.append((kind, path)),
        )
        return table

    assert len(set_again(9)) == 2
    assert told == []
    assert len(set_again(8)) == len(set_again(7)) == 1
    assert told == [(WatchKind.CHILDREN_CHANGED, "/a")]
    assert len(set_again(6)) == 0
    assert told == [(WatchKind.DATA_CHANGED, "/a"), (WatchKind.CHILDREN_CHANGED, "/a")]
