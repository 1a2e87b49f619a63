"""Followers hear of new versions and ages, are bounded, and end with the dashboard."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import orjson

from klamm.dashboard import live
from klamm.dashboard.feed import Feed
from klamm.dashboard.settings import DashboardSettings
from klamm.dashboard.web import Web

from .clusters import HEALTHY, PORT, dashboard, observed, snapshot


def web() -> Web:
    feed = Feed()
    feed.put(observed(snapshot(HEALTHY)))
    return Web(DashboardSettings(bootstrap="a:1", zookeeper="b:2"), feed, PORT)


def key_in(event: bytes) -> str:
    head, _, data = event.partition(b"\ndata: ")
    assert head == b"event: state"
    return str(orjson.loads(data)["key"])


async def test_a_follower_hears_of_each_version_and_of_the_end() -> None:
    served = web()
    events = live._events(served)
    assert await anext(events) == b"retry: 2000\n\n"
    assert key_in(await anext(events)) == "1 fresh"
    assert served.streams == 1
    waiting = asyncio.ensure_future(anext(events))
    await asyncio.sleep(0)
    assert not waiting.done()
    served.feed.put(replace(served.feed.current, version=2))
    assert key_in(await waiting) == "2 fresh"
    served.feed.put(replace(served.feed.current, version=3))
    served.feed.put(replace(served.feed.current, version=4))
    assert key_in(await anext(events)) == "4 fresh", "a slow follower misses versions, it does not queue them"
    served.feed.close()
    assert [key_in(event) async for event in events] == []
    assert served.streams == 0


async def test_what_has_become_old_is_news() -> None:
    served = web()
    served.feed.put(replace(served.feed.current, version=2, checked_at=served.feed.current.checked_at - 60))
    events = live._events(served)
    await anext(events)
    assert key_in(await anext(events)) == "2 60"
    await events.aclose()


def test_followers_are_bounded() -> None:
    visitor = dashboard(observed(snapshot(HEALTHY)))
    visitor.app.state.web.streams = live.STREAMS_MAX  # type: ignore[attr-defined]
    assert visitor.get("/live").status_code == 503
