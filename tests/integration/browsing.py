"""A dashboard over a cluster, and Chromium that looks at it. Nothing on a page may fail or come from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TypeVar
from urllib.parse import urlsplit

from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from klamm.client.blocking import BlockingClient, blocking_client
from klamm.testing.waiting import wait_until

CHROMIUM = Path("/usr/bin/chromium")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
IMAGES = Path(__file__).parents[2] / "docs" / "images"
SCREENSHOTS = "KLAMM_SCREENSHOTS"
"""If it is set, the tests write their pictures to docs/images."""
WAIT_MS = 30_000
WIDTH, HEIGHT = 1180, 760
T = TypeVar("T")


@contextmanager
def running_dashboard(output: Path, *arguments: str) -> Iterator[str]:
    """Its address."""
    with output.open("wb") as stream:
        process = subprocess.Popen(
            [sys.executable, "-m", "klamm", "dashboard", "--port", "0", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
        )
    try:

        def ready() -> re.Match[str] | None:
            assert process.poll() is None, output.read_text()
            return re.search(r"^dashboard ready: (\S+)$", output.read_text(), re.MULTILINE)

        yield wait_until(lambda: f"the dashboard: {output.read_text()}", ready)[1]
        assert process.poll() is None, output.read_text()
    finally:
        process.terminate()
        process.wait(30)
    text = output.read_text()
    assert "Traceback" not in text, text


class Visitor:
    """A browser with one page. What goes wrong on the page is collected."""

    def __init__(self, context: BrowserContext, url: str) -> None:
        self.url = url
        self.wrong: list[str] = []
        self.page = context.new_page()
        self.page.set_default_timeout(WAIT_MS)
        host = urlsplit(url).netloc
        self.page.on("console", lambda message: self._heard(message.type, message.text))
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("request", lambda request: self._asked(request.url, host))

    def open(self, path: str) -> Page:
        answer = self.page.goto(self.url + path)
        assert answer is not None and answer.status == 200, path
        return self.page

    def mark(self) -> None:
        """`is_marked` tells whether the page was loaded again since."""
        self.page.evaluate("window.klammMark = true")

    @property
    def is_marked(self) -> bool:
        return bool(self.page.evaluate("window.klammMark === true"))

    def sees(self, selector: str, text: str) -> None:
        """Wait until the element has this text; nothing is reloaded by this."""
        self.page.wait_for_function(
            "([selector, text]) => document.querySelector(selector)?.innerText.includes(text)", arg=[selector, text]
        )

    def row(self, selector: str, first: str) -> list[str]:
        """The cells of the row whose first cell is this, read at once: a live page may change between two questions."""
        cells = self.page.evaluate(
            "selector => [...document.querySelectorAll(`${selector} tbody tr`)]"
            ".map(row => [...row.querySelectorAll('td')].map(cell => cell.innerText))",
            selector,
        )
        (found,) = [row for row in cells if row and row[0].split()[:1] == [first]]
        return [" ".join(cell.split()) for cell in found]

    def picture(self, name: str, *, scheme: Literal["light", "dark"] = "light", width: int = WIDTH) -> None:
        """What the page looks like now, for docs."""
        if SCREENSHOTS in os.environ:
            IMAGES.mkdir(exist_ok=True)
            self.page.emulate_media(color_scheme=scheme)
            self.page.set_viewport_size({"width": width, "height": HEIGHT})
            self.page.screenshot(path=IMAGES / f"dashboard-{name}.png")
            self.page.set_viewport_size({"width": WIDTH, "height": HEIGHT})
            self.page.emulate_media(color_scheme="light")

    def _heard(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.wrong.append(text)

    def _asked(self, url: str, host: str) -> None:
        if urlsplit(url).netloc != host:
            self.wrong.append(f"a request to {url}")


@contextmanager
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def visiting(browser: Browser, url: str) -> Iterator[Visitor]:
    """A visitor without cookies of others. At the end, nothing may have gone wrong on its pages."""
    context = browser.new_context(viewport={"width": WIDTH, "height": HEIGHT})
    visitor = Visitor(context, url)
    try:
        yield visitor
    finally:
        context.close()
    assert visitor.wrong == []


class Operator:
    """Acts on the cluster behind the dashboard's back. In a thread, because Playwright occupies this one's loop."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._thread = ThreadPoolExecutor(1)

    def do(self, work: Callable[[BlockingClient], Awaitable[T]]) -> T:
        def run() -> T:
            async def awaited(client: BlockingClient) -> T:
                return await work(client)

            with blocking_client(self._bootstrap) as client:
                return client.run(awaited(client))

        return self._thread.submit(run).result()

    def run(self, work: Callable[[], Any]) -> Any:
        return self._thread.submit(work).result()

    def close(self) -> None:
        self._thread.shutdown()
