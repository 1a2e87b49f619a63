"""Sessions: their ids, their passwords and when they expire.

A session expires when no request has come for its timeout, rounded up to whole ticks. Sessions are kept in one bucket
per tick, and a request moves its session only to a later bucket. The caller passes times, in milliseconds of a
monotonic clock. Passwords are random, unlike ZooKeeper's, which follow from the session id: a client that knows the
owner of an ephemeral node cannot take over its session.
"""

from __future__ import annotations

import random
from typing import Generic, TypeVar

from klamm.zookeeper.jute import PASSWORD_BYTES

C = TypeVar("C")


class ServerSession(Generic[C]):
    __slots__ = ("connection", "expires_ms", "id", "password", "timeout_ms")

    def __init__(self, session_id: int, password: bytes, timeout_ms: int) -> None:
        self.id = session_id
        self.password = password
        self.timeout_ms = timeout_ms
        self.expires_ms = 0
        self.connection: C | None = None


class SessionTable(Generic[C]):
    def __init__(
        self, *, tick_ms: int, timeout_ms_min: int, timeout_ms_max: int, random: random.Random, server_id: int = 1
    ) -> None:
        self.tick_ms = tick_ms
        self.timeout_ms_min = timeout_ms_min
        self.timeout_ms_max = timeout_ms_max
        self._random = random
        self._server_id = server_id
        self._last_id = 0
        self._sessions: dict[int, ServerSession[C]] = {}
        self._buckets: dict[int, dict[int, None]] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def all(self) -> list[ServerSession[C]]:
        return list(self._sessions.values())

    def get(self, session_id: int) -> ServerSession[C] | None:
        return self._sessions.get(session_id)

    def clamp(self, timeout_ms: int) -> int:
        return min(max(timeout_ms, self.timeout_ms_min), self.timeout_ms_max)

    def new_id(self, wall_ms: int) -> int:
        """Made of server id, time of day and a counter, so it differs from all earlier ids, even across restarts."""
        first = (self._server_id << 56) | ((wall_ms & 0xFF_FFFF_FFFF) << 16)
        self._last_id = max(first, self._last_id + 1)
        return self._last_id

    def new_password(self) -> bytes:
        return self._random.randbytes(PASSWORD_BYTES)

    def add(self, session_id: int, password: bytes, timeout_ms: int, now_ms: int) -> ServerSession[C]:
        session: ServerSession[C] = ServerSession(session_id, password, timeout_ms)
        self._sessions[session_id] = session
        self._last_id = max(self._last_id, session_id)
        self.touch(session, now_ms)
        return session

    def remove(self, session_id: int) -> None:
        session = self._sessions.pop(session_id)
        self._leave_bucket(session)

    def touch(self, session: ServerSession[C], now_ms: int) -> None:
        expires_ms = ((now_ms + session.timeout_ms) // self.tick_ms + 1) * self.tick_ms
        if expires_ms != session.expires_ms:
            self._leave_bucket(session)
            session.expires_ms = expires_ms
            self._buckets.setdefault(expires_ms, {})[session.id] = None

    def touch_all(self, now_ms: int) -> None:
        """After a restart every session gets its whole timeout again, because its client could not reach the server."""
        for session in self._sessions.values():
            self.touch(session, now_ms)

    def next_expiry_ms(self) -> int | None:
        return min(self._buckets, default=None)

    def expired(self, now_ms: int) -> list[int]:
        """The ids of expired sessions, earliest first. They stay in the table until removed."""
        due = sorted(bucket for bucket in self._buckets if bucket <= now_ms)
        return [session_id for bucket in due for session_id in self._buckets[bucket]]

    def _leave_bucket(self, session: ServerSession[C]) -> None:
        bucket = self._buckets.get(session.expires_ms)
        if bucket is not None:
            bucket.pop(session.id, None)
            if not bucket:
                del self._buckets[session.expires_ms]
