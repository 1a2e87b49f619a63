"""The dashboard's own script and style in a real browser, over observations that the test makes: no cluster is needed.

What pages show of a cluster is tried with a cluster, in the tests with a browser.
"""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from playwright.sync_api import Browser

from klamm.admin.controller_history import ControllerTerm
from klamm.dashboard.changes import Entry
from klamm.dashboard.feed import Feed
from klamm.dashboard.load import BrokerSample, Directory, LoadHistory
from klamm.dashboard.observation import Observation
from klamm.dashboard.run_dashboard import server_of
from klamm.dashboard.settings import DashboardSettings
from klamm.dashboard.snapshot import ClusterSnapshot

from ..unit.dashboard.clusters import P  # noqa: TID252
from ..unit.dashboard.clusters import snapshot as cluster  # noqa: TID252
from .browsing import CHROMIUM, chromium, visiting

pytestmark = pytest.mark.skipif(not CHROMIUM.exists(), reason="scripts/install_chromium has not installed Chromium")
HOSTILE = '<img src=x onerror="document.title=1"><script>document.title=2'
"""A topic in ZooKeeper may have this name: only a slash is impossible."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


HEALTHY = cluster({"orders": [P([1])]}, brokers=(1,))
OFFLINE = cluster({"orders": [P([1], leader=-1)]}, brokers=(1,))
NOW_MS = 1_767_225_600_000


class Served:
    """A dashboard in a thread. It confirms its observation as the observer does, until `is_silent`."""

    def __init__(self, **options: Any) -> None:
        self._settings = DashboardSettings(bootstrap="127.0.0.1:1", zookeeper="127.0.0.1:2", **options)
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._socket.getsockname()[1])
        self.url = f"http://127.0.0.1:{self.port}"
        self.is_silent = False
        self._ready = threading.Event()
        self._version = 0

    @contextmanager
    def running(self) -> Iterator[Served]:
        thread = threading.Thread(target=lambda: asyncio.run(self._serve()))
        thread.start()
        assert self._ready.wait(30)
        try:
            yield self
        finally:
            self.end()
            thread.join(30)
            self._socket.close()

    def show(self, found: ClusterSnapshot, **parts: Any) -> None:
        self._version += 1
        seen = {"version": self._version, "snapshot": found, "checked_at": time.monotonic(), "findings": ()}
        observation = Observation(**{**seen, **parts})
        self._call(lambda: self._feed.put(observation))

    def end(self) -> None:
        self._server.should_exit = True
        self._call(self._feed.close)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._feed = Feed()
        self._server = server_of(self._settings, self._feed, self.port)
        confirming = asyncio.create_task(self._confirm())
        self._ready.set()
        await self._server.serve(sockets=[self._socket])
        confirming.cancel()

    async def _confirm(self) -> None:
        while True:
            await asyncio.sleep(0.2)
            if not self.is_silent:
                self._feed.put(replace(self._feed.current, checked_at=time.monotonic()))

    def _call(self, call: Callable[[], object]) -> None:
        try:
            self._loop.call_soon_threadsafe(call)
        except RuntimeError:
            pass  # it has ended


def test_pages_live_without_a_reload(browser: Browser) -> None:
    with Served().running() as served, visiting(browser, served.url) as visitor:
        served.show(HEALTHY)
        page = visitor.open("/")
        refreshes = []
        page.on("request", lambda sent: refreshes.append(sent.headers) if sent.resource_type == "fetch" else None)
        visitor.mark()
        visitor.sees("#sentence", "Healthy")
        page.focus("#tiles a[href='/controller']")
        served.show(OFFLINE)
        visitor.sees("#sentence", "1 partition without a leader.")
        assert page.evaluate("document.activeElement.getAttribute('href')") == "/controller", "the focus stays"
        served.is_silent = True
        visitor.sees("#sentence", "Unknown: ZooKeeper has not answered for")
        served.is_silent = False
        visitor.sees("#sentence", "1 partition without a leader.")
        assert visitor.is_marked
        assert refreshes and all("x-klamm-live" in headers for headers in refreshes), "it takes no notices"
        assert page.is_hidden("#lost")
        served.end()
        page.wait_for_selector("#lost:not([hidden])")
        visitor.wrong.clear()  # the browser says that the connection is gone


def test_a_page_that_waits_for_the_first_look_appears(browser: Browser) -> None:
    with Served().running() as served, visiting(browser, served.url) as visitor:
        visitor.open("/topics")
        visitor.sees("#sentence", "being read for the first time")
        served.show(HEALTHY)
        visitor.sees("#topics", "orders")


def test_hostile_names_do_nothing(browser: Browser) -> None:
    entry = Entry(1, "topic", HOSTILE, HOSTILE, HOSTILE)
    with Served().running() as served, visiting(browser, served.url) as visitor:
        served.show(HEALTHY)
        page = visitor.open("/")
        served.show(cluster({HOSTILE: [P([1], leader=-1)]}, brokers=(1,)), entries=[entry])
        visitor.sees("#changes", HOSTILE)
        assert page.title() == "Overview · klamm"
        assert page.locator("main img, main script").count() == 0
        page.click("#changes a >> nth=0")
        assert page.inner_text("h1") == HOSTILE


def test_keys(browser: Browser) -> None:
    with Served().running() as served, visiting(browser, served.url) as visitor:
        served.show(HEALTHY)
        page = visitor.open("/topics")
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.innerText") == "Skip to content"
        page.keyboard.press("/")
        assert page.evaluate("document.activeElement.name") == "q"
        page.keyboard.type("a/b")
        assert page.input_value("input[name=q]") == "a/b", "in the field, the key is a character"


def test_a_password(browser: Browser) -> None:
    with Served(password="correct horse").running() as served, visiting(browser, served.url) as visitor:
        served.show(HEALTHY)
        page = visitor.open("/topics")
        assert page.url.endswith("/login")
        page.fill("input[name=password]", "correct horse")
        page.keyboard.press("Enter")
        visitor.sees("#sentence", "Healthy")
        visitor.mark()
        served.show(OFFLINE)
        visitor.sees("#sentence", "1 partition without a leader.")
        assert visitor.is_marked
        page.click("text=Log out")
        page.wait_for_selector("input[name=password]")


def test_on_a_phone_nothing_overflows(browser: Browser) -> None:
    long = "a-topic-with-a-name-that-is-much-too-long-for-a-phone" * 3
    with Served().running() as served, visiting(browser, served.url) as visitor:
        served.show(cluster({long: [P([1], leader=-1)]}, brokers=(1,)), entries=[Entry(1, "topic", long, long, long)])
        page = visitor.page
        page.set_viewport_size({"width": 360, "height": 640})
        paths = ("/", "/brokers", "/topics", f"/topics/{long}", "/controller", "/timeline", "/reassignments", "/doctor")
        for path in paths:
            visitor.open(path)
            wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
            assert wide <= 0, f"{path} is {wide} pixels too wide"


def test_pictures_show_what_is_known(browser: Browser) -> None:
    """Broker 3 has died: one cell per partition, the colours of their health, a bar and a line per broker."""
    orders = [P([n % 3 + 1, (n + 1) % 3 + 1, (n + 2) % 3 + 1]) for n in range(48)]
    died = [P(p.assignment.replicas, leader=1 + n % 2, isr=[1, 2], epoch=1) for n, p in enumerate(orders)]
    single = [P([3], leader=-1), P([1]), P([2])]
    found = cluster(
        {"orders": died, "payments": died[:24], "audit": single},
        brokers=(1, 2),
        min_isr={"payments": 3},
        epoch=7,
        since_ms=NOW_MS - 60_000,
        read_at_ms=NOW_MS,
    )
    history = LoadHistory()
    for second in range(30):
        sizes = {broker: 9_000_000 + second * (400_000 + 30_000 * (second * broker % 7)) for broker in (1, 2)}
        samples = {b: BrokerSample((Directory(b, "/data", size, 72, ""),)) for b, size in sizes.items()}
        load = history.add(float(second), samples, {})
    cause = "broker 3 failed: its session ended"
    entries = [
        Entry(
            NOW_MS - 900 - n,
            "partition",
            f"orders-{n}: broker {1 + n % 2} leads, in sync 1,2",
            cause,
            "orders",
            n,
            (1, 2),
        )
        for n in range(6)
    ]
    gone = Entry(NOW_MS - 800, "broker", "broker 3 is gone", "its session in ZooKeeper ended", brokers=(3,))
    terms = [
        ControllerTerm(7, 1, NOW_MS - 60_000, "a candidate replaces broker 2, which is not one"),
        ControllerTerm(6, 2, NOW_MS - 150_000, "controller 3 suspected", NOW_MS - 60_000, "broker 1 took over"),
        ControllerTerm(5, 3, NOW_MS - 400_000, "/controller was free", NOW_MS - 150_400, "its session ended"),
    ]
    with Served().running() as served, visiting(browser, served.url) as visitor:
        served.show(found, load=load, entries=[gone, *entries], terms=terms, reads_events=True)
        page = visitor.open("/")
        visitor.sees("#sentence", "1 partition without a leader; 24 partitions below min.insync.replicas; and 2 more")
        cells = {kind: page.locator(f"#heat rect.h{kind}").count() for kind in range(5)}
        assert cells == {0: 2, 1: 0, 2: 48, 3: 24, 4: 1}
        assert page.locator("#load svg.bar").count() == 6
        points = page.get_attribute("#tiles polyline", "points") or ""
        assert len(points.split()) == 29, "a line through the growth between 30 samples"
        visitor.open("/controller")
        assert page.locator("#terms rect.term").count() == 3
        assert visitor.row("#terms", "6")[3:5] == ["1 min 30 s", "0.4 s"], "how long, and the gap before"
        visitor.sees("#now", "a candidate replaces broker 2, which is not one")
