"""The follower's side of a fetch session (KIP-227): which partitions the next request must name.

A request counts as sent when it is made. Only the answer to it confirms the session, so whatever happens in between (a
cancelled wait, a lost connection, an error) the next request is a full one, which opens a new session.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from klamm.broker.fetch_sessions import EPOCH_MAX, FIRST_EPOCH, NO_SESSION
from klamm.model.errors import ErrorCode
from klamm.model.ids import TopicPartition
from klamm.wire.fetch import FetchPartition

SESSION_LOST: Final = (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH)


class SessionRequest(NamedTuple):
    session_id: int
    session_epoch: int
    partitions: Sequence[FetchPartition]
    """Those that are new or changed; in a full fetch all of them."""
    forgotten: Sequence[TopicPartition]
    wanted: dict[TopicPartition, FetchPartition]


class FollowerSession:
    def __init__(self) -> None:
        self._id = NO_SESSION
        self._epoch = FIRST_EPOCH
        self._known: dict[TopicPartition, FetchPartition] = {}
        """What the leader has in the session."""

    def next(self, wanted: Sequence[FetchPartition]) -> SessionRequest:
        by_name = {entry.partition: entry for entry in wanted}
        session_id, epoch, known = self._id, self._epoch, self._known
        self._id, self._epoch, self._known = NO_SESSION, FIRST_EPOCH, {}
        if session_id == NO_SESSION:
            return SessionRequest(NO_SESSION, FIRST_EPOCH, wanted, (), by_name)
        changed = [entry for entry in wanted if known.get(entry.partition) != entry]
        forgotten = [name for name in known if name not in by_name]
        return SessionRequest(session_id, epoch, changed, forgotten, by_name)

    def answered(self, session_id: int, request: SessionRequest) -> None:
        """The leader answered without an error. It may have opened no session."""
        if session_id != NO_SESSION:
            self._id = session_id
            self._epoch = 1 if request.session_epoch == EPOCH_MAX else request.session_epoch + 1
            self._known = request.wanted
