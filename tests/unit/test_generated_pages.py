"""Generated pages are those that the code would generate now."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", ["commands", "compatibility", "configuration", "metrics"])
def test_the_page_is_fresh(name: str) -> None:
    generator = runpy.run_path(str(ROOT / "scripts" / f"{name}.py"))
    assert (ROOT / "docs" / f"{name}.md").read_text() == generator["page"](), f"run scripts/{name}.py"
