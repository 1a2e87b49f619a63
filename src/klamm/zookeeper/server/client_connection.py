"""One client's connection, without IO: takes bytes, hands requests to the service, collects frames for the client.

The first four bytes may be a four-letter word. The first frame is the ConnectRequest, every later one a request. A
frame above the limit, of negative length or shorter than a header closes the connection without an answer, and nothing
is allocated for it. Frames for the client leave when the service flushes, which it does after its journal.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from klamm.zookeeper import jute
from klamm.zookeeper.server.access import Caller
from klamm.zookeeper.server.sessions import ServerSession

if TYPE_CHECKING:
    from klamm.zookeeper.server.service import ZooKeeperService

HEADER_BYTES: Final = 8
WORDS: Final = frozenset(
    b"conf cons crst dirs dump envi gtmk hash isro lead mntr ruok srst srvr stat stmk wchc wchp wchs".split()
)


class Sink(Protocol):
    """Sends to the client."""

    def send(self, frames: list[bytes]) -> None: ...

    def close(self) -> None:
        """Close after everything sent has left."""


class ServedConnection:
    def __init__(self, service: ZooKeeperService, sink: Sink, address: str) -> None:
        self.caller = Caller(address=address)
        self.session: ServerSession[ServedConnection] | None = None
        self.open = True
        self._service = service
        self._sink = sink
        self._input = bytearray()
        self._output: list[bytes] = []
        self._receive: Callable[[bytes], None] = self._first_frame

    # --- from the client ---------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        self._input += data
        if self.session is None and self.open and bytes(self._input[:4]) in WORDS:
            self._answer_word(bytes(self._input[:4]).decode())
        else:
            self._take_frames()
        self._service.flush_soon()

    def connection_lost(self) -> None:
        self.open = False
        self._output.clear()
        self._service.forget(self)

    def _take_frames(self) -> None:
        buffer, position, end = self._input, 0, len(self._input)
        while self.open and end - position >= 4:
            (length,) = jute.INT.unpack_from(buffer, position)
            if not 0 < length <= self._service.frame_bytes_max:
                self.close()
                break
            if end - position - 4 < length:
                break
            payload = bytes(memoryview(buffer)[position + 4 : position + 4 + length])
            position += 4 + length
            self._receive(payload)
        if not self.open:
            buffer.clear()
        elif position:
            del buffer[:position]

    def _answer_word(self, word: str) -> None:
        self.send(self._service.answer_word(word).encode())
        self.close()

    def _first_frame(self, payload: bytes) -> None:
        self._receive = self._request
        self._service.connect(self, payload)

    def _request(self, payload: bytes) -> None:
        if len(payload) < HEADER_BYTES:
            self.close()
            return
        self._service.request(self, payload)

    # --- to the client -----------------------------------------------------------------------------------------------

    def send(self, frame: bytes) -> None:
        if self.open:
            self._output.append(frame)
            self._service.has_output(self)

    def flush(self) -> None:
        if self._output:
            frames, self._output = self._output, []
            self._sink.send(frames)

    def close(self) -> None:
        """Close after the output so far has left."""
        if self.open:
            self.open = False
            self._service.forget(self)
            self._service.has_output(self)

    def drop_output(self) -> None:
        self._output.clear()

    def finish(self) -> None:
        """Flush, and close if `close` was called."""
        self.flush()
        if not self.open:
            self._sink.close()
