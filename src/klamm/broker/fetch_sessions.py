"""Fetch sessions (KIP-227): what a client fetches is remembered, so that requests and answers carry only what changed.

A session has an id and an epoch, which grows with every request. A request of an unknown session or with another epoch
is refused as a whole, and the client starts again with a full fetch. The cache has a limited number of slots. When it
is full, a new session replaces one that has been idle for two minutes; a follower's replaces any consumer's; a
consumer's replaces an old and smaller one. Otherwise the fetch is served without a session, which costs only bytes. The
same is true of a consumer that asks for more partitions than a session may have.

No session belongs to a connection: the client that knows its id and epoch continues it. Partitions of a follower's
session rest while nothing changes (`resting_partitions`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Generator, Sequence
from random import Random
from typing import Final, NamedTuple

from klamm.broker.resting_partitions import RestingPartitions
from klamm.model.errors import ErrorCode
from klamm.model.ids import BrokerId, TopicPartition
from klamm.model.ports import Clock
from klamm.wire.fetch import ENTRIES_PER_SLICE, FetchPartition, FetchRequest, FetchResult
from klamm.wire.slices import finish

NO_SESSION: Final = 0
FINAL_EPOCH: Final = -1
"""A full fetch that closes its session and opens none."""
FIRST_EPOCH: Final = 0
"""A full fetch that opens a session."""
EPOCH_MAX: Final = 2**31 - 1
IDLE_SECONDS: Final = 120.0
PARTITIONS_PER_SLOT: Final = 200
"""Bounds the memory of all sessions together; those of followers do not count."""
CONSUMED_MAX: Final = 20_000
"""Partitions of one consumer's session: opening, changing and freeing it takes less than 30 ms."""
UNKNOWN: Final = -1


class SessionAnswer(NamedTuple):
    session_id: int
    results: Sequence[FetchResult] = ()
    error: ErrorCode = ErrorCode.NONE


class FetchContext(ABC):
    """One request: what to fetch, and what its answer carries."""

    partitions: Sequence[FetchPartition] = ()
    resting: RestingPartitions | None = None
    """Partitions of the session that are not among `partitions`."""

    def answer(self, results: Sequence[FetchResult]) -> SessionAnswer:
        return finish(self.answering(results))

    @abstractmethod
    def answering(self, results: Sequence[FetchResult]) -> Generator[None, None, SessionAnswer]:
        """The answer to a wide fetch. Yields after each slice."""

    @abstractmethod
    def throttled(self) -> SessionAnswer:
        """The answer without data for a client above its quota."""


class Refused(FetchContext):
    """The session is unknown, or the epoch is not the expected one."""

    def __init__(self, error: ErrorCode) -> None:
        self.error = error

    def answering(self, results: Sequence[FetchResult]) -> Generator[None, None, SessionAnswer]:
        yield from ()
        return self.throttled()

    def throttled(self) -> SessionAnswer:
        return SessionAnswer(NO_SESSION, (), self.error)


class Sessionless(FetchContext):
    def __init__(self, partitions: Sequence[FetchPartition]) -> None:
        self.partitions = partitions

    def answering(self, results: Sequence[FetchResult]) -> Generator[None, None, SessionAnswer]:
        yield from ()
        return SessionAnswer(NO_SESSION, results)

    def throttled(self) -> SessionAnswer:
        return SessionAnswer(NO_SESSION)


class FullFetch(Sessionless):
    """Opens a session with its answer, if there is room."""

    def __init__(self, partitions: Sequence[FetchPartition], sessions: FetchSessions, replica_id: int) -> None:
        super().__init__(partitions)
        self._sessions = sessions
        self._replica_id = replica_id

    def answering(self, results: Sequence[FetchResult]) -> Generator[None, None, SessionAnswer]:
        session_id = yield from self._sessions.creating(self.partitions, results, self._replica_id)
        return SessionAnswer(session_id, results)


class _Cached:
    """A partition of a session, and what its client knows of it."""

    __slots__ = ("entry", "high_watermark", "log_start_offset")

    def __init__(self, entry: FetchPartition) -> None:
        self.entry = entry
        self.high_watermark = UNKNOWN
        self.log_start_offset = UNKNOWN

    def has_news(self, result: FetchResult) -> bool:
        """Whether the answer must name the partition; remembers what the client then knows. After an error the client
        hears of the partition again when it is mended."""
        changed = (result.high_watermark, result.log_start_offset) != (self.high_watermark, self.log_start_offset)
        failed = result.error is not ErrorCode.NONE
        self.high_watermark = UNKNOWN if failed else result.high_watermark
        self.log_start_offset = result.log_start_offset
        return changed or failed or len(result.records) > 0 or result.preferred_read_replica != UNKNOWN


class FetchSession:
    __slots__ = ("active", "created", "epoch", "from_follower", "id", "last_used", "partitions", "resting")

    def __init__(
        self, session_id: int, from_follower: bool, now: float, resting: RestingPartitions | None = None
    ) -> None:
        self.id = session_id
        self.epoch = 1
        """What the next request must carry."""
        self.from_follower = from_follower
        self.created = self.last_used = now
        self.partitions: OrderedDict[TopicPartition, _Cached] = OrderedDict()
        self.resting = resting
        self.active = self.partitions if resting is None else OrderedDict[TopicPartition, _Cached]()
        """What the next fetch reads, in this order: all that does not rest."""

    def update(self, changed: Sequence[FetchPartition], forgotten: Sequence[TopicPartition]) -> None:
        for entry in changed:
            known = self.partitions.get(entry.partition)
            if known is None:
                self.active[entry.partition] = self.partitions[entry.partition] = _Cached(entry)
            else:
                known.entry = entry
                if self.resting is not None:
                    self.resting.wake(entry.partition)
        for name in forgotten:
            if self.resting is not None:
                self.resting.wake(name)
            self.partitions.pop(name, None)
            self.active.pop(name, None)
        if self.resting is not None:
            for name in self.resting.begin_round():
                if name in self.partitions and name not in self.resting:
                    self.active[name] = self.partitions[name]

    def settle(self, cached: _Cached, result: FetchResult) -> bool:
        """Whether the answer must name the partition. If it got records, it goes to the end of the order, so that the
        others have their turn (KAFKA-12330); if there is nothing to say, it may rest."""
        name = result.partition
        self.active.setdefault(name, cached)  # it may have woken during the wait
        has_news = cached.has_news(result)
        if has_news and len(result.records):
            self.active.move_to_end(name)
        told = cached.high_watermark, cached.log_start_offset
        if not has_news and self.resting is not None and self.resting.rest(cached.entry, *told):
            del self.active[name]
        return has_news

    def close(self) -> None:
        if self.resting is not None:
            self.resting.close()


class IncrementalFetch(FetchContext):
    def __init__(self, session: FetchSession, sessions: FetchSessions) -> None:
        self._session = session
        self._sessions = sessions
        self._epoch = session.epoch
        """What the request after this one must carry."""
        self.partitions = [cached.entry for cached in session.active.values()]
        self.resting = session.resting

    def answering(self, results: Sequence[FetchResult]) -> Generator[None, None, SessionAnswer]:
        """Names the partitions with news."""
        session = self._session
        told: list[FetchResult] = []
        for start in range(0, max(len(results), 1), ENTRIES_PER_SLICE):
            if start:
                yield
            if session.epoch != self._epoch:  # another request continued the session meanwhile
                if told:  # the other does not know that these are not news any more
                    self._sessions.remove(session.id)
                return SessionAnswer(session.id, (), ErrorCode.INVALID_FETCH_SESSION_EPOCH)
            for result in results[start : start + ENTRIES_PER_SLICE]:
                cached = session.partitions.get(result.partition)
                if cached is not None and session.settle(cached, result):
                    told.append(result)
        return SessionAnswer(session.id, told)

    def throttled(self) -> SessionAnswer:
        return SessionAnswer(self._session.id)


class FetchSessions:
    """The cache. Sessions are kept in the order of their last use."""

    def __init__(
        self,
        slots: int,
        clock: Clock,
        random: Random,
        resting: Callable[[BrokerId], RestingPartitions | None] = lambda _: None,
    ) -> None:
        """`resting` makes the place for the resting partitions of a follower. By default none rest."""
        self._slots = slots
        self._resting = resting
        self._clock = clock
        self._random = random
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()
        self.evictions = 0

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def partition_count(self) -> int:
        return sum(len(session.partitions) for session in self._sessions.values())

    def open(self, request: FetchRequest) -> FetchContext:
        return finish(self.opening(request))

    def opening(self, request: FetchRequest) -> Generator[None, None, FetchContext]:
        """Yields after each slice of a wide request."""
        if request.session_epoch in (FINAL_EPOCH, FIRST_EPOCH):
            self.remove(request.session_id)
            if request.session_epoch == FINAL_EPOCH or not self._slots:
                return Sessionless(request.partitions)
            return FullFetch(request.partitions, self, request.replica_id)
        return (yield from self._continuing(request))

    def _continuing(self, request: FetchRequest) -> Generator[None, None, FetchContext]:
        session = self._sessions.get(request.session_id)
        if session is None:
            return Refused(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if request.session_epoch != session.epoch:
            return Refused(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        changed, forgotten = request.partitions, request.forgotten
        too_many = len(session.partitions) + len(changed) > CONSUMED_MAX and not session.from_follower
        if too_many or len(forgotten) > len(session.partitions):
            self.remove(session.id)
            return Refused(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        session.epoch = 1 if session.epoch == EPOCH_MAX else session.epoch + 1
        session.last_used = self._clock.monotonic()
        self._sessions.move_to_end(session.id)
        for start in range(0, max(len(changed), len(forgotten), 1), ENTRIES_PER_SLICE):
            if start:
                yield
            end = start + ENTRIES_PER_SLICE
            session.update(changed[start:end], forgotten[start:end])
        if not session.partitions:
            self.remove(session.id)
            return Sessionless(())
        return IncrementalFetch(session, self)

    def remove(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            session.close()

    def creating(
        self, asked: Sequence[FetchPartition], results: Sequence[FetchResult], replica_id: int
    ) -> Generator[None, None, int]:
        """The id of a new session for these partitions and answers, or NO_SESSION. Yields after each slice."""
        now, from_follower = self._clock.monotonic(), replica_id >= 0
        if not asked or not self._make_room(len(asked), from_follower, now):
            return NO_SESSION
        resting = self._resting(BrokerId(replica_id)) if from_follower else None
        session = FetchSession(self._new_id(), from_follower, now, resting)
        self._sessions[session.id] = session
        for start in range(0, len(asked), ENTRIES_PER_SLICE):
            if start:
                yield
            session.update(asked[start : start + ENTRIES_PER_SLICE], ())
        for number, result in enumerate(results, 1):
            if result.partition in session.partitions:
                session.partitions[result.partition].has_news(result)
            if number % ENTRIES_PER_SLICE == 0:
                yield
        return session.id if session.id in self._sessions else NO_SESSION

    def _make_room(self, size: int, from_follower: bool, now: float) -> bool:
        limit = min(CONSUMED_MAX, self._slots * PARTITIONS_PER_SLOT - self._consumed())
        if not from_follower and size > limit:
            return False
        if len(self._sessions) < self._slots:
            return True
        evicted = self._evictable(size, from_follower, now)
        if evicted is None:
            return False
        self.remove(evicted.id)
        self.evictions += 1
        return True

    def _consumed(self) -> int:
        return sum(len(session.partitions) for session in self._sessions.values() if not session.from_follower)

    def _evictable(self, size: int, from_follower: bool, now: float) -> FetchSession | None:
        oldest = next(iter(self._sessions.values()))
        if now - oldest.last_used > IDLE_SECONDS:
            return oldest
        candidates = [
            session
            for session in self._sessions.values()
            if now - session.created > IDLE_SECONDS or (from_follower and not session.from_follower)
        ]
        first = min(candidates, key=_worth, default=None)
        return first if first is not None and _worth(first) < (from_follower, size) else None

    def _new_id(self) -> int:
        while True:
            session_id = self._random.randrange(1, EPOCH_MAX)
            if session_id not in self._sessions:
                return session_id


def _worth(session: FetchSession) -> tuple[bool, int]:
    """Consumers' sessions go before followers', small ones before large ones."""
    return session.from_follower, len(session.partitions)
