"""Assignments that the context has during some steps while ZooKeeper still has others.

Brokers must learn a new replica list before the topic znode may forget the old one: the znode is the only copy of where
the replicas are. So the context takes the new lists, the inner decision sends them, and the old lists come back.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping
from typing import TypeAlias

from klamm.controller.context.controller_context import ControllerContext, PartitionIndex
from klamm.controller.decisions.steps import Step, StepOutcome, SwapAssignments
from klamm.model.partition import Assignment

Inner: TypeAlias = Generator[Step, StepOutcome, Collection[PartitionIndex]]
"""Returns the partitions that keep the new list, because they are ready to have it written."""


def overlay(view: ControllerContext, assignments: Mapping[PartitionIndex, Assignment], inner: Inner) -> Inner:
    before = {i: view.assignment_of(i) for i in assignments}
    yield SwapAssignments(assignments)
    kept = yield from inner
    restored = {i: assignment for i, assignment in before.items() if i not in kept}
    if restored:
        yield SwapAssignments(restored)
    return kept
