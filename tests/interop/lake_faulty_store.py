"""A proxy in front of an S3 server: it answers late, or loses the answer to a request that it has passed on."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Lose = Callable[[str, str], bool]
"""By method and path: whether the answer gets lost."""


class FaultyStore:
    def __init__(self, server: str) -> None:
        """`server`: host and port of the real one."""
        self.server = server
        self.url = ""
        self.delay_seconds = 0.0
        self.lose: Lose = lambda _method, _path: False
        self.lost: list[str] = []
        self.refuses = False
        """As if the credentials were wrong."""


def first(method: str, part: str, count: int = 1) -> Lose:
    """Lose the answers to the first requests of a method whose path has this part."""
    seen: list[str] = []

    def lose(asked: str, path: str) -> bool:
        if asked == method and part in path and len(seen) < count:
            seen.append(path)
            return True
        return False

    return lose


@contextmanager
def faulty_store(server: str) -> Iterator[FaultyStore]:
    store = FaultyStore(server)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def forward(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if store.refuses:
                self.send_response_only(HTTPStatus.FORBIDDEN)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            headers = {name: value for name, value in self.headers.items() if name.lower() != "expect"}
            real = http.client.HTTPConnection(store.server, timeout=60)
            real.request(self.command, self.path, body, headers)
            answer = real.getresponse()
            content = answer.read()
            real.close()
            time.sleep(store.delay_seconds)  # the fault itself
            if store.lose(self.command, self.path):
                store.lost.append(self.path)
                self.close_connection = True
                return
            self.send_response_only(answer.status, answer.reason)
            for name, value in answer.getheaders():
                if name.lower() not in ("transfer-encoding", "connection", "content-length"):
                    self.send_header(name, value)
            length = answer.getheader("Content-Length") if self.command == "HEAD" else str(len(content))
            self.send_header("Content-Length", length or "0")
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = forward

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as proxy:
        store.url = f"http://127.0.0.1:{proxy.server_port}"
        thread = threading.Thread(target=proxy.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield store
        finally:
            proxy.shutdown()
            thread.join()
