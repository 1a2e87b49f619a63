"""How far each topic is: lag, speed, time left, age of the last commit, what an open transaction holds back.

Read from the table's log and from Kafka, so it needs no running ingest, and no Spark where the lake is a directory.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Final

from klamm.pipelines.delta_log import DeltaLog, TableCommit
from klamm.pipelines.drift import Drift, read_drift
from klamm.pipelines.kafka_topic import KafkaTopics
from klamm.pipelines.lake_directory import WORK, LakeDirectory
from klamm.pipelines.lake_location import for_lake, local_lake, open_lake
from klamm.pipelines.lake_state import LakeError, ingest_name
from klamm.pipelines.spark_session import SparkOptions, spark_session

_COMMITS_FOR_RATE: Final = 20


@dataclass(frozen=True, slots=True)
class TopicStatus:
    topic: str
    lag: int
    """Offsets that could be ingested now."""
    rate: float | None
    """Offsets a second over the last commits."""
    seconds_left: float | None
    commit_age_seconds: float | None
    waiting: int
    """Offsets behind an open transaction."""
    waiting_seconds: float | None
    """Age of the oldest of them."""
    dead_letters: int
    drift: Drift
    """How JSON values differed from their schema, over all runs."""
    epoch: int
    incarnation: int
    writer: str

    def fields(self) -> dict[str, object]:
        """As a JSON document."""
        return asdict(self)

    def line(self) -> str:
        """As text."""
        parts = [f"{self.topic}: lag {self.lag}"]
        if self.rate is not None:
            parts.append(f"{self.rate:.0f}/s")
        if self.seconds_left is not None and self.lag:
            parts.append(f"{duration(self.seconds_left)} left")
        if self.commit_age_seconds is not None:
            parts.append(f"last commit {duration(self.commit_age_seconds)} ago")
        if self.waiting:
            age = "" if self.waiting_seconds is None else f" for {duration(self.waiting_seconds)}"
            parts.append(f"{self.waiting} wait behind an open transaction{age}")
        if self.dead_letters:
            parts.append(f"{self.dead_letters} dead letters")
        if self.drift:
            parts.append(self.drift.line())
        return ", ".join(parts)


def duration(seconds: float) -> str:
    """
    >>> duration(4.2), duration(75), duration(7300)
    ('4 s', '1 min 15 s', '2 h 1 min')
    """
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def rate_of(newest_first: Sequence[TableCommit]) -> float | None:
    """Offsets a second between the oldest and the newest of these batch commits."""
    timed = [(c.time_ms, c.lake) for c in newest_first if c.time_ms is not None and c.lake is not None]
    if len(timed) < 2 or timed[0][0] <= timed[-1][0]:
        return None
    offsets = sum(r.end - r.start for _, lake in timed[:-1] for r in lake.ranges.values())
    return 1000 * offsets / (timed[0][0] - timed[-1][0])


def topic_status(lake: LakeDirectory, topic: str, kafka: KafkaTopics, now_ms: float) -> TopicStatus:
    table = lake.child(topic)
    log = DeltaLog(table)
    state = log.state()
    if state is None:
        raise LakeError(f"there is no table for topic {topic} at {table}")
    batches = [c for c in islice(log.newest_first(), 2 * _COMMITS_FOR_RATE) if c.lake and not c.lake.is_claim]
    ends, stable = kafka.log_bounds(topic), kafka.stable_bounds(topic)
    lag = sum(max(0, bounds.end - max(bounds.start, state.ends.get(p, 0))) for p, bounds in stable.items())
    held = {p: stable[p].end for p, bounds in ends.items() if p in stable and bounds.end > stable[p].end}
    rate = rate_of(batches[:_COMMITS_FOR_RATE])
    times = kafka.times_at(topic, held)
    return TopicStatus(
        topic=topic,
        lag=lag,
        rate=rate,
        seconds_left=lag / rate if rate else None,
        commit_age_seconds=(now_ms - batches[0].time_ms) / 1000 if batches and batches[0].time_ms else None,
        waiting=sum(ends[p].end - end for p, end in held.items()),
        waiting_seconds=(now_ms - min(times.values())) / 1000 if times else None,
        dead_letters=state.dead_letters,
        drift=read_drift(lake.child(WORK, ingest_name(state.app, topic), topic)),
        epoch=state.epoch,
        incarnation=state.incarnation,
        writer=state.writer,
    )


def lake_status(lake: str, topics: Sequence[str], bootstrap_server: str, options: SparkOptions) -> list[TopicStatus]:
    with ExitStack() as stack:
        kafka = stack.enter_context(KafkaTopics(bootstrap_server))
        directory: LakeDirectory | None = local_lake(lake)
        if directory is None:
            directory = open_lake(
                stack.enter_context(spark_session(for_lake(lake, options), "klamm lake status")), lake
            )
        now_ms = time.time() * 1000
        return [topic_status(directory, topic, kafka, now_ms) for topic in topics]


@contextmanager
def progress(
    lake: LakeDirectory, topics: Sequence[str], bootstrap_server: str, seconds: float | None, say: Callable[[str], None]
) -> Iterator[None]:
    """Tell the status of each topic every so many seconds while the block runs. None: never.

    A thread of its own with a connection of its own, so that a silent broker holds up nothing but this view.
    """
    if seconds is None:
        yield
        return
    over = threading.Event()

    def tell() -> None:
        while not over.wait(seconds):
            try:
                with KafkaTopics(bootstrap_server) as kafka:
                    for topic in topics:
                        say(topic_status(lake, topic, kafka, time.time() * 1000).line())
            except LakeError as e:
                say(str(e))

    thread = threading.Thread(target=tell, name="klamm-lake-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
