"""The controller of one broker process: stands for election, leads while it is elected, resigns when it is not.

Every broker has one; most of the time it only watches. Everything it does happens on the one event queue:

- *Reconsider*, whenever something about the election changed: read /controller and /controller_epoch (see
  `controller_election`). The active controller resigns if it no longer owns /controller or its fence is broken. Any
  other broker decides which one should be controller (see `succession`), and stands, takes over, waits or does nothing.
- *Fail over*: see `term`. If this or any later event fails unexpectedly because of one znode, that znode is quarantined
  and a new term loads without it. Otherwise the controller resigns, deletes /controller (fenced), and stands again
  after 1, 2, 4 ... 30 s (design D14). The process goes on as a broker.
- *Resign*: drop the term with everything it holds. Watches that fire later find no active controller.
- *Expire*: the queue is emptied and the controller resigns before the client opens a new session; then the broker
  registers again and the controller stands again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from random import Random
from typing import Final, assert_never

from klamm.controller.context.controller_context import Counts
from klamm.controller.controller_api import ControllerCalls
from klamm.controller.election.candidacy import Candidacy
from klamm.controller.election.controller_election import NO_BROKER, ControllerElection, Epoch, Holder, Won
from klamm.controller.election.controller_watchdog import ControllerWatchdog
from klamm.controller.election.succession import Action, SuccessionDecision
from klamm.controller.event_queue import ControllerEventQueue
from klamm.controller.events import (
    BrokerChange,
    ControllerChange,
    ControllerEvent,
    ElectionEvent,
    Expire,
    Reconsider,
    Reelect,
    RegisterBrokerAndReelect,
    Startup,
    TakeOver,
)
from klamm.controller.execution.channels import Channels
from klamm.controller.execution.commit import Committer
from klamm.controller.execution.quarantine import Quarantine, describe, znode_concerned
from klamm.controller.recorder import Recorder
from klamm.controller.statistics import (
    GROUP,
    STATS,
    ControllerStatistics,
    ElectionMeters,
    register_gauges,
    remove_gauges,
)
from klamm.controller.term import Term
from klamm.controller.watched_paths import event_of
from klamm.model.config import BrokerConfig, broker_id_of
from klamm.model.errors import ConnectionLoss, ControllerMoved, SessionExpired, ZooKeeperError
from klamm.model.ids import INITIAL_CONTROLLER_EPOCH, BrokerId, ControllerEpoch
from klamm.model.ports import Clock, EventSink, Network, WatchEvent, ZooKeeper
from klamm.telemetry.metrics import MetricsRegistry
from klamm.zookeeper.retries import until_connected
from klamm.zookeeper.znodes import partition_state

log = logging.getLogger(__name__)

BACKOFF_MAX_S: Final = 30.0
SETTLED_S: Final = 2 * BACKOFF_MAX_S
"""A term that fails before this counts as failed in a row with the one before: a load that succeeds proves little, if
the first thing that follows it fails."""
REGISTRATION_RETRY_S: Final = 1.0
SILENCE_PAUSE_S: Final = 0.05
RESIGN_TIMEOUT_S: Final = 2.0


class Controller(ControllerCalls):
    def __init__(
        self,
        *,
        config: BrokerConfig,
        clock: Clock,
        network: Network,
        random: Random,
        zk: ZooKeeper,
        events: EventSink,
        metrics: MetricsRegistry,
        register_broker: Callable[[], Awaitable[None]],
    ) -> None:
        self._config = config
        self._clock = clock
        self._network = network
        self._random = random
        self._zk = zk
        self._metrics = metrics
        self._meters = ElectionMeters(metrics)
        self._register_broker = register_broker
        self._broker = broker_id_of(config)
        self._recorder = Recorder(events, clock, self._broker)
        self._queue = ControllerEventQueue(self._handle, clock, metrics)
        super().__init__(self._queue.put_nowait)
        self._election = ControllerElection(zk, clock, self._broker, self._on_watch)
        self._quarantine = Quarantine(zk, clock, self._recorder, self._broker)
        self._candidacy = Candidacy(config, clock, zk, self._recorder, self._on_watch)
        self._watchdog = ControllerWatchdog(
            config=config,
            clock=clock,
            network=network,
            zk=zk,
            recorder=self._recorder,
            enqueue=self._queue.put_nowait,
        )
        self._term: Term | None = None
        self._active_controller_id = NO_BROKER
        self._expired = False
        self._running = False
        self._failures = 0
        self._stand_again_at = 0.0
        self._elected_at = 0.0
        self._timers: set[asyncio.TimerHandle] = set()
        self._reconsider_timer: asyncio.TimerHandle | None = None

    # --- what others ask ---

    @property
    def is_active(self) -> bool:
        return self._term is not None

    @property
    def active_controller_id(self) -> BrokerId | None:
        """None while no controller is known."""
        return None if self._active_controller_id == NO_BROKER else self._active_controller_id

    @property
    def controller_epoch(self) -> ControllerEpoch:
        return INITIAL_CONTROLLER_EPOCH if self._term is None else self._term.context.controller_epoch

    def statistics(self) -> ControllerStatistics:
        term = self._term
        return ControllerStatistics(
            is_active=term is not None,
            active_controller_id=self.active_controller_id,
            controller_epoch=self.controller_epoch,
            live_brokers=tuple(sorted(term.context.brokers)) if term else (),
            shutting_down=tuple(sorted(term.context.shutting_down)) if term else (),
            queue_size=len(self._queue),
            counts=self._counts(),
            deletions=term.deletions.waiting() if term else (),
            reassignments=term.reassignments.waiting() if term else (),
            schedule=term.schedule.describe() if term else (),
            quarantined=tuple((entry.path, entry.reason) for entry in self._quarantine.entries()),
        )

    # --- life ---

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Controller]:
        register_gauges(
            self._metrics,
            is_active=lambda: self.is_active,
            state=lambda: self._queue.state,
            counts=self._counts,
            quarantined=lambda: len(self._quarantine),
        )
        self._zk.add_session_listener(self)
        try:
            async with self._queue.running():
                self._running = True
                self._queue.put_nowait(Startup())
                try:
                    yield self
                finally:
                    self._running = False
        finally:
            for timer in self._timers:
                timer.cancel()
            await self._watchdog.close()
            await self._stop()
            remove_gauges(self._metrics)

    async def _stop(self) -> None:
        """Resign and delete /controller: the session may outlive the controller, and a node whose owner does not act is
        worse than none. The time is limited, so that a stop does not hang when ZooKeeper is gone."""
        term = self._term
        await self._resign("stopped")
        if term is not None and self._may_act():
            try:
                async with asyncio.timeout(RESIGN_TIMEOUT_S):
                    await self._election.resign(term.committer.fence)
            except TimeoutError:
                log.warning("/controller could not be deleted within %.0f s", RESIGN_TIMEOUT_S)

    async def before_new_session(self) -> None:
        self._expired = True
        if not self._running:
            return
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.clear_and_put(Expire(done))
        await done

    async def after_new_session(self) -> None:
        self._expired = False
        if self._running:
            self._queue.put_nowait(RegisterBrokerAndReelect())

    async def on_auth_failure(self) -> None:
        self._recorder.decision("zookeeper-auth-failure", "ZooKeeper refused our credentials")

    # --- the queue's handler ---

    async def _handle(self, event: ControllerEvent) -> None:
        """Each error leads to a retry, an answer or a resignation (design D14)."""
        try:
            await until_connected(lambda: self._dispatch(event))  # may be repeated, because every handler reads first
        except SessionExpired:
            event.preempt()  # Expire follows, and also ends a term that is half loaded
        except ControllerMoved as moved:
            event.preempt()
            await self._resign(str(moved))
            self._queue.put_nowait(Reconsider())
        except Exception as error:
            log.exception("handling %r failed", event)
            event.preempt()
            if not await self._isolate(event, error):
                await self._fail(event, error)

    async def _dispatch(self, event: ControllerEvent) -> None:
        if isinstance(event, ElectionEvent):
            await self._handle_election(event)
        elif self._term is not None:
            await self._term.handle(event)
        else:
            event.preempt()
            if isinstance(event, BrokerChange):
                await self._reconsider()  # a candidate started or stopped

    async def _handle_election(self, event: ElectionEvent) -> None:
        match event:
            case Startup() | ControllerChange() | Reelect() | Reconsider():
                await self._reconsider()
            case TakeOver(czxid, cause):
                await self._on_take_over(czxid, cause)
            case RegisterBrokerAndReelect():
                await self._register_again()
            case Expire():
                await self._resign("ZooKeeper session expired")
                event.answer(None)
            case _:
                assert_never(event)

    # --- the election ---

    async def _reconsider(self) -> None:
        holder, epoch = await until_connected(self._read_election)
        if self._term is not None:
            reason = self._reason_to_resign(self._term, holder, epoch)
            if reason is None:
                return
            await self._resign(reason)
        decision, due = await until_connected(lambda: self._candidacy.decide(holder, epoch))
        now = self._clock.monotonic()
        if now < self._stand_again_at:
            decision, due = None, max(due or 0.0, self._stand_again_at)
        self._reconsider_at(due)
        if decision is not None:
            await self._act(decision)

    def _reason_to_resign(self, term: Term, holder: Holder | None, epoch: Epoch | None) -> str | None:
        """Why this term must end: an edited node makes the brokers follow another controller, and behind a broken fence
        this one can write nothing."""
        if holder is None or not self._election.is_ours(holder):
            return f"/controller names {self._active_controller_id}"
        if holder.broker != self._broker:
            return f"/controller was edited: {holder.problem or f'it names {holder.broker}'}"
        if epoch is None or epoch.zk_version != term.committer.fence.version:
            return f"/controller_epoch was {'deleted' if epoch is None else 'edited'}"
        return None

    async def _act(self, decision: SuccessionDecision) -> None:
        self._candidacy.forget()
        if decision.action is Action.STAND:
            won = await self._election.stand()
        else:
            won = await self._take_over(decision.czxid, decision.cause)
        if won is None:
            return  # another broker won, and our watch on /controller has fired
        if decision.healing:
            self._meters.healed.mark()
            self._recorder.decision("controller-healed", decision.cause)
        await self._lead(won, decision.cause)

    async def _on_take_over(self, czxid: int, cause: str) -> None:
        if self._term is not None or self._clock.monotonic() < self._stand_again_at:
            return
        if not await until_connected(self._candidacy.may_lead):
            return
        won = await self._take_over(czxid, cause)
        if won is not None:
            await self._lead(won, cause)

    async def _take_over(self, czxid: int, cause: str) -> Won | None:
        former = self._active_controller_id
        won = await self._election.take_over(czxid)
        if won is not None:
            self._meters.moved.mark()
            self._recorder.decision("controller-moved", cause, detail=f"from broker {former} to broker {self._broker}")
        return won

    async def _lead(self, won: Won, cause: str) -> None:
        self._recorder.begin_term(won.epoch)
        if won.healed is not None:
            self._meters.healed.mark()
            self._recorder.decision("controller-epoch-healed", str(won.healed), detail=f"epoch {won.epoch}")
        self._recorder.decision("controller-elected", cause)
        self._term = term = self._new_term(won)
        self._elected_at = self._clock.monotonic()
        self._active_controller_id = self._broker
        try:
            await self._quarantine.load(term.committer)
            await term.fail_over(cause)
        except ConnectionLoss as lost:
            # A partial load is useless. /controller is still ours; standing again replaces it, with a new epoch.
            await self._resign(f"connection lost during fail-over: {lost}")
            self._queue.put_nowait(Reconsider())

    async def _read_election(self) -> tuple[Holder | None, Epoch | None]:
        """Also sets the watches, and remembers which broker is controller."""
        holder, epoch = await self._election.read()
        self._active_controller_id = NO_BROKER if holder is None else holder.broker
        if self._running:
            self._watchdog.watch(self._active_controller_id, 0 if holder is None else holder.czxid)
        if holder is not None and holder.problem is not None:
            self._recorder.znode_skipped(holder.problem)
        return holder, epoch

    def _new_term(self, won: Won) -> Term:
        channels = Channels(
            config=self._config,
            clock=self._clock,
            network=self._network,
            metrics=self._metrics,
            enqueue=self._queue.put_nowait,
            may_act=self._may_act,
            on_crash=self._on_channel_crash,
            earlier_evidence=self._watchdog.evidence_against,
        )
        return Term(
            controller_epoch=won.epoch,
            config=self._config,
            clock=self._clock,
            zk=self._zk,
            committer=Committer(self._zk, won.zk_version),
            channels=channels,
            recorder=self._recorder,
            watch=self._on_watch,
            enqueue=self._queue.put_nowait,
            wait_until_may_act=self._wait_until_may_act,
            unclean_elections=self._metrics.meter(GROUP, STATS, "UncleanLeaderElectionsPerSec"),
            quarantine=self._quarantine,
        )

    # --- the end of a term ---

    async def _resign(self, cause: str) -> None:
        term, self._term = self._term, None
        if term is None:
            return
        await term.close()
        self._recorder.decision("controller-resigned", cause)
        self._recorder.begin_term(INITIAL_CONTROLLER_EPOCH)
        if self._active_controller_id == self._broker:
            self._active_controller_id = NO_BROKER
        partition_state.clear_caches()

    async def _isolate(self, event: ControllerEvent, error: Exception) -> bool:
        """If an unexpected failure concerns one znode, start a new term without this znode."""
        term, path = self._term, znode_concerned(event, error)
        if term is None or path is None or not await self._quarantine.add(path, error, term.committer):
            return False
        await self._resign(f"{path} is quarantined: {describe(error)}")
        self._queue.put_nowait(Reconsider())
        return True

    async def _fail(self, event: ControllerEvent, error: Exception) -> None:
        """After any other unexpected failure: delete /controller, so that another broker can try, and stand again
        later."""
        now = self._clock.monotonic()
        if self._term is not None and now - self._elected_at >= SETTLED_S:
            self._failures = 0  # the term had lived for a while: this failure has nothing to do with earlier ones
        self._failures += 1
        pause = min(BACKOFF_MAX_S, 2.0 ** (self._failures - 1))
        # Add a random time, so that two controllers that fail alike do not retry in lockstep.
        self._stand_again_at = now + pause * (1 + self._random.random() / 10)
        self._recorder.decision("controller-failed", repr(event), detail=describe(error))
        term = self._term
        await self._resign(describe(error))
        if term is not None:
            await self._election.resign(term.committer.fence)
        self._candidacy.failed(self._failures)
        self._queue.put_nowait(Reconsider())

    # --- helpers ---

    async def _register_again(self) -> None:
        try:
            await self._register_broker()
        except (SessionExpired, ConnectionLoss):
            raise
        except (ZooKeeperError, OSError) as error:
            # Never give up: a broker that stays unregistered is invisible.
            log.error("registration failed, trying again in %.0f s: %s", REGISTRATION_RETRY_S, error)
            self._later(REGISTRATION_RETRY_S, RegisterBrokerAndReelect())
            return
        await self._reconsider()

    def _on_watch(self, watched: WatchEvent) -> None:
        event = event_of(watched)
        if event is not None and self._running:
            self._queue.put_nowait(event)

    def _on_channel_crash(self, broker: BrokerId, error: BaseException) -> None:
        self._meters.channel_failures.mark()
        self._recorder.crashed(f"channel to broker {broker}", error)

    def _reconsider_at(self, due: float | None) -> None:
        """There is only one such timer; a later call replaces it."""
        if self._reconsider_timer is not None:
            self._reconsider_timer.cancel()
            self._timers.discard(self._reconsider_timer)
            self._reconsider_timer = None
        if due is not None:
            self._reconsider_timer = self._later(due - self._clock.monotonic(), Reconsider())

    def _later(self, delay_s: float, event: ControllerEvent) -> asyncio.TimerHandle:
        def put() -> None:
            self._timers.discard(timer)
            if self._running:
                self._queue.put_nowait(event)

        timer = asyncio.get_running_loop().call_later(delay_s, put)
        self._timers.add(timer)
        return timer

    def _may_act(self) -> bool:
        """False after two thirds of the session timeout without an answer from ZooKeeper: in the last third another
        controller may be elected."""
        return not self._expired and self._zk.silence() * 1000 <= self._zk.session_timeout_ms * 2 / 3

    async def _wait_until_may_act(self) -> None:
        while not self._may_act():
            if self._expired:
                raise SessionExpired(detail="noticed between two steps")
            await asyncio.sleep(SILENCE_PAUSE_S)

    def _counts(self) -> Counts:
        return Counts() if self._term is None else self._term.context.counts()
