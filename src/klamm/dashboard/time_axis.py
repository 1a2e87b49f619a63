"""Time from left to right, as inline SVG: stretches on one lane, or events as marks on a lane for each kind. Pure.

Times are UTC. Colours come from classes, as in `pictures`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple

from markupsafe import Markup

WIDTH: Final = 900
LABELS: Final = 80
"""Width of the names of lanes."""
LANE: Final = 22
SPAN_HEIGHT: Final = 26
MARK_WIDTH: Final = 2.5
MARKS_MAX: Final = 400
CHARACTER_WIDTH: Final = 7
"""About, at the size of text on an axis."""
TICKS_MAX: Final = 7
MINUTE, HOUR, DAY = 60, 3_600, 86_400
STEPS: Final = (
    *(1, 2, 5, 10, 15, 30),
    *(n * MINUTE for n in (1, 2, 5, 10, 15, 30)),
    *(n * HOUR for n in (1, 2, 3, 6, 12)),
    *(n * DAY for n in (1, 2, 7, 14, 30, 90, 365)),
)
"""Seconds between two ticks."""


class Tick(NamedTuple):
    time_ms: int
    text: str


def ticks(start_ms: int, end_ms: int) -> list[Tick]:
    """Round moments, at most seven. A midnight shows its date.

    >>> [tick.text for tick in ticks(3_000, 23_000)]
    ['00:00:05', '00:00:10', '00:00:15', '00:00:20']
    >>> [tick.text for tick in ticks(79_200_000, 93_600_000)]
    ['22:00', '23:00', '2 Jan', '01:00', '02:00']
    """
    seconds = (end_ms - start_ms) / 1000
    step = next((step for step in STEPS if seconds / step < TICKS_MAX), max(int(seconds / TICKS_MAX), 1))
    first = -(-start_ms // (step * 1000)) * step
    return [Tick(at * 1000, _text(at, step)) for at in range(first, end_ms // 1000 + 1, step)]


def _text(seconds: int, step: int) -> str:
    at = datetime.fromtimestamp(seconds, UTC)
    if step >= DAY or seconds % DAY == 0:
        return f"{at.day} {at:%b}"
    return f"{at:%H:%M:%S}" if step < MINUTE else f"{at:%H:%M}"


class Span(NamedTuple):
    """A stretch of time on an axis."""

    start_ms: int
    end_ms: int
    title: str
    texts: Sequence[str]
    """The first that fits is shown."""
    kind: str = ""

    def text(self, width: float) -> str:
        return next((text for text in self.texts if (len(text) + 2) * CHARACTER_WIDTH < width), "")


class Mark(NamedTuple):
    time_ms: int
    kind: str
    title: str


class _Scale(NamedTuple):
    start_ms: int
    end_ms: int
    left: float
    right: float

    def x(self, time_ms: int) -> float:
        return self.left + (time_ms - self.start_ms) / max(self.end_ms - self.start_ms, 1) * (self.right - self.left)


def spans_axis(spans: Sequence[Span], label: str) -> Markup:
    """Spans side by side on one lane, from the first start to the last end."""
    if not spans:
        return Markup("")
    scale = _Scale(min(span.start_ms for span in spans), max(span.end_ms for span in spans), 0, WIDTH)
    return _axis([_drawn(span, n, scale) for n, span in enumerate(spans)], SPAN_HEIGHT + 8, scale, label)


def _drawn(span: Span, number: int, scale: _Scale) -> Markup:
    x = scale.x(span.start_ms)
    width = max(scale.x(span.end_ms) - x, 2.0)
    return Markup(
        '<g><rect class="term {kind}" x="{x:.1f}" y="4" width="{w:.1f}" height="{h}" rx="3"/><title>{title}</title>'
        '<text x="{tx:.1f}" y="21">{text}</text></g>'
    ).format(
        kind=span.kind or f"t{number % 2}",
        x=x,
        w=width,
        h=SPAN_HEIGHT,
        title=span.title,
        tx=x + 6,
        text=span.text(width),
    )


def marks_axis(marks: Iterable[Mark], lanes: Sequence[str], start_ms: int, end_ms: int, label: str) -> Markup:
    """A lane for each kind, with its name before it."""
    scale = _Scale(start_ms, end_ms, LABELS, WIDTH - MARK_WIDTH)
    tops = {kind: number * LANE for number, kind in enumerate(lanes)}
    name = Markup(
        '<text class="lane" x="0" y="{y}">{kind}</text><line class="base" x1="{x}" x2="{w}" y1="{b}" y2="{b}"/>'
    )
    shape = Markup(
        '<rect class="mark {kind}" x="{x:.1f}" y="{y}" width="{w}" height="{h}" rx="1"><title>{title}</title></rect>'
    )
    parts = [name.format(x=LABELS, w=WIDTH, y=top + 15, b=top + LANE, kind=kind) for kind, top in tops.items()]
    parts += [
        shape.format(
            kind=mark.kind, x=scale.x(mark.time_ms), y=tops[mark.kind] + 4, w=MARK_WIDTH, h=LANE - 6, title=mark.title
        )
        for mark in list(marks)[:MARKS_MAX]
        if start_ms <= mark.time_ms <= end_ms and mark.kind in tops
    ]
    return _axis(parts, len(lanes) * LANE, scale, label)


def _axis(parts: list[Markup], height: int, scale: _Scale, label: str) -> Markup:
    line = Markup(
        '<line class="base" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{h}"/>'
        '<text class="tick {side}" x="{x:.1f}" y="{t}">{text}</text>'
    )
    lines = []
    for tick in ticks(scale.start_ms, scale.end_ms):
        x = scale.x(tick.time_ms)
        room = len(tick.text) * CHARACTER_WIDTH / 2
        side = "start" if x < scale.left + room else "end" if x > scale.right - room else ""
        lines.append(line.format(x=x, h=height, t=height + 15, side=side, text=tick.text))
    return Markup(
        '<svg class="axis" viewBox="0 0 {w} {full}" role="img" aria-label="{label}">{lines}{parts}</svg>'
    ).format(w=WIDTH, full=height + 20, label=label, lines=Markup("").join(lines), parts=Markup("").join(parts))
