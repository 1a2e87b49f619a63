"""Assignments that are swapped in for some steps always come back, except where the inner decision keeps them."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from klamm.controller.context.controller_context import ControllerContext, PartitionIndex
from klamm.controller.decisions.overlay import Inner, overlay
from klamm.controller.decisions.steps import SendMetadata, Step, StepOutcome, SwapAssignments
from klamm.model.ids import BrokerId, ControllerEpoch
from klamm.model.partition import Assignment

OLD = Assignment((BrokerId(1), BrokerId(2)))
NEW = Assignment((BrokerId(2), BrokerId(3)))


def run(context: ControllerContext, decision: Inner) -> tuple[list[Step], Collection[PartitionIndex]]:
    """Carries out swaps as the runner does. Returns the steps and what the decision returns."""
    steps: list[Step] = []
    try:
        step = next(decision)
        while True:
            steps.append(step)
            if isinstance(step, SwapAssignments):
                for i, assignment in step.assignments.items():
                    context.replace_assignment(i, assignment)
            step = decision.send(StepOutcome())
    except StopIteration as end:
        return steps, end.value


@pytest.mark.parametrize("kept", [[], [1], [0, 1, 2]])
def test_what_is_not_kept_comes_back(kept: list[PartitionIndex]) -> None:
    context = ControllerContext(ControllerEpoch(5))
    partitions = context.add_partitions("t", dict.fromkeys(range(3), OLD))
    assert partitions == [0, 1, 2]

    def inner() -> Inner:
        assert [context.assignment_of(i) for i in partitions] == [NEW] * 3
        yield SendMetadata(partitions)
        return kept

    steps, returned = run(context, overlay(context, dict.fromkeys(partitions, NEW), inner()))
    assert returned == kept
    assert [context.assignment_of(i) for i in partitions] == [NEW if i in kept else OLD for i in partitions]
    swaps = [step for step in steps if isinstance(step, SwapAssignments)]
    assert len(swaps) == (1 if len(kept) == 3 else 2)
