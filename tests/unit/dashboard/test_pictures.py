"""The pictures of the dashboard in README and docs are those that the browser test takes."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_every_picture_is_shown_and_taken_by_a_test() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    shown = {name for page in pages for name in re.findall(r"images/dashboard-([\w-]+)\.png", page.read_text())}
    test = (ROOT / "tests" / "integration" / "test_dashboard_browser.py").read_text()
    taken = set(re.findall(r'\.picture\("([\w-]+)"', test))
    there = {path.stem.removeprefix("dashboard-") for path in (ROOT / "docs" / "images").glob("dashboard-*.png")}
    assert shown == taken == there
