"""Topics are checked before any is claimed, and later each fails, pauses and ends alone."""

from __future__ import annotations

import pytest

from klamm.pipelines.ingest import FIRST_PAUSE, TopicRun, prepare
from klamm.pipelines.ingest_options import TopicReport
from klamm.pipelines.lake_state import IngestState, LakeError, LakeRefusal

STATE = IngestState("klamm:main:t", 1, 0, "me", {})


class StubQuery:
    def __init__(self) -> None:
        self.isActive = True
        self._failure: BaseException | None = None

    def exception(self) -> BaseException | None:
        return self._failure

    def end(self, failure: BaseException | None = None) -> None:
        self.isActive, self._failure = False, failure


class StubIngest:
    def __init__(self, name: str, calls: list[str], refusal: LakeError | None = None) -> None:
        self.report = TopicReport(name)
        self.failure: LakeError | None = None
        self.query = StubQuery()
        self.refusal = refusal
        self._calls = calls

    def check(self) -> IngestState:
        self._calls.append(f"check {self.report.topic}")
        if self.refusal:
            raise self.refusal
        return STATE

    def claim(self) -> None:
        self._calls.append(f"claim {self.report.topic}")

    def start(self, state: IngestState) -> StubQuery:
        self._calls.append(f"start {self.report.topic}")
        self.query = StubQuery()
        return self.query


def test_a_refused_topic_does_not_fence_the_writer_of_another() -> None:
    calls: list[str] = []
    with pytest.raises(LakeRefusal):
        prepare([StubIngest("good", calls), StubIngest("bad", calls, LakeRefusal("recreated"))])
    assert calls == ["check good", "check bad"]


def test_all_are_checked_again_after_the_claims() -> None:
    calls: list[str] = []
    prepare([StubIngest("a", calls), StubIngest("b", calls)])
    assert calls == ["check a", "check b", "claim a", "claim b", "check a", "check b"]


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_failed_topic_starts_again_after_growing_pauses() -> None:
    calls: list[str] = []
    clock, ingest = Clock(), StubIngest("a", calls)
    run = TopicRun(ingest, attempts_max=None, now=clock)
    run.start(STATE)
    starts = []
    for _ in range(4):
        ingest.failure = LakeError("disk full")
        ingest.query.end(ValueError("pages of text"))
        run.step()
        began = clock.now
        count = calls.count("start a")
        while calls.count("start a") == count:
            clock.now += FIRST_PAUSE / 2
            run.step()
        starts.append(clock.now - began)
    assert starts == [FIRST_PAUSE * factor for factor in (1, 2, 4, 8)]
    assert not run.is_over
    ingest.query.end()
    run.step()
    assert run.is_over
    assert (ingest.report.failure, ingest.report.restarts) == (None, 4)


def test_a_topic_that_got_on_pauses_briefly_again() -> None:
    clock, ingest = Clock(), StubIngest("a", [])
    run = TopicRun(ingest, attempts_max=2, now=clock)
    run.start(STATE)
    for batches in (1, 2, 3):
        ingest.report.batches = batches
        ingest.query.end(ValueError("x"))
        run.step()
        clock.now += FIRST_PAUSE
        run.step()
    assert not run.is_over


def test_a_refusal_ends_the_topic_and_nothing_else() -> None:
    clock, healthy, refused = Clock(), StubIngest("a", []), StubIngest("b", [])
    runs = [TopicRun(ingest, attempts_max=None, now=clock) for ingest in (healthy, refused)]
    for run in runs:
        run.start(STATE)
    refused.failure = LakeRefusal("the topic was recreated")
    refused.query.end(ValueError("x"))
    for run in runs:
        run.step()
    assert [run.is_over for run in runs] == [False, True]
    assert (healthy.report.failure, refused.report.failure) == (None, "the topic was recreated")


def test_attempts_end_in_a_run_that_ends_by_itself() -> None:
    clock, ingest = Clock(), StubIngest("a", [], LakeError("no broker"))
    run = TopicRun(ingest, attempts_max=3, now=clock)
    run.start(STATE)
    ingest.query.end(ValueError("x"))
    while not run.is_over:
        clock.now += 1
        run.step()
    assert ingest.report.failure == "no broker"
