"""Events as people read them."""

from __future__ import annotations

import re
from pathlib import Path

import klamm.controller
from klamm.telemetry.event_files import COUNTED, DECISIONS, QUIET


def test_every_decision_of_the_controller_has_words() -> None:
    (package,) = klamm.controller.__path__
    sources = [path.read_text() for path in Path(package).rglob("*.py")]
    recorded = {name for text in sources for name in re.findall(r'\.decision\(\s*"([a-z-]+)"', text)}
    assert recorded - QUIET == set(DECISIONS)
    assert set(DECISIONS) >= COUNTED
