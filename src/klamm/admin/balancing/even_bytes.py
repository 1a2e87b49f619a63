"""Evens out the bytes of the brokers with few moves, without upsetting the number of replicas of each.

The even level is a water line: a replica larger than an average broker fills one alone, so both leave the average.
Large replicas that share a broker are separated first, because moving everything else away from them empties the broker
of small replicas. After that each move goes from an overloaded broker to an underloaded one and is at most as large as
the smaller of the two differences, so no broker ever gets worse. Where one more move would upset the number of
replicas, a small replica comes back in exchange, which costs few bytes.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from klamm.admin.balancing.placement_state import PlacementState

LARGE: Final = 0.25
"""A replica above this share of a broker's level is large."""
GAIN_MIN: Final = 1e-5
"""An exchange must bring at least this part of a broker's level, or it would take thousands of them."""
OVERSHOOT_GAIN: Final = 0.9
"""A move that goes too far must leave at most this part of the larger distance."""
PARTNERS_MAX: Final = 16
"""How many brokers are tried as the other side of a move."""


@dataclass(frozen=True, slots=True)
class Level:
    """The even share of one unit of weight, and what keeps it from being the plain average."""

    bytes_per_weight: float
    giants: tuple[int, ...]
    """Partitions that are larger than the share of a broker, largest first."""


def water_line(state: PlacementState) -> Level:
    weights = sorted(state.weight[broker] for broker in state.targets)
    remaining_weight = sum(weights)
    total = sum(size * len(replicas) for size, replicas in zip(state.sizes, state.replicas, strict=True))
    mean_weight = remaining_weight / len(weights)
    giants = []
    by_size = sorted(range(len(state.sizes)), key=lambda index: (-state.sizes[index], index))
    for index in by_size:
        copies = len(state.replicas[index])
        if state.sizes[index] <= total / remaining_weight * mean_weight or remaining_weight <= copies * mean_weight:
            break
        giants.append(index)
        total -= state.sizes[index] * copies
        remaining_weight -= copies * mean_weight
    return Level(total / remaining_weight, tuple(giants))


class EvenBytes:
    def __init__(self, state: PlacementState, level: Level, tolerance: float, count_tolerance: float) -> None:
        self._state = state
        self._level = {broker: level.bytes_per_weight * state.weight[broker] for broker in state.targets}
        self._tolerance = tolerance
        weight = sum(state.weight[broker] for broker in state.targets)
        replicas = sum(map(len, state.replicas))
        self._even_count = {broker: replicas * state.weight[broker] / weight for broker in state.targets}
        self._count_tolerance = count_tolerance
        self._by_excess: list[tuple[float, int]] = []

    def deviation(self) -> float:
        """The largest distance of a broker's bytes from its even share, as a part of that share."""
        shares = ((broker, self._share(broker)) for broker in self._state.targets)
        return max(abs(self._state.load[broker] - share) / share for broker, share in shares)

    def _share(self, broker: int) -> float:
        """What a broker should hold: the level, or its largest replica if that one is larger."""
        return max(self._level[broker], self._state.largest(broker), 1)  # a share of 0 cannot be divided by

    def count_deviation(self) -> float:
        return max((abs(self._state.count[b] - even) / even for b, even in self._even_count.items() if even), default=0)

    # --- large replicas ---

    def separate_large(self) -> None:
        held = {broker: self._large_on(broker) for broker in self._state.targets}
        large_bytes = {broker: sum(self._state.sizes[i] for i in held[broker]) for broker in held}
        for source in self._state.targets:
            kept = 0
            for index in held[source]:
                size = self._state.sizes[index]
                if not kept or kept + size <= self._level[source]:
                    kept += size
                    continue
                target = self._room_for_large(index, source, large_bytes)
                if target is None:
                    continue
                self._state.move(index, source, target)
                large_bytes[source] -= size
                large_bytes[target] += size

    def _large_on(self, broker: int) -> list[int]:
        limit = LARGE * self._level[broker]
        return [index for index in self._state.held_by(broker) if self._state.sizes[index] > limit]

    def _room_for_large(self, index: int, source: int, large_bytes: dict[int, int]) -> int | None:
        size = self._state.sizes[index]
        for target in sorted(
            large_bytes, key=lambda broker: (large_bytes[broker] / self._state.weight[broker], broker)
        ):
            helps = large_bytes[target] + size < max(self._level[target], large_bytes[source])
            if helps and self._state.is_legal(index, source, target):
                return target
        return None

    # --- everything else ---

    def run(self) -> None:
        """A broker that cannot give anything is left out until others have moved, or each move would try it again."""
        self._by_excess = sorted(map(self._excess, self._state.targets))
        stuck: set[int] = set()
        has_moved = False
        while True:
            source = self._most_loaded(stuck)
            if source is not None and self._relieve(source):
                has_moved = True
            elif source is not None:
                stuck.add(source)
            elif has_moved:
                stuck, has_moved = set(), False
            else:
                return

    def _most_loaded(self, stuck: set[int]) -> int | None:
        source = next((-minus for _, minus in reversed(self._by_excess) if -minus not in stuck), None)
        return source if source is not None and self._state.load[source] > self._share(source) else None

    def _excess(self, broker: int) -> tuple[float, int]:
        """What brokers are ordered by; the lower id first where they are equal."""
        return self._state.load[broker] / self._share(broker), -broker

    def _move(self, index: int, source: int, target: int) -> None:
        """A move changes the order of two brokers only, so nothing is sorted again."""
        for broker in (source, target):
            del self._by_excess[bisect_left(self._by_excess, self._excess(broker))]
        self._state.move(index, source, target)
        for broker in (source, target):
            insort(self._by_excess, self._excess(broker))

    def _relieve(self, source: int) -> bool:
        """One move or exchange from the broker to the emptiest one that can take part."""
        share = self._share(source)
        excess = self._state.load[source] - share
        is_beyond = excess > self._tolerance * share
        due: list[tuple[int, float]] = []
        for target in self._state.emptiest_targets(PARTNERS_MAX):
            level = self._level[target]
            deficit = level - self._state.load[target]
            if deficit <= 0:
                break
            if is_beyond or deficit > self._tolerance * level:
                if self._shift(source, target, min(excess, deficit)):
                    return True
                due.append((target, deficit))
        return any(self._overshoot(source, target, excess, deficit) for target, deficit in due)

    def _shift(self, source: int, target: int, amount: float) -> bool:
        if self._may_change_counts(source, target):
            for index in self._state.largest_up_to(source, self._wanted(source, target, amount)):
                if self._state.sizes[index] and self._state.is_legal(index, source, target):
                    self._move(index, source, target)
                    return True
        return self._exchange(source, target, amount)

    def _overshoot(self, source: int, target: int, excess: float, deficit: float) -> bool:
        """Few large replicas do not fit exactly. A move that goes too far is right if it leaves both brokers nearer to
        their share than the further one was; so the sum of squared distances falls, and the step ends."""
        best: tuple[float, int] | None = None
        for index in self._state.largest_up_to(source, excess + deficit):
            size = self._state.sizes[index]
            distance = max(abs(excess - size), abs(deficit - size))
            is_better = distance < OVERSHOOT_GAIN * max(excess, deficit) and (best is None or distance < best[0])
            if is_better and self._state.is_legal(index, source, target):
                best = (distance, index)
        if best is None:
            return False
        self._move(best[1], source, target)
        return True

    def _wanted(self, source: int, target: int, amount: float) -> float:
        """The size of the next move. If counts differ too, bytes and count should run out together."""
        moves = min(
            self._state.count[source] - self._even_count[source], self._even_count[target] - self._state.count[target]
        )
        return amount / moves if moves > 1 else amount

    def _may_change_counts(self, source: int, target: int) -> bool:
        slack = self._count_tolerance
        return self._state.count[source] > self._state.count[target] or (
            self._state.count[source] - 1 >= (1 - slack) * self._even_count[source]
            and self._state.count[target] + 1 <= (1 + slack) * self._even_count[target]
        )

    def _exchange(self, source: int, target: int, amount: float) -> bool:
        for back in self._returns(source, target):
            returned = self._state.sizes[back]
            for index in self._state.largest_up_to(source, amount + returned):
                if self._state.sizes[index] - returned <= max(returned, GAIN_MIN * self._level[target]):
                    break  # the gain is not worth the copies
                if self._state.is_legal(index, source, target):
                    self._move(index, source, target)
                    self._move(back, target, source)
                    return True
        return False

    def _returns(self, source: int, target: int) -> Iterator[int]:
        """A few small replicas that may go the other way."""
        found = 0
        for index in self._state.smallest(target):
            if found < 2 and self._state.is_legal(index, target, source):
                found += 1
                yield index

    # --- number of replicas ---

    def even_counts(self) -> None:
        """Move the smallest replicas from brokers with many to brokers with few. `run` then repairs the bytes."""
        slack = self._count_tolerance
        order = sorted(map(self._fullness, self._state.targets))
        while True:
            source, target = order[-1][1], order[0][1]
            many = self._state.count[source] > (1 + slack) * self._even_count[source]
            few = self._state.count[target] < (1 - slack) * self._even_count[target]
            if not (many or few) or not self._move_smallest(order):
                return

    def _fullness(self, broker: int) -> tuple[float, int]:
        return self._state.count[broker] / (self._even_count[broker] or 1), broker

    def _move_smallest(self, order: list[tuple[float, int]]) -> bool:
        """One move; the order of the two brokers is put right again."""
        for _, source in order[: -PARTNERS_MAX - 1 : -1]:
            for _, target in order[:PARTNERS_MAX]:
                if self._state.count[source] - self._state.count[target] < 2:
                    break
                for index in self._state.smallest(source):
                    if self._state.is_legal(index, source, target):
                        for broker in (source, target):
                            del order[bisect_left(order, self._fullness(broker))]
                        self._state.move(index, source, target)
                        for broker in (source, target):
                            insort(order, self._fullness(broker))
                        return True
        return False
