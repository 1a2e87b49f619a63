"""The connect string: the servers in order, then at most one chroot for all of them.

The chroot exists only in the client, which puts it in front of every path it sends and removes it from every path it
receives. Only whole path elements match: `/kafka` is not a prefix of `/kafka2`. `/` stands for the chroot itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import Final, NamedTuple

from klamm.model.errors import BadArguments, ConfigError

DEFAULT_PORT: Final = 2181


class ServerAddress(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Chroot(NamedTuple):
    prefix: str
    """Without a trailing slash. Empty if there is no chroot."""

    def absolute(self, path: str) -> str:
        if not path.startswith("/"):
            raise BadArguments(path, "a path must start with /")
        if path == "/":
            return self.prefix or "/"
        return self.prefix + path

    def absolute_all(self, paths: Sequence[str]) -> list[str]:
        """`absolute` for each path. A call per path would cost more than the rest of packing a bulk read."""
        prefix = self.prefix
        if not prefix and all(map(str.startswith, paths, repeat("/"))):
            return list(paths)
        return [prefix + path if path[:1] == "/" != path else self.absolute(path) for path in paths]

    def relative(self, path: str) -> str:
        if path == self.prefix:
            return "/"
        if self.prefix and path.startswith(self.prefix + "/"):
            return path[len(self.prefix) :]
        return path


class ConnectString(NamedTuple):
    servers: tuple[ServerAddress, ...]
    chroot: Chroot

    @classmethod
    def parse(cls, text: str) -> ConnectString:
        """
        >>> ConnectString.parse("zk1:2182, [::1] /kafka/a/").servers
        (ServerAddress(host='zk1', port=2182), ServerAddress(host='::1', port=2181))
        """
        hosts, slash, path = text.partition("/")
        path = path.strip().rstrip("/")
        if "," in path or "//" in path:
            raise ConfigError(f"zookeeper.connect={text!r}: only one chroot is allowed, after the last server")
        servers = tuple(_server(part.strip(), text) for part in hosts.split(",") if part.strip())
        if not servers:
            raise ConfigError(f"zookeeper.connect={text!r}: at least one host:port is required")
        return cls(servers, Chroot(f"{slash}{path}" if path else ""))


def _server(part: str, text: str) -> ServerAddress:
    host, colon, port = part, "", ""
    if part.startswith("["):
        host, bracket, rest = part[1:].partition("]")
        colon, port = rest[:1], rest[1:]
        if not bracket or colon not in ("", ":"):
            raise ConfigError(f"zookeeper.connect={text!r}: {part!r} is not an [address]:port")
    elif part.count(":") == 1:
        host, colon, port = part.partition(":")
    if not host or (colon and not (port.isdecimal() and 0 < int(port) < 65536)):
        raise ConfigError(f"zookeeper.connect={text!r}: {part!r} is not a host:port")
    return ServerAddress(host, int(port) if colon else DEFAULT_PORT)
