"""Text can be read in both colour schemes: WCAG's contrast of 4.5 for every pair that the style sheet puts together."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import klamm.dashboard

STYLE = (Path(klamm.dashboard.__path__[0]) / "static" / "style.css").read_text()
LIGHT, DARK = (
    dict(re.findall(r"--([\w-]+): (#\w{6})", block)) for block in re.findall(r":root \{(.*?)\}", STYLE, re.S)
)
PAIRS = [
    *((text, behind) for text in ("text", "muted", "accent", "bad") for behind in ("bg", "card")),
    *((kind, f"{kind}-soft") for kind in ("good", "warn", "bad", "accent")),
    *(("muted", f"{kind}-soft") for kind in ("warn", "bad")),
    *(("warn", "card"), ("second", "card"), ("card", "accent"), ("on-axis", "accent"), ("on-axis", "second")),
]
"""Text and what is behind it."""


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("scheme", [LIGHT, DARK], ids=["light", "dark"])
@pytest.mark.parametrize(("text", "behind"), PAIRS)
def test_contrast(scheme: dict[str, str], text: str, behind: str) -> None:
    colours = LIGHT | scheme
    darker, lighter = sorted((luminance(colours[text]), luminance(colours[behind])))
    assert (lighter + 0.05) / (darker + 0.05) >= 4.5
