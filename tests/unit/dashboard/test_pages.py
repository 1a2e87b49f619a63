"""Pages show exactly what was observed, escape everything, and say how old it is."""

from __future__ import annotations

import re
import time
from html import unescape
from urllib.parse import quote

import pytest

from klamm.admin.balancing.load import Goals, PartitionLoad, PlannedBroker
from klamm.admin.balancing.planner import plan
from klamm.admin.controller_history import ControllerTerm
from klamm.admin.doctor.finding import Finding, Severity
from klamm.admin.reassignment_progress import MoveProgress, Rate
from klamm.dashboard.changes import Entry
from klamm.dashboard.group_lags import GroupLags, LagSample
from klamm.dashboard.load import BrokerSample, ClusterLoad, Directory, LoadHistory
from klamm.dashboard.plans import Plans
from klamm.dashboard.preview import preview_of
from klamm.model.ids import TopicPartition

from .clusters import HEALTHY, METADATA, P, dashboard, observed, snapshot

HOSTILE = '<script>alert("1")<img onerror=x>&\'"'
"""A znode may have this name: only a slash is impossible."""


def text_of(page: str) -> str:
    """The words of a page, without tags."""
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]*>", " ", page)))


def row_with(page: str, words: str) -> str:
    """The table row that contains these words."""
    (row,) = [text_of(row) for row in re.findall(r"<tr.*?</tr>", page, re.DOTALL) if words in text_of(row)]
    return row.strip()


def test_the_overview_says_how_it_is_and_how_old() -> None:
    page = dashboard(observed(snapshot(HEALTHY))).get("/").text
    assert "Healthy: 3 brokers, 3 partitions, all in sync." in text_of(page)
    assert re.search(r"as of 0\.\d s ago", text_of(page))
    old = dashboard(observed(snapshot(HEALTHY), checked_at=time.monotonic() - 60)).get("/").text
    assert "Unknown: ZooKeeper has not answered for 60 s" in text_of(old)
    assert "Healthy" not in text_of(old)


def test_before_the_first_look_a_page_says_so() -> None:
    visitor = dashboard(observed(None))
    for path in ("/", "/brokers", "/brokers/1", "/topics", "/topics/orders"):
        answer = visitor.get(path)
        assert answer.status_code == 200
        assert "being read for the first time" in answer.text and "data-waiting" in answer.text


def test_a_preview_shows_what_the_brokers_say_and_no_more() -> None:
    early = observed(None, preview=preview_of(METADATA, 1_000), findings=None)
    visitor = dashboard(early)
    page = text_of(visitor.get("/").text)
    assert "ZooKeeper is still being read" in page and "1 partition without a leader" in page
    assert "host-1:9092" in row_with(visitor.get("/brokers").text, "host-1")
    assert "under-replicated" in row_with(visitor.get("/topics").text, "orders")
    waiting = "ZooKeeper is being read for the first time."
    for path in ("/topics?state=moving", "/topics/orders", "/doctor", "/deletions", "/reassignments", "/controller"):
        answer = visitor.get(path)
        assert answer.status_code == 200 and waiting in text_of(answer.text), path
    trouble = dashboard(observed(None, preview=preview_of(METADATA, 1_000), findings=None, trouble="no session"))
    assert "ZooKeeper could not be read (no session)" in text_of(trouble.get("/").text)


def test_problems_have_a_link_and_a_cure() -> None:
    found = snapshot({"t": [P([1, 2], isr=[1])]}, brokers=(1, 3))
    page = dashboard(observed(found)).get("/").text
    assert '<a href="/brokers/2">broker 2 is down</a>' in page
    assert "start broker 2, or move its 1 replica" in text_of(page)


def test_brokers_with_their_bytes() -> None:
    history = LoadHistory()
    directory = Directory(1, "/data", 2_000_000, 2, "", 100_000_000, 4_000_000)
    sizes = {TopicPartition("orders", 0): {1: 1_500_000}}
    history.add(10.0, {1: BrokerSample((directory._replace(size_bytes=1_000_000),))}, sizes)
    samples = {1: BrokerSample((directory,)), 2: BrokerSample(problem="the connection was refused")}
    load = history.add(12.0, samples, sizes)
    visitor = dashboard(observed(snapshot(HEALTHY), load=load))
    page = visitor.get("/brokers").text
    assert row_with(page, "host-1").startswith("1 up controller PLAINTEXT://host-1:9092")
    assert "2.0 MB" in row_with(page, "host-1")
    assert "Sizes as of " in text_of(page)
    assert "does not answer" in row_with(page, "host-2")
    one = visitor.get("/brokers/1").text
    assert "500.0 kB/s" in text_of(one) and "/data" in one
    assert "1.5 MB" in row_with(one, "orders-0")
    assert "4.0 MB of 100.0 MB" in row_with(one, "/data")
    assert "/data of broker 1 has 4 % free space" in text_of(visitor.get("/").text)
    assert "broker 2 is registered but does not answer" in text_of(visitor.get("/").text)
    assert visitor.get("/brokers/9").status_code == 404
    assert "Sizes have been asked for" in text_of(dashboard(observed(snapshot(HEALTHY))).get("/brokers").text)


def test_topics_are_searched_filtered_sorted_and_paged() -> None:
    topics = {f"topic-{n:03}": [P([1, 2])] for n in range(120)} | {"Other": [P([1, 2], isr=[1])] * 3}
    visitor = dashboard(observed(snapshot(topics)))

    def names(query: str) -> list[str]:
        return re.findall(r'<td><a href="/topics/[^"]*">([^<]*)</a>', visitor.get(f"/topics{query}").text)

    assert names("") == ["Other", *(f"topic-{n:03}" for n in range(49))]
    assert names("?page=3") == [f"topic-{n:03}" for n in range(99, 120)]
    assert names("?q=OTH") == ["Other"]
    assert names("?state=under-replicated") == ["Other"]
    assert names("?state=offline") == []
    assert names("?sort=partitions")[0] == "Other"
    assert names("?page=99999999999999999999&sort=junk&state=junk") == []
    assert "next ›" in visitor.get("/topics?q=topic").text


def test_one_topic_with_its_partitions() -> None:
    topics = {"orders": [P([1, 2, 3], epoch=7), P([2, 3, 1], leader=3, isr=[3, 1], epoch=9)]}
    entries = [
        Entry(61_000, "partition", "orders-1: broker 3 leads", "broker 2 is gone", "orders", 1, (3,)),
        Entry(60_000, "partition", "clicks-0: other", "other", "clicks", 0, (3,)),
    ]
    page = dashboard(observed(snapshot(topics, brokers=(1, 3)), entries=entries)).get("/topics/orders").text
    rows = [text_of(row) for row in re.findall(r"<tr>.*?</tr>", page, re.DOTALL)]
    assert [row.split()[:5] for row in rows if "sync" in row or "under" in row][1:] == [
        ["0", "in", "sync", "1", "7"],
        ["1", "under-replicated", "3", "9", "2"],
    ]
    assert 'title="broker 2, down"' in page
    assert "1 Jan 00:01:01 partition orders-1: broker 3 leads broker 2 is gone" in text_of(page)
    assert "clicks-0" not in page


@pytest.mark.parametrize("path", ["/", "/topics", "/topics/{}", "/brokers/1?show=all", "/timeline"])
def test_names_from_the_cluster_are_escaped(path: str) -> None:
    topics = {HOSTILE: [P([1, 2], isr=[1])]}
    entries = [Entry(1, "topic", HOSTILE, HOSTILE, HOSTILE)]
    visitor = dashboard(observed(snapshot(topics), entries=entries, trouble=HOSTILE))
    page = visitor.get(path.format(quote(HOSTILE, safe="")))
    assert page.status_code == 200
    assert "<script>alert" not in page.text
    assert HOSTILE in unescape(page.text)


def test_what_a_visitor_asks_for_is_escaped() -> None:
    visitor = dashboard(observed(snapshot(HEALTHY)))
    for path in (
        f"/topics?q={HOSTILE}",
        f"/topics?state={HOSTILE}&sort={HOSTILE}",
        f"/topics/{HOSTILE}",
        f"/{HOSTILE}",
    ):
        assert "<script>alert" not in visitor.get(path).text


ENTRIES = [
    Entry(3_000, "broker", "broker 2 is gone", "its session ended", brokers=(2,)),
    Entry(2_000, "partition", "orders-0: broker 1 leads", "broker 2 is gone", "orders", 0, (1, 2)),
    Entry(1_000, "partition", "clicks-0: in sync 1", "broker 3 is behind", "clicks", 0, (1, 3)),
]


@pytest.mark.parametrize(
    ("query", "shown"),
    [
        ("", ["broker 2 is gone", "orders-0", "clicks-0"]),
        ("?topic=orders", ["orders-0"]),
        ("?broker=2", ["broker 2 is gone", "orders-0"]),
        ("?kind=partition&broker=3", ["clicks-0"]),
        ("?broker=junk&kind=junk", []),
    ],
)
def test_the_timeline_is_filtered(query: str, shown: list[str]) -> None:
    page = dashboard(observed(snapshot(HEALTHY), entries=ENTRIES)).get(f"/timeline{query}").text
    rows = [text_of(row) for row in re.findall(r"<li>.*?</li>", page, re.DOTALL)]
    assert len(rows) == len(shown)
    assert all(words in row for words, row in zip(shown, rows, strict=True))
    assert page.count("<title>") - 1 == len(shown), "each has its mark on the axis"


def test_partitions_that_change_together_share_a_row() -> None:
    together = [Entry(5_000 - n, "partition", f"t-{n}: broker 1 leads", "dead 2", "t", n, (1,)) for n in range(3)]
    visitor = dashboard(observed(snapshot(HEALTHY), entries=[ENTRIES[0]._replace(time_ms=6_000), *together]))

    def rows(query: str) -> list[str]:
        page = visitor.get(f"/timeline{query}").text
        return re.findall(r'<a href="([^"]*)">[^<]*t-\d', page)

    assert rows("") == ["/timeline?each=1&amp;until=5000"]
    assert "3 partitions, such as t-0: broker 1 leads dead 2" in text_of(visitor.get("/timeline").text)
    assert rows("?each=1") == ["/topics/t"] * 3
    assert rows("?each=1&until=4999") == ["/topics/t"] * 2
    assert "broker 2 is gone" not in visitor.get("/timeline?each=1&until=5000").text


def test_the_controller_with_its_terms() -> None:
    now_ms = int(time.time() * 1000)
    terms = [
        ControllerTerm(4, 1, now_ms - 90 * 60_000, "asked <b>", None, ""),
        ControllerTerm(3, 2, 1_000, "/controller was free", now_ms - 90 * 60_000 - 500, "moved"),
        ControllerTerm(2, 2, 100, "/controller was free", 900, "the end"),
    ]
    found = snapshot(HEALTHY, read_at_ms=now_ms - 60 * 60_000)
    page = dashboard(observed(found, terms=terms)).get("/controller").text
    assert "Broker 1 is the controller." in text_of(page)
    assert " 1 h 30 min 0.5 s asked <b>" in row_with(page, "asked <b>"), "a term lasts until now, not until it was read"
    assert row_with(page, "the end").startswith("2 2 1970-01-01 00:00:00 0.8 s")
    assert page.count('class="term') == 3
    none = dashboard(observed(snapshot(HEALTHY, leading=None))).get("/controller").text
    assert "No broker is the controller." in text_of(none)


def test_deletions_say_what_they_wait_for() -> None:
    page = dashboard(observed(snapshot(HEALTHY, deletions=["clicks"], brokers=(1, 2)))).get("/deletions").text
    assert "replicas on brokers [3], which are not registered" in row_with(page, "clicks")


def test_the_doctor_of_every_look() -> None:
    findings = [Finding(Severity.ERROR, "deletion-stuck", "/admin/x", "waits <i>", "klamm deletions")]
    page = dashboard(observed(snapshot(HEALTHY), findings=findings)).get("/doctor").text
    assert row_with(page, "deletion-stuck") == "error deletion-stuck /admin/x waits <i> klamm deletions"
    assert "Nothing is wrong in ZooKeeper." in text_of(dashboard(observed(snapshot(HEALTHY))).get("/doctor").text)


@pytest.mark.parametrize("path", ["/messages?topic=orders", "/groups", "/groups/g", "/configuration", "/doctor?acls=1"])
def test_a_cluster_that_does_not_answer_is_said(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("klamm.dashboard.actions.SESSION_TIMEOUT_MS", 50)
    answer = dashboard(observed(snapshot(HEALTHY))).get(path)
    assert answer.status_code == 200
    assert "no broker answers at 127.0.0.1:1" in answer.text or "The ACLs could not be read" in answer.text


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("topic=nowhere", "there is no topic nowhere"),
        ("topic=orders&partition=7", "topic orders has partitions 0 to 1"),
        ("topic=orders&partition=-1", "topic orders has partitions 0 to 1"),
    ],
)
def test_messages_that_cannot_be_found(query: str, words: str) -> None:
    page = dashboard(observed(snapshot(HEALTHY))).get(f"/messages?{query}").text
    assert words in text_of(page)


def test_a_plan_shows_each_broker_before_and_after() -> None:
    visitor = dashboard(observed(snapshot(HEALTHY)))
    partitions = [PartitionLoad("t", n, (1,), 1_000_000) for n in range(4)]
    made = plan(partitions, [PlannedBroker(1), PlannedBroker(2)])
    kept = visitor.app.state.web.plans.keep(made, b"{}", 1_000)  # type: ignore[attr-defined]
    page = visitor.get(f"/reassignments?plan={kept.name}").text
    assert "2 partitions to change, 2.0 MB to copy." in text_of(page)
    diff = page[page.index('id="diff"') :]
    assert row_with(diff, "4.0 MB") == "1 4.0 MB 2.0 MB 4 2 4 2 0 B"
    assert row_with(diff, "0 B 2.0 MB") == "2 0 B 2.0 MB 0 2 0 2 2.0 MB"
    assert 'id="plan"' not in visitor.get("/reassignments?plan=unknown").text


def test_a_plan_that_cannot_be_met_says_so_in_few_lines() -> None:
    visitor = dashboard(observed(snapshot(HEALTHY)))
    partitions = [PartitionLoad("t", n, (1, 2), 1_000) for n in range(56)]
    made = plan(partitions, [PlannedBroker(1), PlannedBroker(2)], Goals(drained=frozenset({2})))
    kept = visitor.app.state.web.plans.keep(made, b"{}", 1_000)  # type: ignore[attr-defined]
    page = visitor.get(f"/reassignments?plan={kept.name}").text
    assert page.count("cannot leave broker 2") == 5
    assert f"and {len(made.reasons) - 5} more of the kind" in text_of(page)


def test_moves_with_their_progress() -> None:
    topics = {"t": [P([2, 3, 1], leader=1, isr=[1, 2], adding=[3], removing=[1])]}
    load = ClusterLoad(moves=[MoveProgress(TopicPartition("t", 0), 250, 1_000, True)], move_rate=Rate(50.0, 15.0))
    page = dashboard(observed(snapshot(topics), load=load)).get("/reassignments").text
    assert "1 partition on the move" in text_of(page)
    assert "25 % : 250 B of 1.0 kB copied, 50 B/s, about 15 s left" in text_of(page)
    assert 'action="/reassignments/cancel"' in page
    assert "cancel" not in dashboard(observed(snapshot(topics), load=load), read_only=True).get("/reassignments").text


def test_what_visitors_leave_is_bounded() -> None:
    plans, lags = Plans(), GroupLags()
    first = plans.keep(plan([], [PlannedBroker(1)]), b"", 0).name
    for n in range(300):
        plans.keep(plan([], [PlannedBroker(1)]), b"", n)
        lags.add(f"group-{n}", LagSample(n, n))
    assert plans.get(first) is None
    assert lags.add("group-0", LagSample(1, 1)) == [LagSample(1, 1)], "it was forgotten"
    assert len(lags.add("group-299", LagSample(1, 1))) == 2
    kept = lags.keep_reset("g", [])
    assert lags.reset("g", kept) == [] and lags.reset("other", kept) is None
