"""Pictures as inline SVG, made here: bars, sparklines, a heat map and a time axis. Pure.

Colours come from classes of the style sheet, so that dark mode applies, and because the content security policy allows
no inline style. All text that comes from a cluster is escaped by markupsafe.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple
from urllib.parse import quote

from markupsafe import Markup

from klamm.dashboard.snapshot import ClusterSnapshot, PartitionHealth

SPARK_WIDTH, SPARK_HEIGHT = 240, 48
CELLS_MAX: Final = 1_600
CELL: Final = 11
COLUMNS: Final = 64
AXIS_WIDTH: Final = 900
AXIS_MARKS_MAX: Final = 400
MARK_WIDTH: Final = 2.5
CHARACTER_WIDTH: Final = 7
"""About, at the size of text on an axis."""


def bar(value: float, most: float, *, kind: str = "", label: str = "") -> Markup:
    """A horizontal bar, as long as its share of the longest."""
    share = 0.0 if most <= 0 else max(0.0, min(1.0, value / most))
    return Markup(
        '<svg class="bar" viewBox="0 0 100 8" preserveAspectRatio="none" role="img" aria-label="{label}">'
        '<rect class="track" width="100" height="8" rx="1"/><rect class="fill {kind}" width="{width:.2f}" height="8" '
        'rx="1"/></svg>'
    ).format(label=label, kind=kind, width=share * 100)


def sparkline(values: Sequence[float], label: str) -> Markup:
    """A line over time, with the area below it."""
    most = max(values, default=0.0)
    if len(values) < 2:
        values = (0.0, 0.0)
    step = SPARK_WIDTH / (len(values) - 1)
    top = SPARK_HEIGHT - 4
    points = [(n * step, SPARK_HEIGHT - 2 - (v / most * top if most > 0 else 0.0)) for n, v in enumerate(values)]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return Markup(
        '<svg class="spark" viewBox="0 0 {w} {h}" preserveAspectRatio="none" role="img" aria-label="{label}">'
        '<polygon class="area" points="0,{h} {line} {w},{h}"/><polyline class="line" points="{line}"/></svg>'
    ).format(w=SPARK_WIDTH, h=SPARK_HEIGHT, label=label, line=line)


class Cell(NamedTuple):
    health: PartitionHealth
    title: str
    topic: str


def heat_map(snapshot: ClusterSnapshot) -> Markup:
    """One cell per partition, or per run of neighbours in a large cluster, coloured by the worst of them."""
    cells = _cells(snapshot)
    columns = min(COLUMNS, max(len(cells), 1))
    rows = -(-len(cells) // columns)
    parts = []
    for n, cell in enumerate(cells):
        x, y = n % columns * CELL, n // columns * CELL
        shape = Markup('<rect class="h{health}" x="{x}" y="{y}" width="9" height="9" rx="2"><title>{t}</title></rect>')
        drawn = shape.format(health=int(cell.health), x=x, y=y, t=cell.title)
        if cell.health >= PartitionHealth.UNDER_REPLICATED:
            drawn = Markup('<a href="/topics/{}">{}</a>').format(quote(cell.topic, safe=""), drawn)
        parts.append(drawn)
    return Markup(
        '<svg class="heat" viewBox="0 0 {w} {h}" width="{w}" height="{h}" role="img" '
        'aria-label="partitions by health">{cells}</svg>'
    ).format(w=columns * CELL, h=max(rows, 1) * CELL, cells=Markup("").join(parts))


def _cells(snapshot: ClusterSnapshot) -> list[Cell]:
    per_cell = -(-max(snapshot.partitions, 1) // CELLS_MAX)
    if per_cell == 1:
        return [Cell(row.health, f"{row.topic}-{row.number}: {row.health.words}", row.topic) for row in snapshot.rows()]
    cells: list[Cell] = []
    worst, first, held = PartitionHealth.IN_SYNC, None, 0
    for row in snapshot.rows():
        if first is None or row.health > worst:
            worst, first = max(worst, row.health), row
        held += 1
        if held == per_cell:
            cells.append(
                Cell(worst, f"{held} partitions, the worst is {first.topic}-{first.number}: {worst.words}", first.topic)
            )
            worst, first, held = PartitionHealth.IN_SYNC, None, 0
    if first is not None:
        cells.append(
            Cell(worst, f"{held} partitions, the worst is {first.topic}-{first.number}: {worst.words}", first.topic)
        )
    return cells


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


def time_axis(spans: Sequence[Span], labels: tuple[str, str], lane_text: str) -> Markup:
    """Spans side by side on one lane, from the first start to the last end."""
    if not spans:
        return Markup("")
    first, last = min(span.start_ms for span in spans), max(span.end_ms for span in spans)
    scale = AXIS_WIDTH / max(last - first, 1)
    parts = []
    for n, span in enumerate(spans):
        x, width = (span.start_ms - first) * scale, max((span.end_ms - span.start_ms) * scale, 2.0)
        parts.append(
            Markup(
                '<g><rect class="term {kind}" x="{x:.1f}" y="4" width="{w:.1f}" height="26" rx="3"/>'
                "<title>{title}</title>{text}</g>"
            ).format(
                kind=span.kind or f"t{n % 2}",
                x=x,
                w=width,
                title=span.title,
                text=Markup('<text x="{:.1f}" y="21">{}</text>').format(x + 6, span.text(width)),
            )
        )
    return _axis(parts, 34, labels, lane_text)


def marks_axis(marks: Iterable[tuple[int, str, str]], labels: tuple[str, str], start_ms: int, end_ms: int) -> Markup:
    """Events as ticks: time, kind and title of each."""
    scale = (AXIS_WIDTH - MARK_WIDTH) / max(end_ms - start_ms, 1)
    shape = Markup(
        '<rect class="mark {kind}" x="{x:.1f}" y="6" width="{w}" height="22" rx="1"><title>{t}</title></rect>'
    )
    parts = [
        shape.format(kind=kind, x=(at - start_ms) * scale, w=MARK_WIDTH, t=title)
        for at, kind, title in list(marks)[:AXIS_MARKS_MAX]
        if start_ms <= at <= end_ms
    ]
    return _axis(parts, 34, labels, "state changes over time")


def _axis(parts: list[Markup], height: int, labels: tuple[str, str], label: str) -> Markup:
    return Markup(
        '<svg class="axis" viewBox="0 0 {w} {full}" role="img" aria-label="{label}"><line class="base" x1="0" x2="{w}" '
        'y1="{h}" y2="{h}"/>{parts}<text class="tick" x="0" y="{t}">{a}</text>'
        '<text class="tick end" x="{w}" y="{t}">{b}</text></svg>'
    ).format(
        w=AXIS_WIDTH,
        full=height + 20,
        h=height,
        t=height + 15,
        parts=Markup("").join(parts),
        a=labels[0],
        b=labels[1],
        label=label,
    )
