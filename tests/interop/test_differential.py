"""klamm's controller compared with Apache Kafka's: one script on two clusters, which must be equal after each step.

Compared are the znodes with leader epochs and data versions, everything that each broker was sent about each partition,
in order, and the answers of the controllers. `DIFFERENCES` lists the differences that are allowed. A row that nothing
uses, and a difference without a row, fail the test. klamm's own encoders also encode every request of Kafka's
controller again: the bytes must be the same.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from klamm.server.broker_process import KlammBroker
from klamm.testing.apache_kafka import ApacheKafkaBroker
from klamm.testing.recording import Received
from klamm.zookeeper.server.embedded import EmbeddedZooKeeper

from .differential_compare import Difference, SideName, Streams, Told, comparable, packed_again, unlike, unlike_znodes
from .differential_script import CANCELLED, DELETED_WHILE_MOVING, REMOVED, SCRIPT, UNKNOWN_BROKER, Step
from .differential_sides import CONTROLLER, Side

SETTINGS: dict[str, str | int] = {
    "inter.broker.protocol.version": "2.5",
    "auto.leader.rebalance.enable": "false",  # runs by a timer, so it would fall into some step
}
OLD, NEW = "2.5.1", "3.9.1"
SECOND_LOOK_SECONDS = 2.0


DURING_DELETE = -2
"""The leader of a partition whose topic is being deleted or is gone."""


class Row(NamedTuple):
    name: str
    reason: str
    explains: Callable[[Difference], bool]
    versions: tuple[str, ...] = (OLD, NEW)


def _told(difference: Difference, side: SideName, api: str) -> Told | None:
    told = difference.what
    return told if isinstance(told, Told) and told.api == api and difference.side == side else None


def _around(difference: Difference, api: str) -> list[Told]:
    """The nearest requests of the same kind before and after it. Among equal ones it is chance which is left over."""
    sides = reversed(difference.before), difference.after
    return [told for side in sides if (told := next((t for t in side if t.api == api), None)) is not None]


def _known_epoch(difference: Difference) -> bool:
    told = _told(difference, "kafka", "LeaderAndIsr")
    same = ("life", "controller", "leader", "epoch")
    return told is not None and any(
        all(other.said(key) == told.said(key) for key in same) for other in _around(difference, "LeaderAndIsr")
    )


def _new_or_not(difference: Difference) -> bool:
    """About a replica that is being added: both sides send it, except for `new`, or Kafka sends it as existing."""
    told = difference.what
    if not isinstance(told, Told) or told.api != "LeaderAndIsr" or difference.broker not in told.said("adding"):
        return False
    as_known = difference.side == "kafka" and not told.said("new")
    return as_known or told.without("new") in [other.without("new") for other in difference.other_side]


def _repeated_metadata(difference: Difference) -> bool:
    theirs, ours = _told(difference, "kafka", "UpdateMetadata"), _told(difference, "klamm", "UpdateMetadata")
    if ours is not None and ours.said("leader") != DURING_DELETE:
        return False
    return (theirs or ours) in _around(difference, "UpdateMetadata")


def _removed_behind(difference: Difference) -> bool:
    told = _told(difference, "klamm", "UpdateMetadata")
    return told is not None and told.said("leader") == DURING_DELETE and difference.step == REMOVED


def _deleted_while_moving(difference: Difference) -> bool:
    places = ("answer", "/brokers/topics/e", "/config/topics/e", "/admin/delete_topics/e", ", e-0", ", e-1")
    where = difference.where.removesuffix(", form").partition("/partitions")[0]
    return difference.step in DELETED_WHILE_MOVING and where.endswith(places)


def _fenced_first(difference: Difference) -> bool:
    """The epochs of o-0 are one higher after its override; after a cancellation only UpdateMetadata may differ."""
    if difference.where.endswith(", o-0") or difference.where.startswith("/brokers/topics/o/partitions/"):
        return True
    told = _told(difference, "kafka", "UpdateMetadata") or _told(difference, "klamm", "UpdateMetadata")
    return told is not None and difference.step in CANCELLED


def _later_documents(difference: Difference) -> bool:
    return difference.where.endswith(", form") or difference.where.startswith(("/feature", "/config/ips"))


DIFFERENCES = [
    Row(
        "LeaderAndIsr at a known epoch",
        "Kafka sends it again to replicas that already have the epoch and refuse it; klamm sends it once",
        _known_epoch,
    ),
    Row(
        "whether an added replica is new",
        "2.5 sends first that it is not, then that it is (KAFKA-10314); 3.x sends it each time; klamm sends it once",
        _new_or_not,
    ),
    Row(
        "UpdateMetadata repeated",
        "the same content again: one goes with each LeaderAndIsr above; and a broker that registers while a topic is "
        "being deleted is sent it by 2.5 and klamm at once, not only with the deletion",
        _repeated_metadata,
    ),
    Row(
        "live brokers sent after every failure",
        "Kafka omits it if a leader was lost (KAFKA-13225); klamm never does",
        lambda difference: difference.side == "klamm" and difference.where.endswith("live brokers"),
    ),
    Row(
        REMOVED,
        "Kafka only forgets it; klamm also tells the brokers, whose metadata would otherwise keep it for ever",
        _removed_behind,
    ),
    Row(
        "topic deleted while it is reassigned",
        "Kafka intends to wait, but marks the topic before it is queued, which has no effect; klamm waits",
        _deleted_while_moving,
    ),
    Row(
        "a leader is fenced before a replica is given up",
        "Kafka's leader may add a replica to the ISR while it is being deleted; klamm writes the next epoch first, one "
        "more for an override, and sends it before StopReplica (ADR 0011)",
        _fenced_first,
    ),
    Row(
        "/latest_producer_id_block",
        "a Kafka broker takes a block when it starts, a klamm broker when it needs the first id",
        lambda difference: difference.where.startswith("/latest_producer_id_block"),
    ),
    Row(
        "registration of a dedicated controller",
        "it has a key that Kafka ignores, by which klamm brokers place no replicas there",
        lambda difference: difference.where == f"/brokers/ids/{CONTROLLER}, form",
    ),
    Row(
        UNKNOWN_BROKER,
        "Kafka fails on the unknown epoch and answers -1; klamm answers that the broker is not available",
        lambda difference: difference.step == UNKNOWN_BROKER and difference.where == "answer",
    ),
    Row(
        "documents of later versions",
        "3.9 has /feature and /config/ips, and later versions of /controller and topics; klamm writes those of 2.5",
        _later_documents,
        versions=(NEW,),
    ),
]


class Comparison:
    def __init__(self, klamm: Side, kafka: Side, rows: list[Row]) -> None:
        self.klamm, self.kafka, self._rows = klamm, kafka, rows
        self._ours, self._theirs = Streams(), Streams()
        self.used: Counter[str] = Counter()
        self.lines = [f"{'step':<50} {'znodes':>7} {'requests':>9} {'differences':>12} {'unexplained':>12}"]
        self.unexplained: list[Difference] = []

    async def run(self, step: Step) -> None:
        self._ours.mark()
        self._theirs.mark()
        answers = await asyncio.gather(step.run(self.klamm), step.run(self.kafka))
        found, znodes = await self._differences(step.name, *answers)
        if not all(map(self._row, found)):
            await asyncio.sleep(SECOND_LOOK_SECONDS)  # on a busy machine one of them may not be done
            found, znodes = await self._differences(step.name, *answers)
        self.used.update(row.name for row in map(self._row, found) if row is not None)
        left = [difference for difference in found if self._row(difference) is None]
        self.unexplained += left
        counts = f"{znodes:>7} {self._theirs.count():>9} {len(found):>12} {len(left):>12}"
        self.lines.append(f"{step.name:<50} {counts}")

    async def _differences(self, step: str, our_answer: object, their_answer: object) -> tuple[list[Difference], int]:
        await asyncio.gather(self.klamm.settled(), self.kafka.settled())
        our_tree, their_tree = comparable(await self.klamm.tree()), comparable(await self.kafka.tree())
        self._ours.take(self.klamm.stubs)
        self._theirs.take(self.kafka.stubs)
        found = unlike_znodes(step, our_tree, their_tree) + unlike(step, self._ours, self._theirs)
        if our_answer != their_answer:
            found.append(Difference(step, "answer", "klamm", our_answer))
            found.append(Difference(step, "answer", "kafka", their_answer))
        return found, len(their_tree)

    def _row(self, difference: Difference) -> Row | None:
        return next((row for row in self._rows if row.explains(difference)), None)


def test_the_table_of_differences_stays_short() -> None:
    assert len(DIFFERENCES) <= 11
    assert len(SCRIPT) >= 30


@pytest.mark.timeout(600)
async def test_one_script_two_controllers(
    tmp_path: Path,
    zookeeper: EmbeddedZooKeeper,
    scaled: Callable[[int, int], int],
    capsys: pytest.CaptureFixture[str],
) -> None:
    for version in (OLD, NEW)[: scaled(1, 2)]:
        comparison, requests = await compared(version, tmp_path / version, f"{zookeeper.connect_string}/{version}")
        with capsys.disabled():
            print(f"\nklamm beside Apache Kafka {version}\n" + "\n".join(comparison.lines))
            for row in DIFFERENCES:
                print(f"{comparison.used[row.name]:>5} x {row.name}: {row.reason}")
            print(f"{len(requests)} requests of Kafka's controller encoded again")
        assert not comparison.unexplained, "\n".join(map(str, comparison.unexplained))
        used = {row.name: comparison.used[row.name] for row in DIFFERENCES if version in row.versions}
        assert all(used.values()), f"unused rows: {used}"
        assert all(packed_again(request) == request.body for request in requests)


async def compared(version: str, path: Path, zookeeper: str) -> tuple[Comparison, list[Received]]:
    """The whole script, including everything that Kafka's controller sent."""
    ours: dict[str, str | int] = {**SETTINGS, "klamm.controller.only": "true"}
    klamm = KlammBroker(CONTROLLER, f"{zookeeper}/klamm", path / "klamm", ours)
    kafka = ApacheKafkaBroker(version, CONTROLLER, f"{zookeeper}/kafka", path / "kafka", properties=SETTINGS)
    rows = [row for row in DIFFERENCES if version in row.versions]
    async with (
        Side("klamm", klamm, f"{zookeeper}/klamm").running() as our_side,
        Side("kafka", kafka, f"{zookeeper}/kafka").running() as their_side,
    ):
        comparison = Comparison(our_side, their_side, rows)
        for step in SCRIPT:
            await comparison.run(step)
        return comparison, [request for stub in their_side.stubs.values() for request in stub.requests]
