"""One answer for all partitions that look alike: a rule is asked once for each pair of state and assignment.

A dead broker affects tens of thousands of partitions, but only a few hundred distinct situations. Most rules look only
at a partition's state and assignment. The partitions for which something else matters (a failed log directory, a topic
that is being deleted, a topic that allows unclean elections) are known in advance, and the rule is asked for each of
those few. Answers hold for one decision, since a rule is made from the context of that moment.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

from klamm.controller.context.controller_context import ControllerContext, PartitionIndex
from klamm.controller.decisions.steps import Change, Rule
from klamm.model.partition import Assignment, LeaderAndIsr


class SharedRule:
    """A Rule that also answers for many partitions at once. Those in `apart` are asked about one by one."""

    def __init__(self, view: ControllerContext, rule: Rule, apart: Container[PartitionIndex] = ()) -> None:
        self._view = view
        self._rule = rule
        self._apart = apart
        self._answers: dict[tuple[int, int], Change] = {}
        self._asked: list[tuple[LeaderAndIsr, Assignment]] = []
        """Keys are identities, since hashing the values costs more than the rule. While an answer is kept, so are its
        objects, and no other object can take their identity."""

    def __call__(self, partition: PartitionIndex, state: LeaderAndIsr) -> Change:
        return self._rule(partition, state)

    def decide(self, partitions: Sequence[PartitionIndex], states: Sequence[LeaderAndIsr]) -> list[Change]:
        assigned, answers = self._view.columns.assigned, self._answers
        keys = zip(map(id, states), map(id, map(assigned.__getitem__, partitions)), strict=True)
        found = list(map(answers.get, keys))
        apart = self._apart
        return [
            change if change is not None and not (apart and partition in apart) else self._ask(partition, state)
            for partition, state, change in zip(partitions, states, found, strict=True)
        ]

    def _ask(self, partition: PartitionIndex, state: LeaderAndIsr) -> Change:
        if partition in self._apart:
            return self._rule(partition, state)
        assignment = self._view.assignment_of(partition)
        key = (id(state), id(assignment))
        answer = self._answers.get(key)
        if answer is None:
            answer = self._answers[key] = self._rule(partition, state)
            self._asked.append((state, assignment))
        return answer


def decide(rule: Rule, partitions: Sequence[PartitionIndex], states: Sequence[LeaderAndIsr]) -> Sequence[Change]:
    """Ask any rule about many partitions."""
    if isinstance(rule, SharedRule):
        return rule.decide(partitions, states)
    return [rule(partition, state) for partition, state in zip(partitions, states, strict=True)]
