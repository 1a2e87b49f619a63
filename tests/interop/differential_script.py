"""The script of the differential test: what happens to both clusters, one step after the other.

Brokers 1 to 4 are stubs. A step is one stimulus; the next one comes when both controllers are idle.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from klamm.model.brokers import Endpoint

from .differential_sides import Side


class Step(NamedTuple):
    name: str
    run: Callable[[Side], Awaitable[object]]


UNCLEAN = {"unclean.leader.election.enable": "true"}
REASSIGN, PREFER = "/admin/reassign_partitions", "/admin/preferred_replica_election"
MORE = Endpoint("CLIENT", "127.0.0.1", 1)
UNKNOWN_BROKER = "controlled shutdown of an unknown broker"
REMOVED = "topic znode removed by an operator"
CANCELLED = "cancelled", "cancelled while it leads"
OVERRIDDEN = "overridden, and a replica is given up"
DELETED_WHILE_MOVING = "which is then deleted", "its reassignment could be done"

SCRIPT = [
    Step("first election, four brokers, no topic", lambda s: s.settled()),
    # --- topics
    Step("topic created", lambda s: s.create_topics({"a": [[1, 2, 3], [2, 3, 1], [3, 1, 2]]}, {})),
    Step("topic of single replicas created", lambda s: s.create_topics({"b": [[1], [2], [3]]}, {})),
    Step(
        "three topics at once",
        lambda s: s.create_topics({"c": [[1, 2]], "d": [[2, 3], [3, 2]], "e": [[4, 3], [3, 4]]}, {}),
    ),
    Step("topic grows by two", lambda s: s.grow("a", [[4, 1], [2, 4]])),
    # --- ISR changes by leaders
    Step("leader shrinks an ISR", lambda s: s.change_isr("a-0", [1, 2])),
    Step("leader expands it, in its own order", lambda s: s.change_isr("a-0", [2, 1, 3])),
    Step("leader shrinks an ISR without a notification", lambda s: s.change_isr("a-1", [2, 3], notify=False)),
    Step("notification of an unknown partition", lambda s: s.notify_isr("nowhere-0", "a-1")),
    # --- brokers die and return
    Step("broker 4 dies", lambda s: s.stubs[4].leave()),
    Step("topic created with dead replicas", lambda s: s.create_topics({"f": [[4, 1], [1, 4], [4]]}, {})),
    Step("broker 4 is back", lambda s: s.stubs[4].register()),
    Step("broker 1 dies", lambda s: s.stubs[1].leave()),
    Step("broker 2 dies too: partitions without leader", lambda s: s.stubs[2].leave()),
    Step("topic grows while two are dead", lambda s: s.grow("b", [[1, 3], [2, 1]])),
    Step("broker 2 is back", lambda s: s.stubs[2].register()),
    Step("broker 1 is back", lambda s: s.stubs[1].register()),
    Step("broker 3 bounces", lambda s: s.stubs[3].bounce()),
    Step("broker 2 changes its endpoints", lambda s: s.stubs[2].advertise(MORE)),
    # --- elections
    Step("leaders take the others back: a-0", lambda s: s.change_isr("a-0", [2, 3, 1])),
    Step("leaders take the others back: a-3", lambda s: s.change_isr("a-3", [4, 1])),
    Step("leaders take the others back: c-0", lambda s: s.change_isr("c-0", [2, 1])),
    Step("preferred election by znode", lambda s: s.prefer_by_znode("a-0", "a-1", "nowhere-3")),
    Step("preferred election by request", lambda s: s.elect("c-0", "a-0", "a-2", "nowhere-0", "b-0")),
    Step("unclean election by request, not needed", lambda s: s.elect("a-0", "nowhere-0", unclean=True)),
    # --- controlled shutdown
    Step("controlled shutdown with an old epoch", lambda s: s.controlled_shutdown(2, epochs_ago=1)),
    Step("controlled shutdown of broker 2", lambda s: s.controlled_shutdown(2)),
    Step("broker 2 leaves after it", lambda s: s.stubs[2].leave()),
    Step("broker 2 returns after it", lambda s: s.stubs[2].register()),
    Step("controlled shutdown of broker 3, sole leaders", lambda s: s.controlled_shutdown(3)),
    Step("broker 3 bounces instead of leaving", lambda s: s.stubs[3].bounce()),
    # --- reassignment
    Step("reassignment by znode", lambda s: s.reassign_by_znode(a__0=[4, 2, 3], nowhere__0=[1])),
    Step("its target joins the ISR", lambda s: s.change_isr("a-0", [1, 3, 2, 4])),
    Step("reassignment by request", lambda s: s.reassign({"a-1": [1, 4]})),
    Step("overridden by another", lambda s: s.reassign({"a-1": [4, 2]})),
    Step(CANCELLED[0], lambda s: s.reassign({"a-1": None})),
    Step("reassignments that are refused", lambda s: s.reassign({"a-1": None, "a-0": [2, 2], "a-2": [9], "x-0": [1]})),
    Step("reassignment within the ISR, done at once", lambda s: s.reassign({"c-0": [1]})),
    Step("reassignment of several", lambda s: s.reassign({"d-0": [1, 2], "d-1": [2, 1], "b-0": [2]})),
    Step("one of them is done", lambda s: s.change_isr("b-0", [1, 2], notify=False)),
    Step("a target dies", lambda s: s.stubs[1].leave()),
    Step("the target is back", lambda s: s.stubs[1].register()),
    Step("another is done", lambda s: s.change_isr("d-0", [2, 3, 1], notify=False)),
    Step("a reassignment by znode takes over", lambda s: s.reassign_by_znode(d__1=[3, 1])),
    Step("and is done", lambda s: s.change_isr("d-1", [3, 1], notify=False)),
    # --- deletion
    Step("topic deleted", lambda s: s.delete_topics("c")),
    Step("unknown topic deleted", lambda s: s.delete_topics("nowhere")),
    Step("broker 3 dies", lambda s: s.stubs[3].leave()),
    Step("topic with a dead replica deleted", lambda s: s.delete_topics("d")),
    Step("election in a topic that waits for deletion", lambda s: s.elect("d-0")),
    Step("reassignment in it", lambda s: s.reassign({"d-0": [1]})),
    Step("re-election while it waits", lambda s: s.delete("/controller")),
    Step("topic grows while it waits for deletion", lambda s: s.grow("d", [[1]])),
    Step("broker 3 is back: deletion goes on", lambda s: s.stubs[3].register()),
    Step("reassignment of a topic", lambda s: s.reassign({"e-0": [1, 4]})),
    Step(DELETED_WHILE_MOVING[0], lambda s: s.delete_topics("e")),
    Step(DELETED_WHILE_MOVING[1], lambda s: s.change_isr("e-0", [4, 1])),
    # --- unclean elections
    Step("two topics of two replicas", lambda s: s.create_topics({"u": [[1, 2]], "v": [[1, 2]], "w": [[1, 2]]}, {})),
    Step("ISR of one: u", lambda s: s.change_isr("u-0", [1])),
    Step("ISR of one: v", lambda s: s.change_isr("v-0", [1])),
    Step("ISR of one: w", lambda s: s.change_isr("w-0", [1])),
    Step("the only one in sync dies", lambda s: s.stubs[1].leave()),
    Step("unclean election allowed for the topic", lambda s: s.configure("u", UNCLEAN)),
    Step("unclean election by request", lambda s: s.elect("v-0", "w-0", "u-0", unclean=True)),
    Step("it is back", lambda s: s.stubs[1].register()),
    # --- log directories
    Step("a log directory of broker 2 fails", lambda s: s.log_directory_fails(2, "u-0", "a-4")),
    Step("preferred election of an offline replica", lambda s: s.elect("a-4")),
    Step("broker 2 restarts with a new directory", lambda s: s.log_directory_repaired(2)),
    # --- the controller
    Step("re-election", lambda s: s.delete("/controller")),
    Step("broker 2 dies under the new term", lambda s: s.stubs[2].leave()),
    Step("re-election with a dead broker", lambda s: s.delete("/controller")),
    Step("broker 2 returns to the third term", lambda s: s.stubs[2].register()),
    # --- several at once
    Step(
        "topics for the next steps", lambda s: s.create_topics({"k": [[3, 4, 1], [4, 3, 2]], "l": [[1, 2], [2, 1]]}, {})
    ),
    Step("brokers 3 and 4 die at once", lambda s: s.die_together(3, 4)),
    Step("brokers 3 and 4 return at once", lambda s: s.return_together(3, 4)),
    Step("preferred election of all partitions", lambda s: s.elect()),
    Step("unclean election of all partitions", lambda s: s.elect(unclean=True)),
    Step(UNKNOWN_BROKER, lambda s: s.controlled_shutdown(7)),
    # --- reassignments during failures
    Step("reassignment towards 2, 4, 1", lambda s: s.reassign({"k-0": [2, 4, 1]})),
    Step("the added replica joins the ISR", lambda s: s.change_isr("k-0", [1, 2])),
    Step("the leader dies, the added one leads", lambda s: s.stubs[1].leave()),
    Step("it adds another to the ISR", lambda s: s.change_isr("k-0", [2, 3])),
    Step(CANCELLED[1], lambda s: s.reassign({"k-0": None})),
    Step("the former leader is back", lambda s: s.stubs[1].register()),
    Step("reassignment of another", lambda s: s.reassign({"k-1": [1, 2]})),
    Step("re-election in the middle of it", lambda s: s.delete("/controller")),
    Step("it is done under the new term", lambda s: s.change_isr("k-1", [2, 1])),
    Step("a topic to override", lambda s: s.create_topics({"o": [[3, 2]]}, {})),
    Step("its reassignment", lambda s: s.reassign({"o-0": [2, 4]})),
    Step(OVERRIDDEN, lambda s: s.reassign({"o-0": [3, 1]})),
    Step("the override is done", lambda s: s.change_isr("o-0", [3, 1])),
    # --- odd input
    Step(REMOVED, lambda s: s.remove_behind_its_back("f")),
    Step("junk in the reassignment znode", lambda s: s.write(REASSIGN, "no json")),
    Step("the junk is removed", lambda s: s.delete(REASSIGN)),
    Step("junk in the election znode", lambda s: s.write(PREFER, '{"version":1,"partitions":[]}')),
    Step("junk in an ISR notification", lambda s: s.write("/isr_change_notification/isr_change_", "no json")),
    Step("a topic is created after all that", lambda s: s.create_topics({"z": [[4, 3, 2, 1]]}, {})),
]
