"""A plan is reported in few lines, however many partitions it cannot place."""

from __future__ import annotations

from pathlib import Path

import pytest

from klamm.admin.balancing.load import Plan
from klamm.cli.reassign_planning import REASONS_SHOWN, report


def test_many_reasons_are_folded(capsys: pytest.CaptureFixture[str]) -> None:
    reasons = tuple(f"orders-{number} cannot leave broker 3" for number in range(56))
    report(Plan((), (), (), reasons), Path("leave.json"), 1, json=False)
    lines = capsys.readouterr().out.splitlines()
    assert lines[:REASONS_SHOWN] == list(reasons[:REASONS_SHOWN])
    assert lines[REASONS_SHOWN:] == ["and 51 more of the kind; --json has all", "nothing to do, no file written"]
