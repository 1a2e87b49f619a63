"""Each invariant of the simulation is shown to fail: alone, and in the checker."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from klamm.controller.context.controller_context import ControllerContext
from klamm.model.brokers import Broker, LiveBroker
from klamm.model.events import Decision
from klamm.model.ids import ControllerEpoch, TopicPartition
from klamm.model.partition import Assignment, LeaderAndIsr
from klamm.simulation import healed, invariants
from klamm.simulation.checker import OPERATOR_SESSION, Checker, Violation, controller_epoch_of
from klamm.simulation.healed import ClusterSnapshot, Metadata
from klamm.simulation.invariants import Leadership, Problem, RequestEpochs
from klamm.wire.apis import ApiKey
from klamm.wire.server_connection import RequestHeader, request_head
from klamm.zookeeper.server.tree import TreeNode
from klamm.zookeeper.znodes import partition_state
from klamm.zookeeper.znodes import topic as topic_znode

T0 = TopicPartition("t", 0)
LED = LeaderAndIsr(1, 3, (1, 2), 5)
SEEN = invariants.without_controller_epoch(LED)
WHOLE = ClusterSnapshot({1: 10, 2: 11}, {T0: Assignment((1, 2))}, {T0: (SEEN, 4)})
CACHE = Metadata({1, 2}, {T0: (SEEN, 4, (1, 2))})

PLANTED: dict[str, tuple[Callable[[], Problem], Callable[[], Problem]]] = {
    # What holds, and a violation next to it.
    "S4: one leader": (
        lambda: invariants.one_leader({Leadership(1, T0, 3): 1}, Leadership(1, T0, 4), 2),
        lambda: invariants.one_leader({Leadership(1, T0, 3): 1}, Leadership(1, T0, 3), 2),
    ),
    "S5: controller epoch": (
        lambda: invariants.controller_epoch_rises(4, 5),
        lambda: invariants.controller_epoch_rises(5, 5),
    ),
    "S5: broker epoch": (
        lambda: invariants.broker_epoch_rises(1, 4, 5),
        lambda: invariants.broker_epoch_rises(1, 5, 5),
    ),
    "S5: leader epoch goes back": (
        lambda: invariants.leader_epoch_rises(T0, LED, LED._replace(leader_epoch=4)),
        lambda: invariants.leader_epoch_rises(T0, LED, LED._replace(leader_epoch=2)),
    ),
    "S5: a state of an older controller": (
        lambda: invariants.leader_epoch_rises(T0, LED, LED._replace(leader_epoch=4, controller_epoch=6)),
        lambda: invariants.leader_epoch_rises(T0, LED, LED._replace(leader_epoch=4, controller_epoch=4)),
    ),
    "S5: another leader in one epoch": (
        lambda: invariants.leader_epoch_rises(T0, LED, LED._replace(isr=(1,))),
        lambda: invariants.leader_epoch_rises(T0, LED, LED._replace(leader=2)),
    ),
    "S5: zkVersion": (
        lambda: invariants.zk_version_rises(T0, 4, 5),
        lambda: invariants.zk_version_rises(T0, 4, 4),
    ),
    "S6: leader outside the ISR": (
        lambda: invariants.state_is_sound(T0, LED._replace(leader=-1), Assignment((1, 2))),
        lambda: invariants.state_is_sound(T0, LED._replace(leader=3), Assignment((1, 2, 3))),
    ),
    "S6: empty ISR": (
        lambda: invariants.state_is_sound(T0, LED, Assignment((1, 2))),
        lambda: invariants.state_is_sound(T0, LeaderAndIsr(-1, 3, (), 5), Assignment((1, 2))),
    ),
    "S6: ISR outside the assignment": (
        lambda: invariants.state_is_sound(T0, LED, Assignment((1, 2), adding=(2,))),
        lambda: invariants.state_is_sound(T0, LED, Assignment((1, 3))),
    ),
    "S6: a leader that was not in the ISR": (
        lambda: invariants.leader_comes_from_isr(T0, LED, LeaderAndIsr(2, 4, (2,), 5), unclean_allowed=False),
        lambda: invariants.leader_comes_from_isr(T0, LED, LeaderAndIsr(3, 4, (3,), 5), unclean_allowed=False),
    ),
    "S6: more than one unclean leader": (
        lambda: invariants.leader_comes_from_isr(T0, LED, LeaderAndIsr(3, 4, (3,), 5), unclean_allowed=True),
        lambda: invariants.leader_comes_from_isr(T0, LED, LeaderAndIsr(3, 4, (3, 2), 5), unclean_allowed=True),
    ),
    "S7: a topic written by a broker that is not elected": (
        lambda: invariants.only_the_elected_writes("set", "/brokers/topics/t", 77, 77),
        lambda: invariants.only_the_elected_writes("set", "/brokers/topics/t", 78, 77),
    ),
    "S7: a notification deleted by a broker that is not elected": (
        lambda: invariants.only_the_elected_writes("create", "/isr_change_notification/isr_change_1", 78, 77),
        lambda: invariants.only_the_elected_writes("delete", "/isr_change_notification/isr_change_1", 78, 77),
    ),
    "S7: a state of a former term": (
        lambda: invariants.state_of_the_elected(T0, LED, 5),
        lambda: invariants.state_of_the_elected(T0, LED, 6),
    ),
    "S8: an older controller obeyed": (
        lambda: invariants.request_is_current(1, RequestEpochs(9, 5), RequestEpochs(9, 5)),
        lambda: invariants.request_is_current(1, RequestEpochs(9, 4), RequestEpochs(9, 5)),
    ),
    "S8: a request to a former life obeyed": (
        lambda: invariants.request_is_current(1, RequestEpochs(-1, 5), RequestEpochs(9, 5)),
        lambda: invariants.request_is_current(1, RequestEpochs(8, 5), RequestEpochs(9, 5)),
    ),
    "S8: an older leader epoch obeyed": (
        lambda: invariants.order_is_newer(1, T0, 4, 3),
        lambda: invariants.order_is_newer(1, T0, 3, 3),
    ),
    "S8: an older stop obeyed": (
        lambda: invariants.stop_is_current(1, T0, -2, 3),
        lambda: invariants.stop_is_current(1, T0, 2, 3),
    ),
    "S8: a replica in sync is deleted": (
        lambda: invariants.deleted_is_not_needed(1, T0, (1, 2), topic_leaves=True),
        lambda: invariants.deleted_is_not_needed(1, T0, (1, 2), topic_leaves=False),
    ),
    "order: sent before it is written": (
        lambda: invariants.sent_state_was_written(1, T0, (LED, 4), {(SEEN, 4)}),
        lambda: invariants.sent_state_was_written(1, T0, (LED, 5), {(SEEN, 4)}),
    ),
    "S15: a request of a broker that is not the controller": (
        lambda: invariants.sender_is_active("broker-1", 5, 5),
        lambda: invariants.sender_is_active("broker-1", 5, None),
    ),
    "S15: a request of a former term": (
        lambda: invariants.sender_is_active("broker-1", 5, 5),
        lambda: invariants.sender_is_active("broker-1", 5, 6),
    ),
    "S15: a context that was not emptied": (
        lambda: invariants.resigned_is_empty(1, is_active=True, gauges={"GlobalTopicCount": 3.0}),
        lambda: invariants.resigned_is_empty(1, is_active=False, gauges={"GlobalTopicCount": 3.0}),
    ),
    "E1: no controller": (
        lambda: healed.one_controller([2], 2),
        lambda: healed.one_controller([], 2),
    ),
    "E1: two controllers": (
        lambda: healed.one_controller([2], 2),
        lambda: healed.one_controller([1, 2], 2),
    ),
    "E1: /controller names another": (
        lambda: healed.one_controller([2], 2),
        lambda: healed.one_controller([2], 1),
    ),
    "E1: a leader that a broker was not sent": (
        lambda: invariants.knows_decisions(1, {T0: LED}, {T0: LED._replace(isr=(1,))}, {}, {1, 2}),
        lambda: invariants.knows_decisions(1, {T0: LED}, {T0: LED._replace(leader_epoch=2)}, {}, {1, 2}),
    ),
    "E1: a partition that a broker was not sent": (
        lambda: invariants.knows_decisions(1, {}, {T0: LED}, {}, {1, 2}),
        lambda: invariants.knows_decisions(1, {T0: LED}, {}, {}, {1, 2}),
    ),
    "E1: a former leader that still leads": (
        lambda: invariants.knows_decisions(1, {T0: LED}, {T0: LED}, {T0: 3}, {1, 2}),
        lambda: invariants.knows_decisions(1, {T0: LED}, {T0: LED}, {T0: 2}, {1, 2}),
    ),
    "E1: a broker that is not registered": (
        lambda: healed.every_broker_is_registered([1, 2], WHOLE),
        lambda: healed.every_broker_is_registered([1, 2, 3], WHOLE),
    ),
    "E1: a partition without leader": (
        lambda: healed.every_partition_is_led(WHOLE),
        lambda: healed.every_partition_is_led(WHOLE._replace(states={T0: (SEEN._replace(leader=-1), 4)})),
    ),
    "E1: a broker epoch in the context": (
        lambda: healed.context_is_zookeeper(WHOLE, WHOLE),
        lambda: healed.context_is_zookeeper(WHOLE._replace(brokers={1: 9, 2: 11}), WHOLE),
    ),
    "E1: an assignment in the context": (
        lambda: healed.context_is_zookeeper(WHOLE, WHOLE),
        lambda: healed.context_is_zookeeper(WHOLE._replace(assignments={T0: Assignment((2, 1))}), WHOLE),
    ),
    "E1: a state in the context": (
        lambda: healed.context_is_zookeeper(WHOLE, WHOLE),
        lambda: healed.context_is_zookeeper(WHOLE._replace(states={T0: (SEEN, 3)}), WHOLE),
    ),
    "E1: live brokers in a cache": (
        lambda: healed.metadata_is_zookeeper(2, CACHE, WHOLE),
        lambda: healed.metadata_is_zookeeper(2, CACHE._replace(brokers={1}), WHOLE),
    ),
    "E1: a partition in a cache": (
        lambda: healed.metadata_is_zookeeper(2, CACHE, WHOLE),
        lambda: healed.metadata_is_zookeeper(2, CACHE._replace(partitions={}), WHOLE),
    ),
    "E1: a deleted topic in a cache": (
        lambda: healed.metadata_is_zookeeper(2, CACHE, ClusterSnapshot(WHOLE.brokers, {}, {}), {"t"}),
        lambda: healed.metadata_is_zookeeper(2, CACHE, ClusterSnapshot(WHOLE.brokers, {}, {})),
    ),
    "E1: a topic in a cache whose deletion was missed, and that exists again": (
        lambda: healed.metadata_is_zookeeper(2, CACHE, WHOLE, {"t"}),
        lambda: healed.metadata_is_zookeeper(2, CACHE._replace(partitions={}), WHOLE, {"t"}),
    ),
    "E3: a marker is left": (
        lambda: healed.nothing_is_left(["/admin/delete_topics"], WHOLE),
        lambda: healed.nothing_is_left(["/admin/delete_topics", "/admin/delete_topics/t"], WHOLE),
    ),
    "E3: a partition is still being moved": (
        lambda: healed.nothing_is_left([], WHOLE),
        lambda: healed.nothing_is_left([], WHOLE._replace(assignments={T0: Assignment((1, 2), adding=(2,))})),
    ),
    "E4: a call without answer": (
        lambda: healed.every_call_is_answered([]),
        lambda: healed.every_call_is_answered(["cancel"]),
    ),
}


@pytest.mark.parametrize("planted", sorted(PLANTED))
def test_each_invariant_fails_on_its_planted_violation(planted: str) -> None:
    holds, broken = PLANTED[planted]
    assert holds() is None
    assert broken()


@pytest.mark.parametrize("path", ["/admin/reassign_partitions", "/admin/preferred_replica_election"])
def test_requests_by_znode_must_go(path: str) -> None:
    assert path in (healed.nothing_is_left([path], WHOLE) or "")


@pytest.mark.parametrize("parent", ["isr_change_notification", "log_dir_event_notification"])
def test_notifications_must_go(parent: str) -> None:
    assert healed.nothing_is_left([f"/{parent}"], WHOLE) is None
    assert parent in (healed.nothing_is_left([f"/{parent}/x_0000000001"], WHOLE) or "")


def test_pictures_of_zookeeper_and_of_a_context_are_alike() -> None:
    nodes = {
        "/brokers/ids/1": node(b"{}", zxid=10),
        "/brokers/ids/2": node(b"{}", zxid=11),
        "/brokers/ids/none": node(b"{}"),
        "/brokers/topics/t": node(topic_znode.encode({0: Assignment((1, 2))})),
        "/brokers/topics/junk": node(b"junk"),
        "/brokers/topics/t/partitions/0/state": node(partition_state.encode(LED), version=4),
    }
    context = ControllerContext(ControllerEpoch(5))
    for broker, epoch in WHOLE.brokers.items():
        context.brokers[broker] = LiveBroker(Broker(broker, ()), epoch)
    context.add_topic("t")
    (partition,) = context.add_partitions("t", {0: Assignment((1, 2))})
    context.put_state(partition, LED._replace(controller_epoch=9), 4)
    assert healed.of_zookeeper(nodes) == healed.of_context(context) == WHOLE


# --- the checker: facts of a run reach their invariant ---


class Frozen:
    def wall_ms(self) -> int:
        return 0

    def monotonic(self) -> float:
        return 1.5


STATE = partition_state.path(T0)
BROKER = 77
ZOMBIE = 66


def node(data: bytes, *, zxid: int = 1, version: int = 0, owner: int = 0) -> TreeNode:
    made = TreeNode(data, (), owner, zxid, 0)
    made.version = version
    return made


class Tree:
    """Znodes, and a checker that sees each write."""

    def __init__(self) -> None:
        self.nodes: dict[str, TreeNode] = {}
        self.checker = Checker(Frozen(), self.nodes)
        self.write("/controller", b"{}", BROKER, owner=BROKER)
        self.write("/controller_epoch", b"0", BROKER)
        self.write("/controller_epoch", b"5", BROKER)
        self.write("/brokers/topics/t", topic_znode.encode({0: Assignment((1, 2))}), OPERATOR_SESSION)

    def write(self, path: str, data: bytes, session: int, *, owner: int = 0, zxid: int = 1) -> None:
        before = self.nodes.get(path)
        self.nodes[path] = node(data, version=0 if before is None else before.version + 1, owner=owner, zxid=zxid)
        self.checker.on_write("create" if before is None else "set", path, session)

    def write_state(self, state: LeaderAndIsr, session: int = BROKER) -> None:
        self.write(STATE, partition_state.encode(state), session)

    def finds(self, invariant: str) -> None:
        with pytest.raises(Violation) as found:
            self.checker.raise_violation()
        assert found.value.invariant == invariant
        assert found.value.events, "the last events tell what led to it"


def test_a_run_without_fault_has_nothing_to_find() -> None:
    tree = Tree()
    tree.write_state(LED)
    tree.write_state(LED._replace(isr=(1,)), session=1)  # the leader's own write, in its own session
    tree.write_state(LeaderAndIsr(-1, 4, (1,), 5))
    tree.checker.raise_violation()


@pytest.mark.parametrize(
    ("state", "session", "invariant"),
    [
        (LED._replace(leader_epoch=2), BROKER, "S5"),
        (LeaderAndIsr(3, 4, (1, 2), 5), BROKER, "S6"),
        (LeaderAndIsr(2, 4, (2,), 5), ZOMBIE, "S7"),
        (LeaderAndIsr(2, 4, (2,), 6), BROKER, "S7"),
    ],
)
def test_states(state: LeaderAndIsr, session: int, invariant: str) -> None:
    tree = Tree()
    tree.write_state(LED)
    tree.write_state(state, session)
    tree.finds(invariant)


def test_a_leader_from_outside_the_isr() -> None:
    tree = Tree()
    tree.write_state(LED._replace(isr=(1,)))
    tree.write_state(LeaderAndIsr(2, 4, (2,), 5))
    tree.finds("S6")
    tree = Tree()
    tree.checker.unclean_allowed.add("t")
    tree.write_state(LED._replace(isr=(1,)))
    tree.write_state(LeaderAndIsr(2, 4, (2,), 5))
    tree.checker.raise_violation()


def test_an_epoch_that_goes_back_or_has_no_owner() -> None:
    tree = Tree()
    tree.write("/controller_epoch", b"5", BROKER)  # of the same transaction
    tree.checker.raise_violation()
    tree.write("/controller_epoch", b"5", BROKER, zxid=2)
    tree.finds("S5")
    tree = Tree()
    tree.write("/controller_epoch", b"6", ZOMBIE, zxid=2)
    tree.finds("S7")


def test_a_zombie_deletes() -> None:
    tree = Tree()
    del tree.nodes["/brokers/topics/t"]
    tree.checker.on_write("delete", "/brokers/topics/t", ZOMBIE)
    tree.finds("S7")


def test_a_registration_with_an_older_epoch() -> None:
    tree = Tree()
    tree.write("/brokers/ids/1", b"{}", 1, zxid=9)
    del tree.nodes["/brokers/ids/1"]
    tree.write("/brokers/ids/1", b"{}", 1, zxid=9)
    tree.finds("S5")


def test_two_leaders_of_one_epoch_and_another_life_of_the_topic() -> None:
    tree = Tree()
    tree.write_state(LED)
    tree.checker.on_order(1, T0, (LED, 0), None)
    tree.write_state(LeaderAndIsr(2, 3, (1, 2), 5), OPERATOR_SESSION)
    with pytest.raises(Violation, match="S4"):
        tree.checker.on_order(2, T0, (LeaderAndIsr(2, 3, (1, 2), 5), 1), None)
    del tree.nodes["/brokers/topics/t"]
    tree.checker.on_write("delete", "/brokers/topics/t", BROKER)
    tree.write("/brokers/topics/t", topic_znode.encode({0: Assignment((1, 2))}), OPERATOR_SESSION, zxid=50)
    tree.checker.on_order(2, T0, (LeaderAndIsr(2, 3, (1, 2), 5), 1), None)


def test_orders_and_stops() -> None:
    checker = Tree().checker
    with pytest.raises(Violation, match="order"):
        checker.on_order(1, T0, (LED, 0), None)
    with pytest.raises(Violation, match="S8"):
        checker.on_order(1, T0, (LED, 0), 3)
    with pytest.raises(Violation, match="S8"):
        checker.on_obeyed(1, ApiKey.STOP_REPLICA, RequestEpochs(8, 5), RequestEpochs(9, 5))
    with pytest.raises(Violation, match="S8"):
        checker.on_stop(1, T0, 2, 3, delete=False)


def test_a_replica_in_sync_is_deleted_only_with_its_topic() -> None:
    tree = Tree()
    tree.write_state(LED)
    with pytest.raises(Violation, match="S8"):
        tree.checker.on_stop(1, T0, 3, 3, delete=True)
    tree.write("/admin/delete_topics/t", b"", OPERATOR_SESSION)
    tree.checker.on_stop(1, T0, 3, 3, delete=True)


def test_requests_of_who_holds_no_office() -> None:
    header = RequestHeader(ApiKey.UPDATE_METADATA, 6, 1, "12")
    frame = request_head(header, 20) + (12).to_bytes(4, "big") + (5).to_bytes(4, "big") + bytes(12)
    assert controller_epoch_of(frame) == 5
    assert controller_epoch_of(request_head(RequestHeader(ApiKey.API_VERSIONS, 0, 1, None), 0)) is None
    tree = Tree()
    tree.checker.on_sent("broker-1", frame, 5, 0.0)
    tree.checker.raise_violation()
    tree.checker.on_sent("broker-1", frame, None, 0.0)
    tree.finds("S15")


def test_requests_while_zookeeper_is_silent() -> None:
    frame = request_head(RequestHeader(ApiKey.STOP_REPLICA, 2, 1, "12"), 20) + bytes(7) + b"\5" + bytes(12)
    tree = Tree()
    tree.checker.on_sent("broker-1", frame, 5, invariants.LEASE_SECONDS)
    tree.checker.raise_violation()
    tree.checker.on_sent("broker-1", frame, 5, invariants.LEASE_SECONDS + 0.001)
    tree.finds("lease")


def test_what_a_resigned_controller_counts() -> None:
    checker = Tree().checker
    checker.on_controller(1, is_active=True, gauges=lambda: {"GlobalTopicCount": 3.0})
    with pytest.raises(Violation, match="S15"):
        checker.on_controller(1, is_active=False, gauges=lambda: {"GlobalTopicCount": 3.0})


def test_what_a_broker_has_not_heard_though_nothing_waits() -> None:
    checker = Tree().checker
    checker.on_rest(2, {T0: LED}, CACHE, {}, {1, 2})
    with pytest.raises(Violation, match="E1"):
        checker.on_rest(2, {T0: LED._replace(leader_epoch=4)}, CACHE, {}, {1, 2})


def test_a_controller_that_failed() -> None:
    tree = Tree()
    tree.checker.emit([Decision(0, 1, "controller", 5, "controller-failed", "TopicChange()", 0.0, {}, "KeyError: 7")])
    tree.finds("D14")
