"""Evens out preferred leaders by the order of replicas alone, so it copies nothing.

A broker with many leaders hands one to a broker with few that has a replica too. Where no such neighbour has few, a
chain does it: A hands one to B, and B hands another to C. Each hand-over takes the shortest chain, as in a search for a
flow, so the result is as even as the placement of replicas allows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

Chain = list[tuple[int, int]]
"""(a broker, the one that it hands a leadership to) for each link."""


def even_leaders(replicas: list[list[int]], brokers: Sequence[int]) -> None:
    """Reorders the lists in `replicas` in place. Replicas on other brokers neither take nor give leaderships."""
    leaders = _Leaders(replicas, brokers)
    waiting = sorted(brokers)
    while waiting:
        source = max(waiting, key=lambda broker: (leaders.count[broker], -broker))
        chain = leaders.shortest_chain(source)
        if not chain:
            waiting.remove(source)
        for giver, taker in chain:
            leaders.hand_over(giver, taker)


class _Leaders:
    def __init__(self, replicas: list[list[int]], brokers: Sequence[int]) -> None:
        self._replicas = replicas
        self._offers: dict[int, dict[int, dict[int, None]]] = {broker: {} for broker in brokers}
        """giver -> taker -> the partitions that the giver leads and the taker could lead."""
        self.count = dict.fromkeys(brokers, 0)
        for index in range(len(replicas)):
            self._offer(index)

    def _offer(self, index: int) -> None:
        leader, *followers = self._replicas[index]
        if leader in self.count:
            self.count[leader] += 1
            for taker in followers:
                if taker in self.count:
                    self._offers[leader].setdefault(taker, {})[index] = None

    def _withdraw(self, index: int) -> None:
        leader, *followers = self._replicas[index]
        self.count[leader] -= 1
        for taker in followers:
            if taker in self.count:
                del self._offers[leader][taker][index]

    def hand_over(self, giver: int, taker: int) -> None:
        index = next(iter(self._offers[giver][taker]))
        self._withdraw(index)
        members = self._replicas[index]
        position = members.index(taker)
        members[0], members[position] = members[position], members[0]
        self._offer(index)

    def shortest_chain(self, source: int) -> Chain:
        """From the source to a broker with at least two leaders fewer; the emptiest of those that are equally near."""
        before: dict[int, int] = {source: source}
        waiting = deque([source])
        while waiting:
            giver = waiting.popleft()
            for taker in sorted(self._offers[giver], key=lambda broker: (self.count[broker], broker)):
                if taker in before or not self._offers[giver][taker]:
                    continue
                before[taker] = giver
                if self.count[source] - self.count[taker] >= 2:
                    return _links(before, source, taker)
                waiting.append(taker)
        return []


def _links(before: dict[int, int], source: int, last: int) -> Chain:
    links: Chain = []
    while last != source:
        links.append((before[last], last))
        last = before[last]
    return links[::-1]
