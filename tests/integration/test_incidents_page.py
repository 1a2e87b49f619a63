"""The page of an incident report in a real browser: it draws, zooms and sorts, complains about nothing, asks nobody."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import async_playwright

from klamm.pipelines.incidents.report import PAGE, Options, make_report, write_report

START_MS = 1_794_776_400_000
TOPICS = ("orders", "</script><img src=x onerror=console.error(1)>")


def write_events(directory: Path) -> None:
    """Broker 1 is controller. Broker 2 is gone after 66 s, and broker 3 takes its partitions over, one by one."""
    events: dict[int, list[dict[str, Any]]] = {1: [], 2: [], 3: []}

    def decision(seconds: float, event: str, cause: str) -> None:
        common = {"v": 1, "kind": "decision", "time_ms": START_MS + round(seconds * 1000), "broker": 1}
        events[1].append(
            {**common, "role": "controller", "controller_epoch": 1, "event": event, "cause": cause, "detail": ""}
        )

    def state(seconds: float, broker: int, role: str, topic: str, partition: int, leader: int, epoch: int) -> None:
        to, cause = ("leader", "leader-and-isr from controller 1") if role == "broker" else ("OnlinePartition", "x")
        events[broker].append(
            {
                "v": 1, "kind": "state-change", "time_ms": START_MS + round(seconds * 1000), "broker": broker,
                "role": role, "controller_epoch": 1, "topic": topic, "partition": partition, "from": "none", "to": to,
                "leader": leader, "leader_epoch": epoch, "isr": [2, 3][epoch:], "zk_version": epoch, "cause": cause,
            }
        )  # fmt: skip

    decision(0, "controller-elected", "/controller was free")
    for topic in TOPICS:
        for partition in range(4):
            state(1, 1, "controller", topic, partition, 2, 0)
            state(1.1, 2, "broker", topic, partition, 2, 0)
            state(66.1 + partition, 1, "controller", topic, partition, 3, 1)
            state(66.2 + partition, 3, "broker", topic, partition, 3, 1)
    decision(66, "broker-change", "dead [2]")
    decision(90, "broker-change", "new [2]")
    for broker, told in events.items():
        (directory / f"broker-{broker}").mkdir(parents=True)
        lines = "".join(json.dumps(event) + "\n" for event in told)
        (directory / f"broker-{broker}" / "state-change.json").write_text(lines)


async def test_the_page_opens_in_a_browser_and_asks_nobody(tmp_path: Path) -> None:
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("Chromium is not installed: make chromium")
    write_events(tmp_path / "logs")
    write_report(make_report(Options([tmp_path / "logs"], tmp_path / "report")), tmp_path / "report")
    said: list[str] = []
    asked: list[str] = []
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        try:
            page = await browser.new_page(viewport={"width": 1300, "height": 1500})
            page.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
            page.on("pageerror", lambda error: said.append(f"error: {error}"))
            page.on("request", lambda request: asked.append(request.url))
            url = (tmp_path / "report" / PAGE).as_uri()
            await page.goto(url)
            await page.wait_for_selector("body[data-drawn=yes]")
            axis = "Bokeh.documents[0].get_model_by_name('timeline').x_range"
            width = await page.evaluate(f"{axis}.end - {axis}.start")
            box = await page.locator("#pictures canvas").first.bounding_box()
            assert box is not None
            await page.mouse.move(box["x"] + box["width"] * 0.4, box["y"] + box["height"] * 0.5)
            await page.mouse.down()
            await page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + box["height"] * 0.5, steps=5)
            await page.mouse.up()
            await page.wait_for_function(f"{axis}.end - {axis}.start < {0.5 * width}")  # drawn a moment later
            header = page.locator("#outages th", has_text="seconds").first
            cells = (
                "[...document.querySelectorAll('#outages tbody tr')].map(row => Number(row.children[4].textContent))"
            )
            await header.locator("button").click()
            rising = await page.evaluate(cells)
            await header.locator("button").click()
            falling = await page.evaluate(cells)
        finally:
            await browser.close()
    assert [line for line in said if line.startswith(("error", "warning"))] == []
    assert [request for request in asked if not request.startswith(("data:", "blob:")) and request != url] == []
    assert rising == sorted(rising) != falling == sorted(rising, reverse=True)
