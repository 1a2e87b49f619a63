"""Runs the ingest of several topics: all are checked before any is claimed, and later each fails alone.

The driver may be killed at any moment: before a commit nothing has happened, and after it the next start continues from
there. While the topics run, one that fails starts again after a pause, and the others go on. A refusal, such as a
recreated topic or a second writer, does not pass by itself and ends that topic only.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from klamm.pipelines.delta_log import DeltaLog
from klamm.pipelines.driver_lock import driver_lock
from klamm.pipelines.idle import idle_report
from klamm.pipelines.ingest_options import IngestOptions, TopicReport
from klamm.pipelines.jars import require_spark
from klamm.pipelines.kafka_topic import KafkaTopics
from klamm.pipelines.lake_directory import WORK, LocalDirectory
from klamm.pipelines.lake_location import check_store, for_lake, local_lake, open_lake
from klamm.pipelines.lake_state import IngestState, LakeError, LakeRefusal
from klamm.pipelines.spark_session import one_line, spark_errors, spark_session
from klamm.pipelines.status import progress
from klamm.pipelines.topic_ingest import TopicIngest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_POLL_SECONDS = 0.05
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
QUICK_BELOW = 1_000_000
"""Offsets for which it is not worth to wait for the JVM's second compiler."""
ATTEMPTS_MAX = 5
"""How often a run that ends by itself tries a topic."""


class Query(Protocol):
    """The parts of Spark's query that the supervision uses."""

    @property
    def isActive(self) -> bool: ...

    def exception(self) -> BaseException | None: ...


class Ingest(Protocol):
    """The parts of `TopicIngest` that the supervision uses."""

    report: TopicReport
    failure: LakeError | None

    def check(self) -> IngestState | None: ...

    def claim(self) -> None: ...

    def start(self, state: IngestState) -> Query | StreamingQuery: ...


def prepare(ingests: Sequence[Ingest]) -> list[IngestState]:
    """Steps a to c for all topics. A topic that is refused must not fence the healthy writer of another."""
    for ingest in ingests:
        ingest.check()
    for ingest in ingests:
        ingest.claim()
    return [_claimed(ingest.check()) for ingest in ingests]


def _claimed(state: IngestState | None) -> IngestState:
    if state is None:
        raise LakeRefusal("the table has lost the claim of this ingest")
    return state


class TopicRun:
    """Keeps one topic running."""

    def __init__(self, ingest: Ingest, *, attempts_max: int | None, now: Callable[[], float] = time.monotonic) -> None:
        self._ingest = ingest
        self._attempts_max = attempts_max
        self._now = now
        self._query: Query | StreamingQuery | None = None
        self._failures = 0
        self._batches_at_failure = -1
        self._next_start = 0.0
        self.is_over = False

    def start(self, state: IngestState) -> None:
        self._attempt(lambda: state)

    def step(self) -> None:
        """Look once: is the query over, has it failed, is it time to start again?"""
        if self.is_over:
            return
        if self._query is None:
            if self._now() >= self._next_start:
                self._attempt(lambda: prepare([self._ingest])[0])
        elif not self._query.isActive:
            failure = self._query.exception()
            if failure is None:
                self.is_over = True
            else:
                self._failed(self._ingest.failure or LakeError(one_line(failure)))

    def _attempt(self, position: Callable[[], IngestState]) -> None:
        self._ingest.failure = None
        try:
            self._query = self._ingest.start(position())
            self._ingest.report.failure = None
        except LakeError as e:
            self._failed(e)
        except spark_errors() as e:
            self._failed(LakeError(one_line(e)))

    def _failed(self, failure: LakeError) -> None:
        report = self._ingest.report
        report.failure = str(failure)
        self._query = None
        if report.batches > self._batches_at_failure:  # it got on since the last failure
            self._failures, self._batches_at_failure = 0, report.batches
        self._failures += 1
        if isinstance(failure, LakeRefusal) or (self._attempts_max and self._failures >= self._attempts_max):
            self.is_over = True
            return
        report.restarts += 1
        self._next_start = self._now() + min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** (self._failures - 1))


def run_ingest(options: IngestOptions) -> list[TopicReport]:
    require_spark()
    local = local_lake(options.lake)
    with KafkaTopics(options.bootstrap_server) as kafka:
        if options.pattern is not None:
            options = replace(options, topics=matching(options.pattern, kafka.topic_names()))
        for topic in options.topics:
            # Reports an unknown topic or a silent broker before Spark starts, which takes seconds.
            kafka.log_bounds(topic)
        if local is not None and options.interval_seconds is None:
            idle = [idle_report(local, topic, kafka, options) for topic in options.topics]
            if all(idle):
                return [report for report in idle if report]
        quick = options.interval_seconds is None and backlog(local, options.topics, kafka) < QUICK_BELOW
    if local is not None:
        local.child(WORK).make()
    means = replace(for_lake(options.lake, options.spark), quick=quick)
    with spark_session(means, f"klamm lake ingest {options.name}") as spark:
        return ingest_topics(spark, options)


def matching(pattern: str, names: Sequence[str]) -> list[str]:
    """Topics whose whole name matches, without Kafka's own. Raises LakeError if there are none.

    >>> matching("ord.*", ["orders", "orders.eu", "border", "__consumer_offsets"])
    ['orders', 'orders.eu']
    """
    fits = re.compile(pattern)
    found = [name for name in names if fits.fullmatch(name) and not name.startswith("__") and name != WORK]
    if not found:
        raise LakeError(f"no topic matches {pattern}")
    return found


def backlog(local: LocalDirectory | None, topics: Sequence[str], kafka: KafkaTopics) -> int:
    """Offsets to ingest; all that the topics have where the lake cannot be read without Spark."""
    found = 0
    for topic in topics:
        state = None
        with suppress(LakeError):  # the full start will tell
            state = DeltaLog(local.child(topic)).state() if local is not None else None
        for partition, (start, end) in kafka.stable_bounds(topic).items():
            found += max(0, end - max(start, state.ends.get(partition, 0) if state else 0))
    return found


def ingest_topics(spark: SparkSession, options: IngestOptions) -> list[TopicReport]:
    """In a session that runs already. Each topic has a connection of its own, so that none waits for another."""
    lake = open_lake(spark, options.lake)
    check_store(spark, options.lake)
    lake.child(WORK).make()
    with ExitStack() as stack:
        kafka = [stack.enter_context(KafkaTopics(options.bootstrap_server)) for _ in options.topics]
        if isinstance(lake, LocalDirectory):
            stack.enter_context(driver_lock(spark, lake, options.topics, wait=options.take_over))
        ingests = [
            TopicIngest(spark, options, topic, lake, connection)
            for topic, connection in zip(options.topics, kafka, strict=True)
        ]
        view = progress(lake, options.topics, options.bootstrap_server, options.progress_seconds, options.say)
        stack.enter_context(view)
        _supervise(ingests, attempts_max=ATTEMPTS_MAX if options.interval_seconds is None else None)
        for ingest, connection in zip(ingests, kafka, strict=True):
            ingest.report.waiting = waiting_offsets(connection, ingest.report.topic)
        return [ingest.report for ingest in ingests]


def _supervise(ingests: Sequence[Ingest], *, attempts_max: int | None) -> None:
    """Until all topics have ended or failed for good."""
    runs = [TopicRun(ingest, attempts_max=attempts_max) for ingest in ingests]
    for run, state in zip(runs, prepare(ingests), strict=True):
        run.start(state)
    while not all(run.is_over for run in runs):
        time.sleep(_POLL_SECONDS)
        for run in runs:
            run.step()


def waiting_offsets(kafka: KafkaTopics, topic: str) -> int:
    """How many offsets an open transaction holds back."""
    try:
        ends, stable = kafka.log_bounds(topic), kafka.stable_bounds(topic)
    except LakeError:
        return 0  # what could be ingested is; the failure to ask belongs to no batch
    return sum(max(0, ends[p].end - stable[p].end) for p in ends if p in stable)
