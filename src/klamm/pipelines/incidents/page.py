"""The page of a report: one HTML file with everything in it, which opens without a network.

Jinja escapes every value. The data of the pictures is JSON in which no `<` remains, so no name of a topic can end the
script. A content security policy forbids the page to load anything.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from statistics import median
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from klamm import __version__
from klamm.pipelines.incidents.analysis.findings import Findings
from klamm.pipelines.incidents.analysis.losses import STOPPED
from klamm.pipelines.incidents.pictures import pictures
from klamm.pipelines.incidents.stories import summary, tell
from klamm.pipelines.incidents.tables import BOOL, IDS, INT, SECONDS, TIME, Table, clock

if TYPE_CHECKING:
    from jinja2 import Template

ROWS_MAX: Final = 500
"""The page shows so many rows of each table. The Parquet files have all."""
STORIES_MAX: Final = 100

TITLES: Final = {
    "outages": ("Outages", "When a partition could not be written with acks=all, and why."),
    "partitions": ("Partitions", "Seconds in total, worst first."),
    "controller_terms": ("Controller terms", "Who was controller, and how long there was none."),
    "broker_losses": ("Broker losses", "When each fault really was, and when the controller noticed."),
    "isr_churn": ("ISR churn", "How often brokers left ISRs. Unexplained: no fault is known, so the broker was slow."),
    "unclean_elections": ("Unclean elections", "A leader that was not in sync: records may be lost."),
    "reassignments": ("Reassignments", "From the first step to the last."),
    "deletions": ("Deletions of topics", "From the request to the end."),
    "notes": ("Other events", "What brokers complained about, per minute."),
    "clock_skew": ("Clocks", "How far each clock was ahead. Corrected ones are corrected on this page."),
    "files": ("Files", "What was read."),
    "not_understood": ("Lines that were not understood", "By shape: N stands for a number."),
}  # fmt: skip
OPEN: Final = frozenset({"outages", "controller_terms", "broker_losses"})


class Cell(NamedTuple):
    text: str
    order: float | str
    """What the column is sorted by."""
    style: str = ""


class Section(NamedTuple):
    name: str
    title: str
    about: str
    columns: list[str]
    rows: list[list[Cell]]
    left_out: int
    open: bool


class Card(NamedTuple):
    value: str
    label: str


def render(findings: Findings, tables: Mapping[str, Table]) -> str:
    from bokeh.embed import json_item
    from bokeh.resources import Resources

    stories = tell(findings)
    return _template().render(
        title="Incident report",
        version=__version__,
        period=f"{clock(findings.start)} to {clock(findings.end)} UTC",
        summary=summary(findings),
        cards=_cards(findings),
        stories=stories[:STORIES_MAX],
        shorter=[story for story in stories[:STORIES_MAX] if story.is_short],
        stories_left_out=max(0, len(stories) - STORIES_MAX),
        slow=_slow(findings),
        missing=findings.missing,
        sections=[_section(name, tables[name]) for name in TITLES if tables[name].rows],
        empty=[TITLES[name][0] for name in TITLES if not tables[name].rows],
        bokeh="\n".join(Resources(mode="inline", components=["bokeh"]).js_raw),
        plot=safe_json(json_item(pictures(findings))),
    )


@cache
def _template() -> Template:
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["time"] = clock
    return environment.from_string((files(__package__) / "page.html.j2").read_text(encoding="utf-8"))


def safe_json(value: Any) -> str:
    r"""JSON that may stand inside a script element.

    >>> safe_json({"topic": "</script>"})
    '{"topic": "\\u003c/script\\u003e"}'
    """
    text = json.dumps(value)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _cards(findings: Findings) -> list[Card]:
    total = sum(o.end - o.start for o in findings.outages) / 1000
    worst = max((o.end - o.start for o in findings.outages), default=0) / 1000
    lost = [x for x in findings.losses if x.how != STOPPED]
    elected = [
        sum(part or 0 for part in o.split)
        for o in findings.outages
        if o.no_leader_ms and o.how not in ("handed over", STOPPED)
    ]
    return [
        Card(f"{total:.1f} s", "partition-seconds unavailable"),
        Card(f"{worst:.1f} s", "the worst outage"),
        Card(str(len(lost)), "times a broker was lost"),
        Card(str(max(0, len(findings.terms) - 1)), "changes of the controller"),
        Card(f"{median(elected) / 1000:.1f} s" if elected else "none", "from fault to a new leader, median"),
        Card(str(len(findings.unclean)), "unclean elections"),
    ]


def _slow(findings: Findings) -> list[str]:
    return [
        f"Broker {churn.broker} left ISRs {churn.unexplained} times although no log tells of a fault: it was slow."
        for churn in sorted(findings.churn, key=lambda churn: -churn.unexplained)
        if churn.unexplained
    ]


def _section(name: str, table: Table) -> Section:
    title, about = TITLES[name]
    kinds = [kind for _, kind in table.columns]
    rows = [[_cell(value, kind) for value, kind in zip(row, kinds, strict=True)] for row in table.rows[:ROWS_MAX]]
    columns = [column.replace("_", " ") for column, _ in table.columns]
    return Section(name, title, about, columns, rows, max(0, len(table.rows) - ROWS_MAX), name in OPEN)


def _cell(value: Any, kind: str) -> Cell:
    if value is None or value == "":
        return Cell("", -1 if kind in (INT, SECONDS, TIME) else "")
    if kind == TIME:
        return Cell(clock(value), value, "time")
    if kind == SECONDS:
        return Cell(f"{value:.3f}", value, "number")
    if kind == BOOL:
        return Cell("yes" if value else "no", int(value))
    if kind == IDS:
        text = ", ".join(map(str, value))
        return Cell(text, text)
    return Cell(str(value), value, "number" if kind == INT else "")
