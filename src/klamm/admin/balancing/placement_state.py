"""A placement that the planner changes move by move: loads, counts, and the replicas of each broker sorted by size.

A partition is an index into the input. Each change keeps every figure right, so a step can ask for the broker with the
highest load or for the largest replica below a size at any time. Two bisects a move make 100,000 partitions cheap.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from klamm.admin.balancing.load import PartitionLoad, PlannedBroker

CANDIDATES_MAX: Final = 60
"""How many replicas of a broker are tried for one move before another broker is."""


class PlacementState:
    def __init__(
        self, partitions: Sequence[PartitionLoad], brokers: Sequence[PlannedBroker], drained: frozenset[int]
    ) -> None:
        self._partitions = partitions
        self.sizes = [entry.size_bytes for entry in partitions]
        self.replicas = [list(entry.replicas) for entry in partitions]
        self.targets = sorted(broker.id for broker in brokers if broker.id not in drained)
        """The brokers that may have replicas."""
        self.weight = {broker.id: broker.weight for broker in brokers}
        self._rack = {broker.id: broker.rack for broker in brokers}
        self._racks = {self._rack[broker] for broker in self.targets}
        self._has_racks = None not in self._racks and len(self._racks) > 1
        self.load: dict[int, int] = dict.fromkeys(self.weight, 0)
        self.count: dict[int, int] = dict.fromkeys(self.weight, 0)
        self._by_size: dict[int, list[tuple[int, int]]] = {broker: [] for broker in self.weight}
        for index, replicas in enumerate(self.replicas):
            for broker in replicas:
                self._account(broker, index, +1)
        for held in self._by_size.values():
            held.sort()
        self._by_load = sorted((self.relative_load(broker), broker) for broker in self.targets)

    def _account(self, broker: int, index: int, sign: int) -> None:
        self.load[broker] += sign * self.sizes[index]
        self.count[broker] += sign
        if sign > 0:
            self._by_size[broker].append((self.sizes[index], index))

    # --- changes ---

    def move(self, index: int, source: int, target: int) -> None:
        """The new replica takes the place of the old one in the list, so leadership moves with it."""
        replicas = self.replicas[index]
        replicas[replicas.index(source)] = target
        self._take(index, source)
        self._give(index, target)

    def add(self, index: int, target: int) -> None:
        self.replicas[index].append(target)
        self._give(index, target)

    def drop(self, index: int, source: int) -> None:
        self.replicas[index].remove(source)
        self._take(index, source)

    def _take(self, index: int, source: int) -> None:
        held = self._by_size[source]
        del held[bisect_left(held, (self.sizes[index], index))]
        self._change_load(source, -self.sizes[index])
        self.count[source] -= 1

    def _give(self, index: int, target: int) -> None:
        insort(self._by_size[target], (self.sizes[index], index))
        self._change_load(target, self.sizes[index])
        self.count[target] += 1

    def _change_load(self, broker: int, size: int) -> None:
        position = bisect_left(self._by_load, (self.relative_load(broker), broker))
        is_target = position < len(self._by_load) and self._by_load[position][1] == broker
        self.load[broker] += size
        if is_target:
            del self._by_load[position]
            insort(self._by_load, (self.relative_load(broker), broker))

    # --- questions ---

    def name(self, index: int) -> str:
        return str(self._partitions[index])

    def relative_load(self, broker: int) -> float:
        return self.load[broker] / self.weight[broker]

    def emptiest(self, brokers: Iterable[int]) -> list[int]:
        return sorted(brokers, key=lambda broker: (self.relative_load(broker), broker))

    def emptiest_targets(self, number: int) -> list[int]:
        """As `emptiest` of all targets, without sorting them for each move."""
        return [broker for _, broker in self._by_load[:number]]

    def is_legal(self, index: int, source: int | None, target: int) -> bool:
        """Whether `target` may take the replica of `source`, or one more replica if there is no source.

        A replica may go to a rack that the partition does not use yet, stay in its rack, or go anywhere once the other
        replicas use every rack.
        """
        replicas = self.replicas[index]
        if target in replicas:
            return False
        if not self._has_racks or (source is not None and self._rack.get(source) == self._rack[target]):
            return True
        others = {self._rack.get(broker) for broker in replicas if broker != source}
        return self._rack[target] not in others or others >= self._racks

    def misplaced(self, index: int) -> int | None:
        """A replica that shares a rack although another rack is unused: the last such one, to spare the leader."""
        if not self._has_racks:
            return None
        replicas = self.replicas[index]
        racks = [self._rack.get(broker) for broker in replicas]
        if len(set(racks)) >= min(len(replicas), len(self._racks)):
            return None
        crowded = [broker for broker, rack in zip(replicas, racks, strict=True) if racks.count(rack) > 1]
        return crowded[-1]

    def largest_up_to(self, broker: int, size: float) -> Iterator[int]:
        """Replicas of a broker in decreasing size, none above `size`, a limited number."""
        held = self._by_size[broker]
        end = bisect_right(held, (size, len(self.sizes)))
        for position in range(end - 1, max(end - 1 - CANDIDATES_MAX, -1), -1):
            yield held[position][1]

    def largest(self, broker: int) -> int:
        held = self._by_size[broker]
        return held[-1][0] if held else 0

    def smallest(self, broker: int) -> Iterator[int]:
        """Replicas of a broker in increasing size, a limited number."""
        for _, index in self._by_size[broker][:CANDIDATES_MAX]:
            yield index

    def held_by(self, broker: int) -> list[int]:
        """Replicas of a broker in decreasing size."""
        return [index for _, index in reversed(self._by_size[broker])]
