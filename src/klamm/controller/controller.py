"""The controller of one broker process: stands for election, leads while it is elected, resigns when it is not.

Every broker has one; most of the time it only watches. Rules of its life, all on the one event queue:

- *Reconsider*, whenever anything about the office changed: look at it (`office`); resign if it is no longer ours or its
  fence is broken; without it, judge who shall hold it (`succession`) and stand, take over, wait or leave it.
- *Fail over*: see `term`. Any failure in it, and any unexpected exception later (design D14): if it is about one znode,
  that one is quarantined and we load anew without it; else resign, delete /controller fenced, and stand again after 1,
  2, 4 ... 30 s. The process lives on as a broker.
- *Resign*: drop the term with all it holds. Watches that still fire find nobody active.
- *Expiry*: the queue is emptied and the resignation done before the client opens a new session; then the broker
  registers again and stands again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from random import Random
from typing import Final

from klamm.controller.context.controller_context import Counts
from klamm.controller.controller_api import Calls
from klamm.controller.election.candidacy import Candidacy
from klamm.controller.election.controller_election import NOBODY, Epoch, Holder, Office, Won
from klamm.controller.election.controller_watchdog import Vigil
from klamm.controller.election.succession import Action, Verdict
from klamm.controller.event_queue import ControllerEventQueue
from klamm.controller.events import (
    BrokerChange,
    ControllerChange,
    ControllerEvent,
    Crashed,
    Expire,
    Reconsider,
    Reelect,
    RegisterBrokerAndReelect,
    Startup,
    TakeOver,
)
from klamm.controller.execution.channels import Channels
from klamm.controller.execution.commit import Committer
from klamm.controller.execution.quarantine import Quarantine, offender
from klamm.controller.recorder import Recorder
from klamm.controller.statistics import (
    GROUP,
    STATS,
    ControllerStatistics,
    OfficeMeters,
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
from klamm.zookeeper.retries import RECONNECT_PAUSE_S, until_connected
from klamm.zookeeper.znodes import partition_state

log = logging.getLogger(__name__)

BACKOFF_MAX_S: Final = 30.0
REGISTRATION_RETRY_S: Final = 1.0
SILENCE_PAUSE_S: Final = 0.05
GIVE_BACK_TIMEOUT_S: Final = 2.0


class Controller(Calls):
    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        random: Random,
        zk: ZooKeeper,
        network: Network,
        events_sink: EventSink,
        metrics: MetricsRegistry,
        register_broker: Callable[[], Awaitable[None]],
    ) -> None:
        self._config = config
        self._clock = clock
        self._random = random
        self._zk = zk
        self._network = network
        self._metrics = metrics
        self._meters = OfficeMeters(metrics)
        self._register_broker = register_broker
        self._broker = broker_id_of(config)
        self._recorder = Recorder(events_sink, clock, self._broker)
        self._queue = ControllerEventQueue(self._handle, clock, metrics)
        super().__init__(self._queue.put_nowait)
        self._office = Office(zk, clock, self._broker, self._on_watch)
        self._quarantine = Quarantine(zk, clock, self._recorder, self._broker)
        self._candidacy = Candidacy(config, clock, zk, self._recorder, self._on_watch)
        self._vigil = Vigil(
            config, clock, network, zk, self._recorder, enqueue=self._queue.put_nowait, on_crash=self._on_crash
        )
        self._term: Term | None = None
        self._active_controller_id = NOBODY
        self._expired = False
        self._running = False
        self._failures = 0
        self._stand_again_at = 0.0
        self._timers: set[asyncio.TimerHandle] = set()
        self._wake: asyncio.TimerHandle | None = None

    # --- what others ask ---

    @property
    def is_active(self) -> bool:
        return self._term is not None

    @property
    def active_controller_id(self) -> BrokerId:
        return self._active_controller_id

    @property
    def controller_epoch(self) -> ControllerEpoch:
        return INITIAL_CONTROLLER_EPOCH if self._term is None else self._term.epoch

    def statistics(self) -> ControllerStatistics:
        term = self._term
        return ControllerStatistics(
            term is not None,
            self._active_controller_id,
            self.controller_epoch,
            tuple(sorted(term.context.brokers)) if term else (),
            tuple(sorted(term.context.shutting_down)) if term else (),
            len(self._queue),
            self._counts(),
            term.deletions() if term else (),
            term.reassignments.waiting() if term else (),
            term.schedule.describe() if term else (),
            tuple((entry.path, entry.reason) for entry in self._quarantine.entries()),
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
            await self._vigil.close()
            await self._stop()
            remove_gauges(self._metrics)

    async def _stop(self) -> None:
        """Resign and give the office back: the session may outlive us, and a node whose owner does not act is worse
        than none. Not at any price: a stop must not hang on a ZooKeeper that is gone."""
        term = self._term
        await self._resign("stopped")
        if term is not None and self._may_act():
            try:
                async with asyncio.timeout(GIVE_BACK_TIMEOUT_S):
                    await self._office.give_back(term.committer.fence)
            except TimeoutError:
                log.warning("/controller was not given back in %.0f s", GIVE_BACK_TIMEOUT_S)

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
        """What an error means: retried, answered, or resign (design D14). The second of two outermost loops."""
        while True:
            try:
                await self._dispatch(event)
                return
            except ConnectionLoss:
                await asyncio.sleep(RECONNECT_PAUSE_S)  # everything an event does may be done again: it reads first
            except SessionExpired:
                event.preempt()
                return  # Expire follows, and ends a term that is half loaded too
            except ControllerMoved as moved:
                event.preempt()
                await self._resign(str(moved))
                self._queue.put_nowait(Reconsider())
                return
            except Exception as error:
                log.exception("%r failed", event)
                event.preempt()
                if not await self._isolate(event, error):
                    await self._fail(event, error)
                return

    async def _dispatch(self, event: ControllerEvent) -> None:
        match event:
            case Startup() | ControllerChange() | Reelect() | Reconsider():
                await self._reconsider()
            case TakeOver(czxid, cause):
                await self._on_take_over(czxid, cause)
            case RegisterBrokerAndReelect():
                await self._register_again()
            case Expire(done):
                await self._resign("ZooKeeper session expired")
                if not done.done():
                    done.set_result(None)
            case Crashed(error):
                raise error
            case _:
                if self._term is not None:
                    await self._term.handle(event)
                    return
                event.preempt()
                if isinstance(event, BrokerChange):
                    await self._reconsider()  # a candidate came or went

    # --- the office ---

    async def _reconsider(self) -> None:
        holder, epoch = await until_connected(self._look)
        if self._term is not None:
            trouble = self._trouble(self._term, holder, epoch)
            if trouble is None:
                return
            await self._resign(trouble)
        verdict, due = await until_connected(lambda: self._candidacy.judge(holder, epoch))
        now = self._clock.monotonic()
        if now < self._stand_again_at:
            verdict, due = None, max(due or 0.0, self._stand_again_at)
        self._wake_at(due)
        if verdict is not None:
            await self._act(verdict)

    def _trouble(self, term: Term, holder: Holder | None, epoch: Epoch | None) -> str | None:
        """Why we are controller no longer, or nobody's: an edited node makes everybody else follow somebody else, and
        behind a broken fence nothing of ours is written."""
        if holder is None or not self._office.is_ours(holder):
            return f"/controller names {self._active_controller_id}"
        if holder.broker != self._broker:
            return f"/controller was edited: {holder.problem or f'it names {holder.broker}'}"
        if epoch is None or epoch.zk_version != term.committer.fence.version:
            return f"/controller_epoch was {'deleted' if epoch is None else 'edited'}"
        return None

    async def _act(self, verdict: Verdict) -> None:
        self._candidacy.forget()
        if verdict.action is Action.STAND:
            won = await self._office.stand()
        else:
            won = await self._take_over(verdict.czxid, verdict.cause)
        if won is None:
            return  # somebody was faster, and our watch on the office tells of it
        if verdict.healing:
            self._meters.healed.mark()
            self._recorder.decision("controller-healed", verdict.cause)
        await self._lead(won, verdict.cause)

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
        won = await self._office.take_over(czxid)
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
        self._term = term = self._new_term(Committer(self._zk, won.epoch, won.zk_version))
        self._active_controller_id = self._broker
        try:
            await self._quarantine.load(term.committer)
            await term.fail_over(cause)
        except ConnectionLoss as lost:
            # Half a load is none. The node is ours still; standing again replaces it, with a new epoch.
            await self._resign(f"connection lost during fail-over: {lost}")
            self._queue.put_nowait(Reconsider())
            return
        self._failures = 0

    async def _look(self) -> tuple[Holder | None, Epoch | None]:
        """At the office, which watches it; remember who leads."""
        holder, epoch = await self._office.look()
        self._active_controller_id = NOBODY if holder is None else holder.broker
        if self._running:
            self._vigil.keep(self._active_controller_id, 0 if holder is None else holder.czxid)
        if holder is not None and holder.problem is not None:
            self._recorder.znode_skipped(holder.problem)
        return holder, epoch

    def _new_term(self, committer: Committer) -> Term:
        channels = Channels(
            self._config,
            self._clock,
            self._network,
            self._metrics,
            enqueue=self._queue.put_nowait,
            may_act=self._may_act,
            on_crash=self._on_crash,
            testimony=self._vigil.testimony,
        )
        return Term(
            config=self._config,
            clock=self._clock,
            zk=self._zk,
            committer=committer,
            channels=channels,
            recorder=self._recorder,
            watch=self._on_watch,
            enqueue=self._queue.put_nowait,
            wait_until_heard=self._wait_until_heard,
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
            self._active_controller_id = NOBODY
        partition_state.clear_caches()

    async def _isolate(self, event: ControllerEvent, error: Exception) -> bool:
        """Unexpected, but about one znode: without it we go on, under a new epoch. Nobody else need fail of it."""
        term = self._term
        path = None if term is None else offender(event, error, term.context)
        if term is None or path is None or not await self._quarantine.add(path, error, term.committer):
            return False
        await self._resign(f"{path} is quarantined: {type(error).__name__}: {error}")
        self._queue.put_nowait(Reconsider())
        return True

    async def _fail(self, event: ControllerEvent, error: Exception) -> None:
        """Unexpected: give the office back, so that somebody else can try, and stand again later."""
        self._failures += 1
        pause = min(BACKOFF_MAX_S, 2.0 ** (self._failures - 1))
        # A little later than the others' watches, so that two that fail alike do not take turns in step.
        self._stand_again_at = self._clock.monotonic() + pause * (1 + self._random.random() / 10)
        self._recorder.decision("controller-failed", repr(event), detail=f"{type(error).__name__}: {error}")
        term = self._term
        await self._resign(f"{type(error).__name__}: {error}")
        if term is not None:
            await self._office.give_back(term.committer.fence)
        self._candidacy.failed(self._failures)
        self._queue.put_nowait(Reconsider())

    # --- small things ---

    async def _register_again(self) -> None:
        try:
            await self._register_broker()
        except (SessionExpired, ConnectionLoss):
            raise
        except (ZooKeeperError, OSError) as error:
            # A broker that stays unregistered is invisible: never give up (controller.md 12.3).
            log.error("registration failed, trying again in %.0f s: %s", REGISTRATION_RETRY_S, error)
            self._later(REGISTRATION_RETRY_S, RegisterBrokerAndReelect())
            return
        await self._reconsider()

    def _on_watch(self, watched: WatchEvent) -> None:
        event = event_of(watched)
        if event is not None and self._running:
            self._queue.put_nowait(event)

    def _on_crash(self, error: BaseException) -> None:
        self._queue.put_nowait(Crashed(error))

    def _wake_at(self, due: float | None) -> None:
        """Judge again then: the one timer of the succession."""
        if self._wake is not None:
            self._wake.cancel()
            self._timers.discard(self._wake)
        self._wake = None if due is None else self._later(due - self._clock.monotonic(), Reconsider())

    def _later(self, delay_s: float, event: ControllerEvent) -> asyncio.TimerHandle:
        def put() -> None:
            self._timers.discard(timer)
            if self._running:
                self._queue.put_nowait(event)

        timer = asyncio.get_running_loop().call_later(delay_s, put)
        self._timers.add(timer)
        return timer

    def _may_act(self) -> bool:
        """Two thirds of the session without a word from ZooKeeper: in the last third somebody else may be elected."""
        return not self._expired and self._zk.silence() * 1000 <= self._zk.session_timeout_ms * 2 / 3

    async def _wait_until_heard(self) -> None:
        while not self._may_act():
            if self._expired:
                raise SessionExpired(detail="noticed between two steps")
            await asyncio.sleep(SILENCE_PAUSE_S)

    def _counts(self) -> Counts:
        return Counts() if self._term is None else self._term.context.counts()
