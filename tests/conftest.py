"""Rules for the whole suite: fast tests first, a time budget per directory, nothing left behind.

A run fails if a process or a temporary directory is left. The budgets are for 2 cores. Pure tests count in CPU seconds
of this process, the rest in time. A directory that exceeds its budget is named in the summary, but a slow or busy
machine does not fail a run whose tests pass; only pure tests do, at `FAR` times their budget: no machine is that slow.
`KLAMM_SCALE=full` (make soak) runs tests with their full counts and without budgets.

Processes are found by a mark in their environment, which even orphans have. All temporary directories of a run are in
one, which is removed at the end; after a failure it stays until the next run, for inspection.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Generator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

TESTS = Path(__file__).parent
BUDGET_SECONDS = {"unit": 140, "simulation": 40, "integration": 900, "interop": 1450}
"""In the order in which they run: those that fail fastest come first."""
PURE = ("unit", "simulation")
FAR = 3

FULL_SCALE = os.environ.get("KLAMM_SCALE") == "full"
# An example may take long because the machine is busy. `make test` tries the same examples each time, so that it does
# not find at random what `make soak` looks for.
settings.register_profile(
    "klamm",
    deadline=None,
    derandomize=not FULL_SCALE,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("klamm")
MARK = f"KLAMM_TEST_RUN={os.getpid()}"
RUN_DIRECTORY = Path(tempfile.gettempdir()) / f"klamm-tests-{os.getpid()}"
ENDING_SECONDS = 30.0
FINDINGS = pytest.StashKey[list[str]]()
WARNINGS = pytest.StashKey[list[str]]()
KEEP = pytest.StashKey[bool]()

_spent: dict[str, float] = defaultdict(float)


@pytest.fixture(scope="session")
def scaled() -> Callable[[int, int], int]:
    """`scaled(5, 50)` is the small count in `make test` and the full one in `make soak`."""
    return lambda small, full: full if FULL_SCALE else small


def pytest_configure() -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell without job control starts `make test &` so, and the commands that tests interrupt inherit it.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    name, _, value = MARK.partition("=")
    os.environ[name] = value
    for old in RUN_DIRECTORY.parent.glob("klamm-tests-*"):
        if not Path("/proc", old.name.rpartition("-")[2]).exists():
            shutil.rmtree(old, ignore_errors=True)
    RUN_DIRECTORY.mkdir(exist_ok=True)
    os.environ["TMPDIR"] = os.environ["PYTEST_DEBUG_TEMPROOT"] = tempfile.tempdir = str(RUN_DIRECTORY)


def _directory(path: Path) -> str:
    return path.relative_to(TESTS).parts[0]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    order = list(BUDGET_SECONDS)
    unknown = {_directory(item.path) for item in items} - set(order)
    if unknown:
        raise pytest.UsageError(f"test directories without a budget in tests/conftest.py: {sorted(unknown)}")
    items.sort(
        key=lambda item: order.index(_directory(item.path))
    )  # the sort is stable: within a directory the order stays


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, None, None]:
    """Count setup and teardown too, because starting servers takes most of the time."""
    now = time.process_time if _directory(item.path) in PURE else time.monotonic
    began = now()
    yield
    _spent[_directory(item.path)] += now() - began


def _processes_of_this_run() -> list[str]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            bears_mark = MARK.encode() in (process / "environ").read_bytes().split(b"\0")
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # it has ended, or belongs to another user
        # PySpark's JVM ends with the interpreter, when its standard input closes.
        if bears_mark and process.name != str(os.getpid()) and not command.endswith("pyspark-shell "):
            found.append(f"process {process.name}: {command[:150]}")
    return found


def _left_behind() -> list[str]:
    deadline = time.monotonic() + ENDING_SECONDS
    while (processes := _processes_of_this_run()) and time.monotonic() < deadline:
        time.sleep(0.05)
    directories = [path for path in RUN_DIRECTORY.iterdir() if not path.name.startswith("pytest-of-")]
    return processes + [f"temporary directory {path.name}" for path in sorted(directories)]


def pytest_sessionfinish(session: pytest.Session) -> None:
    over = {} if FULL_SCALE else {name: spent / BUDGET_SECONDS[name] for name, spent in _spent.items()}
    far = [name for name, ratio in over.items() if ratio > FAR and name in PURE]
    session.config.stash[WARNINGS] = [
        f"tests/{name} exceeded its budget: was the machine busy, or did a test grow?"
        for name, ratio in over.items()
        if ratio > 1 and name not in far
    ]
    session.config.stash[FINDINGS] = findings = [
        *(f"tests/{name} exceeded {FAR} times its budget" for name in far),
        *(f"left behind: {what}" for what in _left_behind()),
    ]
    if findings and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    session.config.stash[KEEP] = session.exitstatus == pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    terminalreporter.section("seconds and budgets")
    for name, budget in BUDGET_SECONDS.items():
        if name in _spent:
            terminalreporter.write_line(f"tests/{name:<12} {_spent[name]:6.1f} of {budget}")
    for warning in config.stash.get(WARNINGS, []):
        terminalreporter.write_line(warning, yellow=True)
    for finding in config.stash.get(FINDINGS, []):
        terminalreporter.write_line(finding, red=True)
    if config.stash.get(KEEP, False):
        terminalreporter.write_line(f"logs and data of failed tests, kept until the next run: {RUN_DIRECTORY}")


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    if not config.stash.get(KEEP, False):
        shutil.rmtree(RUN_DIRECTORY, ignore_errors=True)
