"""The architecture that the folders show: which package may import which, what is pure, where time and chance come in.

Everything is read from the syntax tree: imports, and the dotted names that a module uses. docs/architecture.md draws
the arrows, design D2 and D16 say why decisions are pure and why no clock, chance or thread exists below the ports.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "klamm"

FOUNDATION = {"model", "wire", "telemetry", "security", "net", "log", "zookeeper", "controller", "broker"}

MAY_IMPORT: dict[str, set[str]] = {
    "model": set(),
    "wire": {"model"},
    "telemetry": {"model"},
    "security": {"model"},
    "net": {"model", "wire", "telemetry"},
    "log": {"model", "wire"},
    "zookeeper": {"model", "telemetry"},
    "controller": {"model", "wire", "net", "zookeeper", "telemetry"},
    "broker": {"model", "wire", "net", "log", "zookeeper", "telemetry", "security", "admin"},
    "client": {"model", "wire", "net"},
    "server": FOUNDATION,
    "admin": {"model", "zookeeper.znodes"},
    "cli": {"model", "wire", "net", "client", "admin"},
    "dashboard": {"model", "wire", "net", "client", "admin", "zookeeper", "telemetry"},
    "pipelines": {"model", "wire", "client", "admin"},
}
LAZILY: dict[str, set[str]] = {
    "cli": {"server", "zookeeper", "telemetry", "pipelines", "dashboard", "simulation", "bench"},
}
"""What a command may import inside a function: `up` and `broker` start servers, the others stay light clients."""

ROOMS: dict[str, set[str]] = {
    "controller.context": {"model"},
    "controller.decisions": {"model", "zookeeper.znodes", "controller.context"},
    "controller.liveness": {"model", "net"},
    "controller.election": {
        *("model", "net", "zookeeper"),
        *("controller.liveness", "controller.events", "controller.recorder"),
    },
    "controller.execution": {
        *("model", "wire", "net", "zookeeper", "telemetry"),
        *("controller.context", "controller.decisions", "controller.liveness"),
        *("controller.events", "controller.recorder"),
    },
    "controller.handlers": {
        *("model", "wire", "net", "zookeeper", "telemetry"),
        *("controller.context", "controller.decisions", "controller.liveness", "controller.execution"),
        *("controller.events", "controller.recorder"),
    },
}
"""The subpackages of the controller. None imports `controller.controller` or `controller.term`, which wire them."""

PURE = (
    "admin",
    "broker/coordinators/groups/events.py",
    "broker/coordinators/groups/expiry.py",
    "broker/coordinators/groups/group.py",
    "broker/coordinators/groups/join.py",
    "broker/coordinators/groups/members.py",
    "broker/coordinators/groups/offsets.py",
    "broker/coordinators/groups/rebalance.py",
    "broker/coordinators/groups/records.py",
    "broker/coordinators/groups/replay.py",
    "broker/coordinators/groups/subscription.py",
    "broker/coordinators/ownership.py",
    "broker/coordinators/transactions/decisions.py",
    "broker/coordinators/transactions/markers.py",
    "broker/coordinators/transactions/records.py",
    "broker/coordinators/transactions/transaction.py",
    "broker/isr.py",
    "broker/truncation.py",
    "controller/context",
    "controller/decisions",
    "controller/election/succession.py",
    "controller/execution/request_batch.py",
    "controller/liveness/suspicion.py",
    "dashboard/changes.py",
    "dashboard/health.py",
    "dashboard/pictures.py",
    "dashboard/snapshot.py",
    "log/compaction/cleanable.py",
    "log/compaction/offset_map.py",
    "log/compaction/record_filter.py",
    "log/producers/producer_state.py",
    "log/segments/retention.py",
    "log/segments/rolling.py",
    "log/validation.py",
    "pipelines/anchors.py",
    "pipelines/audit.py",
    "pipelines/incidents/analysis",
    "pipelines/incidents/klamm_events.py",
    "pipelines/incidents/parser.py",
    "pipelines/incidents/record.py",
    "pipelines/incidents/rules.py",
    "pipelines/incidents/stories.py",
    "pipelines/json_schema.py",
    "pipelines/lake_state.py",
    "pipelines/maintenance.py",
    "pipelines/offset_kinds.py",
    "wire",
    "zookeeper/jute.py",
    "zookeeper/server/rules.py",
    "zookeeper/server/tree.py",
)
"""Modules that only compute: they take values and return values, and every test of them is a table."""

IMPURE = {
    *("asyncio", "concurrent", "io", "multiprocessing", "os", "random", "secrets", "select", "selectors", "shutil"),
    *("signal", "socket", "ssl", "subprocess", "tempfile", "threading", "time", "uuid", "uvloop"),
}
OUR_IO = {
    *("log.disk", "net", "server", "telemetry"),
    *("zookeeper.change_notifications", "zookeeper.client", "zookeeper.retries"),
}

BELOW_THE_PORTS = {*FOUNDATION, "admin", "simulation"}
PORTS_ONLY = {
    *("concurrent", "multiprocessing", "random", "secrets", "threading", "time", "uuid", "uvloop"),
    *("datetime.datetime.now", "datetime.datetime.utcnow", "datetime.datetime.today", "datetime.date.today"),
    *("asyncio.to_thread", "os.urandom", "os.getrandom", "run_in_executor"),
}
VALUES = {"random.Random", "uuid.UUID"}
"""Types that may be named below the ports: a generator that was handed in, and sixteen bytes."""

PORTS_EXCEPT: dict[str, tuple[set[str], str]] = {
    "log/disk.py": ({"concurrent", "threading", "run_in_executor"}, "the real disk and its pool of threads"),
    "net/clock.py": ({"time"}, "the real clock"),
    "simulation/seeds.py": ({"concurrent", "multiprocessing"}, "spreads seeds over processes, each seed in one"),
    "telemetry/loop_monitor.py": ({"time"}, "measures the CPU time of a turn of the loop; nothing depends on it"),
    "zookeeper/server/child.py": ({"concurrent", "random"}, "starts the embedded ZooKeeper, a real process"),
}


def imports_of(module: Path) -> list[tuple[str, bool]]:
    """Every `klamm.x.y` that a module imports, and whether it does so at its top level."""
    tree = ast.parse(module.read_text())
    top_level = {id(node) for node in tree.body}
    for node in tree.body:
        if isinstance(node, ast.If):  # `if TYPE_CHECKING:` counts as top level too, because it is an import
            top_level.update(id(inner) for inner in node.body)
    found = []
    for node in ast.walk(tree):
        own = (name for name in imported(node) if name.startswith("klamm.") and name != "klamm.__version__")
        names = (name.removeprefix("klamm.") for name in own)
        found += [(as_module(name), id(node) in top_level) for name in names]
    return found


def imported(node: ast.AST) -> list[str]:
    """The dotted names that one import statement binds: `from a import b` gives `a.b`."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
        return [f"{node.module}.{alias.name}" for alias in node.names]
    return []


def as_module(name: str) -> str:
    """`controller.events.Startup` -> `controller.events`: the longest part of a name that is a module."""
    path = SOURCE / name.replace(".", "/")
    return name if path.is_dir() or path.with_suffix(".py").is_file() else name.rpartition(".")[0]


def allowed(name: str, packages: Iterable[str]) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def used_names(source: str) -> Iterator[str]:
    """Every dotted name that a source imports or reaches through an import, under its full name.

    `import random` alone says nothing yet; `random.choice` does. A method that is banned on any object stands alone.
    """
    tree = ast.parse(source)
    bound: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                name = alias.name if alias.asname else alias.name.partition(".")[0]
                bound[alias.asname or name] = name
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            bound.update((alias.asname or alias.name, f"{node.module}.{alias.name}") for alias in node.names)
    yield from bound.values()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            if node.attr == "run_in_executor":
                yield node.attr
            if (name := dotted(node, bound)) is not None:
                yield name


def dotted(node: ast.expr, bound: Mapping[str, str]) -> str | None:
    if isinstance(node, ast.Name):
        return bound.get(node.id)
    if isinstance(node, ast.Attribute) and (owner := dotted(node.value, bound)) is not None:
        return f"{owner}.{node.attr}"
    return None


def clocks_and_chance(source: str) -> set[str]:
    """What a source uses of `PORTS_ONLY`. A module that has a harmless type may be imported for that type."""
    harmless = {name.partition(".")[0] for name in VALUES}
    used = {name for name in used_names(source) if name not in harmless and not allowed(name, VALUES)}
    return {name for name in used if allowed(name, PORTS_ONLY)}


def effects(source: str) -> set[str]:
    """What makes a source impure: a module of the standard library that acts, one of ours that does IO, a coroutine."""
    names = {name for name in used_names(source) if allowed(name, IMPURE)}
    ours = {name.removeprefix("klamm.") for name in used_names(source) if name.startswith("klamm.")}
    names |= {name for name in ours if allowed(name, OUR_IO)}
    coroutine = (ast.AsyncFunctionDef, ast.AsyncFor, ast.AsyncWith, ast.Await)
    if any(isinstance(node, coroutine) for node in ast.walk(ast.parse(source))):
        names.add("async")
    return names


def modules_of(entry: str) -> list[Path]:
    path = SOURCE / entry
    return sorted(path.rglob("*.py")) if path.is_dir() else [path]


@pytest.mark.parametrize("package", sorted(MAY_IMPORT))
def test_a_package_imports_only_what_its_arrow_allows(package: str) -> None:
    wrong = []
    for module in modules_of(package):
        for name, top in imports_of(module):
            permitted = MAY_IMPORT[package] | {package} | (set() if top else LAZILY.get(package, set()))
            if not allowed(name, permitted):
                wrong.append(f"{module.relative_to(SOURCE)} imports klamm.{name}")
    assert not wrong


def test_every_package_has_its_arrow() -> None:
    packages = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    assert packages - set(MAY_IMPORT) == {"testing", "simulation", "bench"}, "they import all; no package imports them"


@pytest.mark.parametrize("room", sorted(ROOMS))
def test_a_room_of_the_controller_imports_only_what_its_arrow_allows(room: str) -> None:
    wrong = [
        f"{module.relative_to(SOURCE)} imports klamm.{name}"
        for module in modules_of(room.replace(".", "/"))
        for name, _ in imports_of(module)
        if not allowed(name, ROOMS[room] | {room})
    ]
    assert not wrong


def test_every_room_of_the_controller_has_its_arrow() -> None:
    rooms = {f"controller.{path.parent.name}" for path in (SOURCE / "controller").glob("*/__init__.py")}
    assert rooms == set(ROOMS)


def test_nothing_in_the_controller_imports_the_controller_itself() -> None:
    importers = {
        f"{module.relative_to(SOURCE)} imports {name}"
        for module in modules_of("controller")
        for name, _ in imports_of(module)
        if name in ("controller.controller", "controller.term")
    }
    assert importers == {"controller/controller.py imports controller.term"}


@pytest.mark.parametrize("entry", PURE)
def test_a_pure_module_computes_and_does_nothing_else(entry: str) -> None:
    wrong = []
    for module in modules_of(entry):
        wrong += [f"{module.relative_to(SOURCE)} uses {name}" for name in sorted(effects(module.read_text()))]
    assert not wrong


@pytest.mark.parametrize("package", sorted(BELOW_THE_PORTS))
def test_time_chance_and_threads_come_in_through_the_ports(package: str) -> None:
    wrong = []
    for module in modules_of(package):
        file = str(module.relative_to(SOURCE))
        permitted, _ = PORTS_EXCEPT.get(file, (set(), ""))
        found = clocks_and_chance(module.read_text())
        wrong += [f"{file} uses {name}" for name in sorted(found) if not allowed(name, permitted)]
    assert not wrong


@pytest.mark.parametrize(("file", "names"), [(file, names) for file, (names, _) in PORTS_EXCEPT.items()])
def test_an_exception_that_is_no_longer_needed_goes(file: str, names: set[str]) -> None:
    found = clocks_and_chance((SOURCE / file).read_text())
    assert {name for name in names if not any(allowed(use, {name}) for use in found)} == set()


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("from random import Random\ndef f(r: Random): return r.random()", set()),
        ("import random\nx: random.Random", set()),
        ("import random\nrandom.choice([1])", {"random.choice"}),
        ("import random as r\nr.SystemRandom()", {"random.SystemRandom"}),
        ("from random import shuffle", {"random.shuffle"}),
        ("import time", {"time"}),
        ("from time import monotonic as now", {"time.monotonic"}),
        ("def f():\n    import time\n    time.sleep(1)", {"time", "time.sleep"}),
        ("from uuid import UUID, uuid4", {"uuid.uuid4"}),
        ("from datetime import datetime\ndatetime.fromtimestamp(0)", set()),
        ("from datetime import datetime\ndatetime.now()", {"datetime.datetime.now"}),
        ("import datetime as d\nd.datetime.utcnow()", {"datetime.datetime.utcnow"}),
        ("import os\nos.urandom(4)", {"os.urandom"}),
        ("import asyncio\nasyncio.to_thread(print)", {"asyncio.to_thread"}),
        ("def f(loop): return loop.run_in_executor(None, print)", {"run_in_executor"}),
        ("from concurrent.futures import ThreadPoolExecutor", {"concurrent.futures.ThreadPoolExecutor"}),
        ("def f(clock): return clock.time()", set()),
    ],
)
def test_the_check_sees_clocks_chance_and_threads(source: str, found: set[str]) -> None:
    assert clocks_and_chance(source) == found


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("from klamm.model.ids import BrokerId", set()),
        ("import asyncio", {"asyncio"}),
        ("if True:\n    from os import path", {"os.path"}),
        ("from klamm.net.client import connect", {"net.client.connect"}),
        ("from klamm.zookeeper import client", {"zookeeper.client"}),
        ("from klamm.zookeeper.znodes import ControllerZNode", set()),
        ("async def f(): ...", {"async"}),
    ],
)
def test_the_check_sees_what_is_not_pure(source: str, found: set[str]) -> None:
    assert effects(source) == found
