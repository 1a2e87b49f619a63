"""Four-letter words: the server's answers about itself, for operators and their tools."""

from __future__ import annotations

from typing import Final, NamedTuple

VERSION: Final = "3.9.5-klamm"
"""The release whose behaviour our server follows. Clients derive from it which requests they may send."""


class Figures(NamedTuple):
    mode: str
    zxid: int
    received: int
    sent: int
    connections: int
    nodes: int
    watches: int
    ephemerals: int
    sessions: int


def answer(word: str, figures: Figures) -> str:
    match word:
        case "ruok":
            return "imok"
        case "isro":
            return "rw"
        case "srvr":
            return (
                f"Zookeeper version: {VERSION}, built on klamm\nLatency min/avg/max: 0/0.0/0\n"
                f"Received: {figures.received}\nSent: {figures.sent}\nConnections: {figures.connections}\n"
                f"Outstanding: 0\nZxid: {figures.zxid:#x}\nMode: {figures.mode}\nNode count: {figures.nodes}\n"
            )
        case "mntr":
            return "".join(f"zk_{name}\t{value}\n" for name, value in _lines(figures))
    return f"{word} is not executed because it is not in the whitelist.\n"


def _lines(figures: Figures) -> list[tuple[str, str | int]]:
    return [
        ("version", VERSION),
        ("server_state", figures.mode),
        ("packets_received", figures.received),
        ("packets_sent", figures.sent),
        ("num_alive_connections", figures.connections),
        ("outstanding_requests", 0),
        ("znode_count", figures.nodes),
        ("watch_count", figures.watches),
        ("ephemerals_count", figures.ephemerals),
        ("global_sessions", figures.sessions),
    ]
