"""Which broker should be controller: the rule as a table, then real controllers on one ZooKeeper in virtual time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any

import pytest

from klamm.controller.election.controller_election import NO_BROKER, Epoch, Holder
from klamm.controller.election.succession import Action, Policy, Situation, decide
from klamm.model.errors import ZNodeError
from klamm.model.ids import BrokerId, ControllerEpoch
from klamm.simulation.loop import run_in_virtual_time
from klamm.telemetry.metrics import MetricsRegistry
from klamm.testing.zookeeper import InMemoryTree

from .scenario import Scenario

POLICY = Policy(settle_s=3.0, patience_s=5.0, fallback=True, heal=True)
ME, SESSION = BrokerId(9), 90
GOOD = Epoch(ControllerEpoch(4), 4)


def held_by(broker: int, *, owner: int = 10, problem: ZNodeError | None = None) -> Holder:
    return Holder(BrokerId(broker), owner, 77, 0, problem)


def situation(holder: Holder | None, candidates: set[int] | None = None, **rest: Any) -> Situation:
    values: dict[str, Any] = {"live": {1, 2, 9}, "holder_session_id": 10, "epoch": GOOD, **rest}
    preferred = frozenset(BrokerId(c) for c in candidates or ())
    return Situation(ME, SESSION, holder, candidates=preferred, **values)


JUNK = ZNodeError("/controller", "no JSON")
STAND, TAKE = Action.STAND, Action.TAKE_OVER


@pytest.mark.parametrize(
    ("now", "action", "after_s"),
    [
        # There is no controller.
        (situation(None), STAND, 0),
        (situation(None, {9, 1}), STAND, 0),
        (situation(None, {1}), STAND, 5),
        (situation(None, {7}), STAND, 0),  # configured, but none is alive
        (situation(None, {9, 1}, unfit=True), STAND, 10),
        (situation(None, {9}, unfit=True), STAND, 10),
        (situation(None, {9}, unfit=True, live={9}), STAND, 0),
        # Another broker is controller, and all is well.
        (situation(held_by(1)), None, 0),
        (situation(held_by(1), {1, 9}), None, 0),  # candidates do not replace each other
        (situation(held_by(1), {2}), None, 0),  # this broker is not a candidate
        (situation(held_by(1), {9}), TAKE, 3),
        (situation(held_by(1), {9, 2}), TAKE, 3),
        (situation(held_by(1), {9}, unfit=True), None, 0),
        # An operator asked for this broker.
        (situation(held_by(1), asked_for=ME), TAKE, 0),
        (situation(held_by(1), {1, 9}, asked_for=ME), TAKE, 0),
        (situation(held_by(1), asked_for=BrokerId(2)), None, 0),
        # Our session owns /controller, but we do not lead.
        (situation(held_by(9, owner=SESSION)), STAND, 0),
        (situation(held_by(1, owner=SESSION)), STAND, 0),
        (situation(held_by(NO_BROKER, owner=SESSION, problem=JUNK), {1}), STAND, 0),
        # The election is broken.
        (situation(held_by(NO_BROKER, problem=JUNK)), TAKE, 3),
        (situation(held_by(1), holder_session_id=11), TAKE, 3),
        (situation(held_by(7), holder_session_id=None), TAKE, 3),
        (situation(held_by(1), epoch=None), TAKE, 3),
        (situation(held_by(1), epoch=Epoch(ControllerEpoch(0), 5, JUNK)), TAKE, 3),
        (situation(held_by(1), {1}, holder_session_id=11), TAKE, 6),  # candidates first
        # A KRaft migration.
        (situation(held_by(1, owner=0)), None, 0),
        (situation(held_by(NO_BROKER, owner=0, problem=JUNK), {9}, asked_for=ME), None, 0),
    ],
)
def test_the_rule(now: Situation, action: Action | None, after_s: float) -> None:
    verdict = decide(now, POLICY)
    assert (verdict.action, verdict.after_s) == (action, after_s) if verdict else action is None


def test_what_the_switches_turn_off() -> None:
    no_fallback = POLICY._replace(fallback=False)
    assert decide(situation(None, {1}), no_fallback) is None
    assert decide(situation(None, {7}), no_fallback) is None
    assert decide(situation(None, {9}), no_fallback) is not None
    assert decide(situation(None), no_fallback) is not None  # without candidates every broker may stand
    no_healing = POLICY._replace(heal=False)
    assert decide(situation(held_by(NO_BROKER, problem=JUNK)), no_healing) is None
    assert decide(situation(held_by(1, owner=SESSION)), no_healing) is None
    assert decide(situation(held_by(9, owner=SESSION)), no_healing) is not None  # a lost answer, not an edit


class Brokers:
    """Real controllers of several brokers on one ZooKeeper; the test writes the znodes of JVM brokers."""

    def __init__(self, stack: AsyncExitStack, *candidates: int, **properties: str) -> None:
        self.tree = InMemoryTree()
        self._stack = stack
        self._properties = properties
        self._lives: dict[int, AsyncExitStack] = {}
        self.nodes: dict[int, Scenario] = {}
        self.outside = Scenario(self.tree)
        self.outside.prepare()
        self.outside.stop_broker(9)
        for candidate in candidates:
            self.prefer(candidate)

    def prefer(self, broker: int) -> None:
        self.outside.zk.put(f"/config/extension/candidates/{broker}")

    async def start(self, *brokers: int, **properties: str) -> None:
        for broker in brokers:
            session_id = broker * 1000 + len(self._lives)
            node = Scenario(
                self.tree, session_id=session_id, broker_id=str(broker), **{**self._properties, **properties}
            )
            self.outside.start_broker(broker, session_id)
            life = await self._stack.enter_async_context(AsyncExitStack())
            await life.enter_async_context(node.controller.running())
            self.nodes[broker], self._lives[broker] = node, life
            await asyncio.sleep(0.1)

    async def kill(self, broker: int) -> None:
        self.nodes[broker].zk.expire()
        await self._lives[broker].aclose()
        del self.nodes[broker]

    def jvm(self, broker: int) -> None:
        """A JVM broker registers and is elected by its own rules: it neither waits for candidates nor hands over."""
        self.outside.start_broker(broker)
        document = json.dumps({"version": 1, "brokerid": broker, "timestamp": "0"})
        self.outside.zk.put("/controller", document, owner=1000 + broker)
        self.outside.zk.put("/controller_epoch", str(self.epoch + 1))

    @property
    def epoch(self) -> int:
        return int(self.outside.zk.text("/controller_epoch"))

    @property
    def named(self) -> int | None:
        if "/controller" not in self.tree.nodes:
            return None
        return int(json.loads(self.outside.zk.text("/controller"))["brokerid"])

    @property
    def leading(self) -> list[int]:
        return [broker for broker, node in self.nodes.items() if node.controller.is_active]

    def assert_led_by(self, broker: int) -> None:
        assert (self.named, self.leading) == (broker, [broker])

    def causes(self, broker: int, event: str = "controller-elected") -> list[str]:
        return [decision.cause for decision in self.nodes[broker].sink.decisions(event)]


def played(
    *candidates: int, **properties: str
) -> Callable[[Callable[[Brokers], Coroutine[Any, Any, None]]], Callable[[], None]]:
    """Runs a test of several brokers in virtual time."""

    def decorate(play: Callable[[Brokers], Coroutine[Any, Any, None]]) -> Callable[[], None]:
        async def run() -> None:
            async with AsyncExitStack() as stack:
                await play(Brokers(stack, *candidates, **properties))

        def test() -> None:
            run_in_virtual_time(run())

        test.__name__, test.__doc__ = play.__name__, play.__doc__
        return test

    return decorate


@played(2)
async def test_candidates_run_first_and_take_over_again(brokers: Brokers) -> None:
    await brokers.start(1)
    brokers.assert_led_by(1)  # at once, because no candidate is alive
    await brokers.start(2, 3)
    await asyncio.sleep(2.5)
    brokers.assert_led_by(1)  # the candidate must be up for the settle time first
    await asyncio.sleep(1)
    brokers.assert_led_by(2)
    assert brokers.causes(2) == ["a candidate replaces broker 1, which is not one"]
    # The last candidate dies, so the others stand at once.
    await brokers.kill(2)
    await asyncio.sleep(0.1)
    assert brokers.leading in ([1], [3])
    await brokers.start(2)
    await asyncio.sleep(3.5)
    brokers.assert_led_by(2)


@played(2, 3)
async def test_two_candidates_do_not_fight(brokers: Brokers) -> None:
    await brokers.start(1, 2, 3)
    await asyncio.sleep(20)
    assert brokers.leading in ([2], [3])
    (first,) = brokers.leading
    assert brokers.epoch == 6  # broker 1, then one of the candidates, and no more
    await brokers.kill(first)
    await asyncio.sleep(0.1)
    assert brokers.leading == [5 - first]  # the other candidate, not broker 1
    await brokers.start(first)
    await asyncio.sleep(20)
    brokers.assert_led_by(5 - first)
    assert brokers.epoch == 7


@played(2)
async def test_others_stand_back_but_not_for_ever(brokers: Brokers) -> None:
    await brokers.start(2, 1)
    brokers.assert_led_by(2)
    node = brokers.nodes[2]
    node.controller._stand_again_at = 1e9  # alive, but it does not stand
    brokers.outside.zk.remove("/controller")
    await asyncio.sleep(4.9)
    assert (brokers.named, brokers.leading) == (None, [])
    await asyncio.sleep(0.2)
    brokers.assert_led_by(1)
    assert brokers.causes(1) == ["/controller stayed free although candidates [2] are alive"]


@played(2, klamm_controller_fallback="false")
async def test_without_fallback_only_candidates_lead(brokers: Brokers) -> None:
    await brokers.start(1)
    await asyncio.sleep(30)
    assert brokers.leading == []
    await brokers.start(2)
    brokers.assert_led_by(2)
    await brokers.kill(2)
    await asyncio.sleep(30)
    assert brokers.leading == []
    brokers.prefer(1)  # the operator prefers another broker
    await asyncio.sleep(0.1)
    brokers.assert_led_by(1)


@played()
async def test_candidates_may_come_later_and_be_junk(brokers: Brokers) -> None:
    await brokers.start(1, 2)
    brokers.assert_led_by(1)
    brokers.outside.zk.put("/config/extension/candidates/two")
    await asyncio.sleep(10)
    brokers.assert_led_by(1)  # a name that is not a broker id is ignored
    (skipped,) = brokers.nodes[2].sink.decisions("znode-skipped")
    assert (skipped.cause, skipped.detail) == ("/config/extension/candidates/two", "its name is not a broker id")
    brokers.prefer(2)
    await asyncio.sleep(3.5)
    brokers.assert_led_by(2)


@played(2)
async def test_a_candidate_takes_over_from_a_jvm_controller(brokers: Brokers) -> None:
    brokers.jvm(1)
    await brokers.start(2, 3)
    await asyncio.sleep(3.5)
    brokers.assert_led_by(2)
    # It dies; a JVM broker is elected before broker 3.
    brokers.nodes[3].zk.before_write = lambda: brokers.jvm(1)
    await brokers.kill(2)
    await asyncio.sleep(10)
    assert (brokers.named, brokers.leading) == (1, [])  # broker 3 is not a candidate
    await brokers.start(2)
    await asyncio.sleep(3.5)
    brokers.assert_led_by(2)


@played()
async def test_an_operator_moves_the_controller(brokers: Brokers) -> None:
    brokers.jvm(1)
    await brokers.start(2, 3)
    brokers.outside.zk.put("/config/extension/controller_move", '{"version":1,"broker":3}', owner=555)
    await asyncio.sleep(0.1)
    brokers.assert_led_by(3)
    assert brokers.causes(3) == ["asked for by an operator"]
    brokers.outside.zk.remove("/config/extension/controller_move")
    for junk in ("junk", '{"version":1,"broker":2}'):
        brokers.outside.zk.put("/config/extension/controller_move", junk, owner=555)
        await asyncio.sleep(0.1)
    brokers.assert_led_by(2)


@played(2)
async def test_who_fails_twice_leaves_it_to_others_for_a_minute(brokers: Brokers) -> None:
    await brokers.start(1)
    await brokers.start(2)
    broken = [True]
    node = brokers.nodes[2]
    new_term = node.controller._new_term

    def fails(committer: Any) -> Any:
        term = new_term(committer)
        if broken[0]:

            async def explode(cause: str) -> None:
                raise RuntimeError("a bug")

            term.fail_over = explode  # type: ignore[method-assign]
        return term

    node.controller._new_term = fails  # type: ignore[method-assign]
    await asyncio.sleep(30)
    brokers.assert_led_by(1)
    assert len(brokers.causes(2, "controller-failed")) == 2
    assert len(brokers.causes(2, "controller-unfit")) == 1
    broken[0] = False
    await asyncio.sleep(45)
    brokers.assert_led_by(2)


@pytest.mark.parametrize(
    "data", ["no json", "", "{}", '{"version":1,"brokerid":2,"timestamp":"0"}', '{"version":1,"brokerid":70}']
)
def test_a_broken_node_of_a_jvm_controller_is_replaced(data: str) -> None:
    @played()
    async def play(brokers: Brokers) -> None:
        brokers.jvm(1)
        await brokers.start(2, 3)
        brokers.outside.zk.put("/controller", data)
        await asyncio.sleep(2.5)
        assert brokers.leading == []
        await asyncio.sleep(1)
        assert len(brokers.leading) == 1
        assert brokers.named in (2, 3)
        assert brokers.epoch == 6
        (leading,) = brokers.leading
        assert len(brokers.causes(leading, "controller-healed")) == 1
        assert healed(brokers.nodes[leading].metrics) == 1

    play()


@played(klamm_controller_heal="false")
async def test_healing_can_be_turned_off(brokers: Brokers) -> None:
    await brokers.start(2, 3)
    brokers.assert_led_by(2)
    brokers.outside.zk.put("/controller", '{"version":1,"brokerid":3,"timestamp":"0"}')
    await asyncio.sleep(60)
    assert (brokers.named, brokers.leading) == (3, [])
    brokers.outside.zk.remove("/controller")
    await asyncio.sleep(0.1)
    assert len(brokers.leading) == 1


@pytest.mark.parametrize("junk", ["x", "", "-1", None])
@pytest.mark.parametrize("leader", ["klamm", "JVM"])
def test_a_broken_epoch_heals_while_somebody_leads(junk: str | None, leader: str) -> None:
    @played()
    async def play(brokers: Brokers) -> None:
        if leader == "JVM":
            brokers.jvm(1)
        await brokers.start(2, 3)
        if leader == "klamm":
            brokers.assert_led_by(2)
        if junk is None:
            brokers.outside.zk.remove("/controller_epoch")
        else:
            brokers.outside.zk.put("/controller_epoch", junk)
        await asyncio.sleep(0.1 if leader == "klamm" else 3.5)
        assert len(brokers.leading) == 1
        assert brokers.named in (2, 3)
        assert brokers.epoch > 5
        (leading,) = brokers.leading
        assert len(brokers.causes(leading, "controller-epoch-healed")) == 1
        # The fence holds: a topic is created under it.
        brokers.outside.create_topic("t", [2])
        await asyncio.sleep(0.1)
        state = json.loads(brokers.outside.zk.text("/brokers/topics/t/partitions/0/state"))
        assert (state["leader"], state["controller_epoch"]) == (2, brokers.epoch)

    play()


@played(2)
async def test_a_persistent_controller_is_left_alone(brokers: Brokers) -> None:
    brokers.outside.zk.put("/controller", '{"version":2,"brokerid":3000,"kraftControllerEpoch":1}')
    await brokers.start(1, 2)
    await asyncio.sleep(60)
    assert brokers.leading == []
    assert brokers.tree.nodes["/controller"].owner == 0
    assert brokers.epoch == 4


@played()
async def test_a_broken_registration_brings_nobody_down(brokers: Brokers) -> None:
    await brokers.start(2, 3)
    for path in ("/brokers/ids/2", "/brokers/ids/3", "/brokers/ids/x"):
        brokers.outside.zk.put(path, "junk")
    await asyncio.sleep(30)
    brokers.assert_led_by(2)
    assert brokers.epoch == 5
    assert not brokers.causes(2, "controller-failed")


def healed(metrics: MetricsRegistry) -> float:
    return metrics.value("klamm.controller", "ControllerElection", "HealedPerSec")
