"""The doctor: a healthy tree has no finding, and each kind of damage has its own."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests.unit.test_documented_commands import check

from klamm.admin.doctor import controller_checks, partition_checks, procedure_checks
from klamm.admin.doctor.doctor import examine
from klamm.admin.doctor.finding import Severity
from klamm.model.brokers import Broker, Endpoint
from klamm.model.ids import BrokerId, ControllerEpoch, LeaderEpoch, TopicPartition
from klamm.model.partition import Assignment, LeaderAndIsr
from klamm.model.ports import Node, Stat
from klamm.zookeeper.znodes import broker_id, controller, controller_epoch, partition_state, reassign_partitions, topic
from klamm.zookeeper.znodes.kafka_tree import KafkaTree, RawState

NOW_MS = 10_000_000
OLD_MS = NOW_MS - 3_600_000


def node(data: bytes | None, *, session: int = 0, since_ms: int = OLD_MS) -> Node:
    stat = Stat(1, 1, since_ms, since_ms, 0, 0, 0, session, len(data or b""), 0, 1)
    return Node(data, stat)


def registration(broker: int, port: int | None = None) -> Node:
    endpoint = Endpoint("PLAINTEXT", "localhost", port or 9000 + broker)
    return node(broker_id.encode(Broker(BrokerId(broker), (endpoint,)), 0), session=100 + broker)


def state(leader: int, *isr: int, controller_epoch: int = 5) -> RawState:
    value = LeaderAndIsr(BrokerId(leader), LeaderEpoch(3), tuple(map(BrokerId, isr)), ControllerEpoch(controller_epoch))
    return RawState(partition_state.encode(value), exists=True)


def assigned(**fields: tuple[int, ...]) -> Assignment:
    return Assignment(**{name: tuple(map(BrokerId, ids)) for name, ids in fields.items()})


T0 = TopicPartition("t", 0)
PATH = "/brokers/topics/t/partitions/0/state"
REPLICAS = assigned(replicas=(1, 2, 3))
HEALTHY = KafkaTree(
    read_at_ms=NOW_MS,
    root=["admin", "brokers", "config", "controller"],
    controller=node(controller.encode(BrokerId(1), 0), session=101),
    controller_epoch=node(controller_epoch.encode(ControllerEpoch(5))),
    brokers={str(broker): registration(broker) for broker in (1, 2, 3)},
    topics={"t": node(topic.encode({0: REPLICAS}))},
    partitions={"t": ["0"]},
    states={T0: state(1, 1, 2, 3)},
    configured_topics=["t"],
    writers={topic.path("t"): frozenset({"world:anyone"}), PATH: frozenset({"world:anyone"})},
)


def with_assignment(assignment: Assignment, *, since_ms: int = OLD_MS, **changes: Any) -> KafkaTree:
    return replace(HEALTHY, topics={"t": node(topic.encode({0: assignment}), since_ms=since_ms)}, **changes)


def with_state(raw: RawState) -> KafkaTree:
    return replace(HEALTHY, states={T0: raw})


def request(*replicas: int, name: str = "t") -> Node:
    return node(reassign_partitions.encode({TopicPartition(name, 0): tuple(map(BrokerId, replicas))}))


@pytest.mark.parametrize(
    "tree",
    [
        HEALTHY,
        KafkaTree(read_at_ms=NOW_MS, root=["brokers"]),
        with_assignment(assigned(replicas=(3, 1, 2), adding=(3,), removing=(1,)), since_ms=NOW_MS - 5_000),
        with_assignment(assigned(replicas=(3, 1, 2), adding=(3,), removing=(1,)), states={T0: state(1, 1, 2)}),
        replace(HEALTHY, deletions={"t": node(None, since_ms=NOW_MS - 5_000)}, states={T0: state(-1, 1, 2)}),
        with_assignment(REPLICAS, since_ms=NOW_MS - 1_000, states={T0: RawState(None, exists=False)}),
        replace(HEALTHY, notifications={"/isr_change_notification/isr_change_1": node(b"{}", since_ms=NOW_MS - 500)}),
        replace(HEALTHY, reassignment=request(2, 3)),
        with_state(state(2, 2, 3, controller_epoch=4)),
    ],
    ids=[
        "healthy",
        "empty cluster",
        "a move that has just got its last replica",
        "an old move that still copies",
        "a deletion",
        "a topic that is being created",
        "a fresh notification",
        "a request that can be met",
        "a shrunk ISR",
    ],
)
def test_nothing_is_found_in_a_healthy_tree(tree: KafkaTree) -> None:
    assert examine(tree) == []


PLANTED: dict[str, tuple[Callable[[], KafkaTree], str, Severity, str]] = {
    "wrong-chroot": (
        lambda: replace(KafkaTree(read_at_ms=NOW_MS), root=["kafka"], below_root={"kafka": ["brokers"]}),
        "/",
        Severity.CRITICAL,
        "Kafka's znodes are below /kafka",
    ),
    "no-controller": (lambda: replace(HEALTHY, controller=None), "/controller", Severity.CRITICAL, "3 brokers are"),
    "controller-unreadable": (
        lambda: replace(HEALTHY, controller=node(b"?", session=101)),
        "/controller",
        Severity.CRITICAL,
        "names no broker",
    ),
    "controller-not-registered": (
        lambda: replace(HEALTHY, controller=node(controller.encode(BrokerId(9), 0), session=109)),
        "/controller",
        Severity.CRITICAL,
        "names broker 9",
    ),
    "controller-not-acting": (
        lambda: replace(HEALTHY, controller=node(controller.encode(BrokerId(2), 0), session=101)),
        "/controller",
        Severity.CRITICAL,
        "session 0x65 holds it",
    ),
    "controller-persistent": (
        lambda: replace(HEALTHY, controller=node(controller.encode(BrokerId(1), 0))),
        "/controller",
        Severity.CRITICAL,
        "blocks elections",
    ),
    "kraft-migration": (
        lambda: replace(HEALTHY, controller=node(controller.encode(BrokerId(1), 0)), migration=node(b"{}")),
        "/controller",
        Severity.INFO,
        "during a migration",
    ),
    "migration-left-over": (
        lambda: replace(HEALTHY, migration=node(b"{}")),
        "/migration",
        Severity.WARNING,
        "rolled back",
    ),
    "epoch-unreadable": (
        lambda: replace(HEALTHY, controller_epoch=node(b"five")),
        "/controller_epoch",
        Severity.ERROR,
        "decimal number",
    ),
    "epoch-lost": (
        lambda: replace(HEALTHY, controller_epoch=None),
        "/controller_epoch",
        Severity.ERROR,
        "partitions have states",
    ),
    "epoch-went-back": (
        lambda: with_state(state(1, 1, controller_epoch=6)),
        "/controller_epoch",
        Severity.CRITICAL,
        "is 5, but t-0 was written in epoch 6",
    ),
    "registration-broken": (
        lambda: replace(HEALTHY, brokers={**HEALTHY.brokers, "4": node(b"{}", session=104)}),
        "/brokers/ids/4",
        Severity.ERROR,
        "version",
    ),
    "registration-persistent": (
        lambda: replace(HEALTHY, brokers={**HEALTHY.brokers, "4": registration(4)._replace(stat=node(b"").stat)}),
        "/brokers/ids/4",
        Severity.ERROR,
        "alive for ever",
    ),
    "endpoint-shared": (
        lambda: replace(HEALTHY, brokers={**HEALTHY.brokers, "4": registration(4, port=9001)}),
        "/brokers/ids/1",
        Severity.ERROR,
        "brokers [1, 4] both advertise localhost:9001",
    ),
    "quarantined": (
        lambda: replace(HEALTHY, quarantined={"/config/extension/quarantine/x": node(b"{}")}),
        "/config/extension/quarantine/x",
        Severity.ERROR,
        "set a broken znode aside",
    ),
    "acl-read-only": (
        lambda: replace(HEALTHY, writers={"/a": HEALTHY.writers[PATH], "/b": HEALTHY.writers[PATH], PATH: frozenset()}),
        PATH,
        Severity.ERROR,
        "only no one may write it, elsewhere world:anyone",
    ),
    "notifications-stuck": (
        lambda: replace(HEALTHY, notifications={"/isr_change_notification/isr_change_1": node(b"{}")}),
        "/isr_change_notification",
        Severity.ERROR,
        "1 notification older than 5 minutes",
    ),
    "topic-broken": (
        lambda: replace(HEALTHY, topics={"t": node(b"{")}, states={}),
        "/brokers/topics/t",
        Severity.CRITICAL,
        "not JSON",
    ),
    "state-broken": (lambda: with_state(RawState(b"[]", exists=True)), PATH, Severity.CRITICAL, "JSON object"),
    "state-lost": (lambda: with_state(RawState(None, exists=False)), PATH, Severity.CRITICAL, "it has no leader"),
    "leader-outside-isr": (lambda: with_state(state(1, 2, 3)), PATH, Severity.CRITICAL, "leader 1 is not in the ISR"),
    "leader-outside-assignment": (
        lambda: replace(with_state(state(4, 4, 1)), brokers={**HEALTHY.brokers, "4": registration(4)}),
        PATH,
        Severity.CRITICAL,
        "leader 4 is not one of the replicas [1, 2, 3]",
    ),
    "isr-empty": (lambda: with_state(state(1)), PATH, Severity.CRITICAL, "the ISR is empty"),
    "isr-duplicate": (lambda: with_state(state(1, 1, 1)), PATH, Severity.ERROR, "twice: [1, 1]"),
    "isr-outside-assignment": (lambda: with_state(state(1, 1, 9)), PATH, Severity.ERROR, "the ISR has [9]"),
    "leader-missing": (lambda: with_state(state(-1, 2)), PATH, Severity.CRITICAL, "although [2] of the ISR"),
    "offline": (lambda: with_state(state(-1, 9)), PATH, Severity.CRITICAL, "no broker of the ISR [9] is alive"),
    "broker-gone": (
        lambda: with_assignment(assigned(replicas=(1, 2, 9)), states={T0: state(1, 1, 2)}),
        "/brokers/ids/9",
        Severity.WARNING,
        "has 1 replica and leads 0",
    ),
    "assignment-broken": (
        lambda: with_assignment(assigned(replicas=(1, 2, 2)), states={T0: state(1, 1)}),
        "/brokers/topics/t",
        Severity.ERROR,
        "names a broker twice",
    ),
    "partition-orphaned": (
        lambda: replace(HEALTHY, partitions={"t": ["0", "7"]}),
        "/brokers/topics/t/partitions/7",
        Severity.WARNING,
        "does not have this partition",
    ),
    "duplicate-name": (
        lambda: replace(HEALTHY, partitions={"t": ["0", "00"]}),
        "/brokers/topics/t/partitions/00",
        Severity.ERROR,
        "plain number",
    ),
    "config-orphaned": (
        lambda: replace(HEALTHY, configured_topics=["t", "u"]),
        "/config/topics/u",
        Severity.WARNING,
        "would inherit it",
    ),
    "deletion-stuck": (
        lambda: replace(HEALTHY, deletions={"t": node(None)}),
        "/admin/delete_topics/t",
        Severity.ERROR,
        "waits for brokers [1, 2, 3] to delete their replicas",
    ),
    "reassignment-stuck": (
        lambda: replace(HEALTHY, reassignment=request(1, 9)),
        "/admin/reassign_partitions",
        Severity.ERROR,
        "t-0 waits for brokers [9]",
    ),
    "reassignment-broken": (
        lambda: replace(HEALTHY, reassignment=node(b"{}")),
        "/admin/reassign_partitions",
        Severity.ERROR,
        "version is missing",
    ),
}


@pytest.mark.parametrize("code", PLANTED)
def test_each_planted_damage_is_the_only_finding(code: str) -> None:
    planted, path, severity, evidence = PLANTED[code]
    (found,) = examine(planted())
    assert (found.code, found.path, found.severity) == (code, path, severity)
    assert evidence in found.evidence
    assert found.cure


def test_every_finding_has_a_planted_case() -> None:
    modules = (controller_checks, partition_checks, procedure_checks)
    codes = {
        code for module in modules for code in re.findall(r'"([a-z]+(?:-[a-z]+)+|offline|quarantined)"', source(module))
    }
    assert codes == set(PLANTED)


def source(module: ModuleType) -> str:
    return Path(module.__file__ or "").read_text()


@pytest.mark.parametrize("code", PLANTED)
def test_the_commands_of_a_cure_can_be_pasted(code: str) -> None:
    (found,) = examine(PLANTED[code][0]())
    for line in re.findall(r"\bklamm [a-z]+ [a-z]+(?: --[a-z-]+| (?:preferred|unclean)| [A-Z]+)*", found.cure):
        check(line.split()[1:])


@pytest.mark.parametrize(
    ("tree", "evidence"),
    [
        (replace(HEALTHY, reassignment=request(1, name="gone")), "gone-0 does not exist"),
        (
            with_assignment(assigned(replicas=(1, 2, 3), adding=(3,), removing=())),
            "has all its new replicas in sync, but the move does not end",
        ),
    ],
)
def test_moves_that_cannot_end(tree: KafkaTree, evidence: str) -> None:
    (found,) = examine(tree)
    assert found.code == "reassignment-stuck"
    assert evidence in found.evidence


def test_a_move_to_a_dead_broker_names_it() -> None:
    moving = assigned(replicas=(1, 2, 9), adding=(9,), removing=())
    found = examine(with_assignment(moving, states={T0: state(1, 1, 2)}))
    assert [(finding.code, finding.path) for finding in found] == [
        ("reassignment-stuck", "/brokers/topics/t"),
        ("broker-gone", "/brokers/ids/9"),
    ]


def test_a_broker_that_is_registered_in_two_spellings() -> None:
    (found,) = examine(replace(HEALTHY, brokers={**HEALTHY.brokers, "02": registration(2)}))
    assert (found.code, found.path) == ("duplicate-name", "/brokers/ids/02")


def test_the_worst_comes_first() -> None:
    tree = replace(HEALTHY, configured_topics=["u"], controller=None, partitions={"t": ["00"]})
    assert [finding.severity for finding in examine(tree)] == [Severity.CRITICAL, Severity.ERROR, Severity.WARNING]
