"""/healthz and /readyz: alive, and ready to serve; a reason if not."""

from __future__ import annotations

import asyncio
import logging
import sys

import orjson
import pytest

from klamm.server.http import HttpListener
from klamm.server.runtime import JsonLines
from klamm.telemetry.metrics import MetricsRegistry


async def get(url: str, path: str) -> tuple[int, str]:
    host, _, port = url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
    head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
    writer.close()
    return int(head.split()[1]), body


async def test_readiness_has_a_reason() -> None:
    reasons = ["", "the ZooKeeper session is disconnected"]
    listener = HttpListener("127.0.0.1", 0, MetricsRegistry(), lambda: reasons.pop(0))
    try:
        async with asyncio.timeout(30), listener.running():
            assert await get(listener.url, "/healthz") == (200, "ok\n")
            assert await get(listener.url, "/readyz") == (200, "ok\n")
            assert await get(listener.url, "/readyz") == (503, "the ZooKeeper session is disconnected\n")
    finally:
        listener.close()


def test_a_log_line_as_json() -> None:
    try:
        raise ValueError("why")
    except ValueError:
        record = logging.LogRecord("klamm.x", logging.WARNING, "", 1, "broker %d", (7,), sys.exc_info())
    record.created = 1.5
    fields = orjson.loads(JsonLines().format(record))
    assert fields.pop("exception").endswith("ValueError: why")
    assert fields == {
        "time": "1970-01-01T00:00:01.500+00:00",
        "level": "WARNING",
        "logger": "klamm.x",
        "message": "broker 7",
    }


@pytest.fixture(autouse=True)
def _quiet() -> None:
    logging.getLogger("uvicorn").setLevel(logging.ERROR)
