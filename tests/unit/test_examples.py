"""Examples in docstrings are run, so that they stay true."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"
WITH_EXAMPLES = sorted(path for path in SOURCE.rglob("*.py") if ">>> " in path.read_text())


@pytest.mark.parametrize("path", WITH_EXAMPLES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_examples(path: Path) -> None:
    module = importlib.import_module(".".join(path.relative_to(SOURCE).with_suffix("").parts))
    results = doctest.testmod(module)
    assert results.attempted
    assert not results.failed
