"""Generated pages are those that the code would generate now."""

from __future__ import annotations

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_compatibility_table_is_fresh() -> None:
    generator = runpy.run_path(str(ROOT / "scripts" / "compatibility.py"))
    assert (ROOT / "docs" / "compatibility.md").read_text() == generator["page"](), "run scripts/compatibility.py"
