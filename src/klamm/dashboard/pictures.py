"""Pictures as inline SVG, made here: bars, sparklines and a heat map; `time_axis` has those over time. Pure.

Colours come from classes of the style sheet, so that dark mode applies, and because the content security policy allows
no inline style. All text that comes from a cluster is escaped by markupsafe.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, sqrt
from typing import Final, NamedTuple
from urllib.parse import quote

from markupsafe import Markup

from klamm.dashboard.snapshot import ClusterSnapshot, PartitionHealth

SPARK_WIDTH, SPARK_HEIGHT = 240, 48
CELLS_MAX: Final = 1_600
CELL: Final = 11
COLUMNS_MIN, COLUMNS_MAX = 16, 64
CELLS_PER_ROW_AND_COLUMN: Final = 3.5
"""How much wider than high the heat map is: about as its place on the page."""


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
    columns = min(max(ceil(sqrt(len(cells) * CELLS_PER_ROW_AND_COLUMN)), COLUMNS_MIN), COLUMNS_MAX)
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
        '<svg class="heat" viewBox="0 0 {w} {h}" role="img" aria-label="partitions by health">{cells}</svg>'
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
