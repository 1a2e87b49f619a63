"""The pictures of the page, drawn by Bokeh: a timeline of controllers, brokers and partitions, and a heat map below it.

Both share one time axis: zooming one zooms the other, so that cause (a broker) and effect (its partitions) stay above
each other.
"""

from __future__ import annotations

from math import sqrt
from typing import TYPE_CHECKING, Any, Final

from klamm.pipelines.incidents.analysis.findings import Findings
from klamm.pipelines.incidents.analysis.outages import NO_LEADER, STALLED, UNDER_MIN_ISR
from klamm.pipelines.incidents.tables import clock

if TYPE_CHECKING:
    from bokeh.models import LayoutDOM

PARTITIONS_MAX: Final = 40
"""Rows of the timeline, worst first. The tables have all."""
INTERVALS_MAX: Final = 20_000
BUCKETS: Final = 120
COLOURS: Final = {
    "there": "#cfd8dc",
    NO_LEADER: "#c62828",
    UNDER_MIN_ISR: "#ef6c00",
    STALLED: "#fbc02d",
    "lost, not noticed yet": "#4a148c",
    "away": "#9575cd",
    "controller": "#1565c0",
    "the next controller": "#64b5f6",
}
TROUBLE: Final = {
    "isr.shrink": "ISR shrinks",
    "net.lost": "broken connections",
    "zk.timeout": "session trouble",
    "zk.expired": "sessions expired",
    "append.refused": "refused appends",
    "isr.rejected": "rejected ISR changes",
    "isr.stale": "stale ISR changes",
}
_WIDTH: Final = "stretch_width"


def pictures(findings: Findings) -> LayoutDOM:
    from bokeh.layouts import column

    timeline = _timeline(findings)
    return column(timeline, _heat_map(findings, timeline), sizing_mode=_WIDTH)


def _timeline(findings: Findings) -> Any:
    from bokeh.models import ColumnDataSource, FactorRange, HoverTool, Range1d
    from bokeh.plotting import figure

    bars = [*_controllers(findings), *_brokers(findings), *_partitions(findings)]
    bars = bars or [_bar("nothing", "there", findings.start, findings.end)]
    rows = list(dict.fromkeys(bar["row"] for bar in bars))
    margin = max(500, (findings.end - findings.start) // 50)
    picture: Any = figure(
        name="timeline",
        x_axis_type="datetime",
        x_range=Range1d(start=findings.start - margin, end=findings.end + margin),
        y_range=FactorRange(factors=rows[::-1] or ["nothing"]),
        height=110 + 19 * len(rows),
        sizing_mode=_WIDTH,
        tools="xpan,xwheel_zoom,xbox_zoom,reset,save",
        active_drag="xbox_zoom",
        title="Who led, who was lost, and which partitions could not be written (drag to zoom, times in UTC)",
    )
    for state, colour in COLOURS.items():
        chosen = [bar for bar in bars if bar["state"] == state]
        if not chosen:
            continue
        source = ColumnDataSource({key: [bar[key] for bar in chosen] for key in chosen[0]})
        height = 0.12 if state == "there" else 0.78
        label: dict[str, Any] = {} if state in ("there", "the next controller") else {"legend_label": state}
        drawn = picture.hbar(
            y="row", left="start", right="end", height=height, color=colour, line_color=colour, source=source, **label
        )
        if state != "there":
            tip = [("", "@row: @state"), ("from", "@from"), ("to", "@to"), ("", "@what")]
            picture.add_tools(HoverTool(renderers=[drawn], tooltips=tip))
    _plain(picture)
    if picture.legend:
        picture.add_layout(picture.legend[0], "above")
        picture.legend[0].orientation = "horizontal"
        picture.legend[0].border_line_color = None
        picture.legend[0].label_text_font_size = "11px"
    return picture


def _bar(row: str, state: str, start: int, end: int, what: str = "") -> dict[str, Any]:
    return {
        "row": row,
        "state": state,
        "start": start,
        "end": max(end, start + 1),
        "from": clock(start),
        "to": clock(end),
        "what": what,
    }


def _controllers(findings: Findings) -> list[dict[str, Any]]:
    states = ("controller", "the next controller")
    return [
        _bar(
            "controller",
            states[number % 2],
            max(findings.start, term.since),
            min(findings.end, term.until or findings.end),
            f"broker {term.broker}, epoch {term.epoch}: {term.cause}",
        )
        for number, term in enumerate(findings.terms)
        if term.since is not None
    ]


def _brokers(findings: Findings) -> list[dict[str, Any]]:
    brokers = sorted({r.broker for r in findings.records if r.broker is not None} | {x.broker for x in findings.losses})
    bars = []
    for broker in brokers:
        bars.append(_bar(f"broker {broker}", "there", findings.start, findings.end))
        for loss in findings.losses:
            if loss.broker == broker:
                back = min(loss.back or findings.end, findings.end)
                bars.append(_bar(f"broker {broker}", "lost, not noticed yet", loss.fault, loss.noticed, loss.how))
                if back > loss.noticed:
                    bars.append(_bar(f"broker {broker}", "away", loss.noticed, back, loss.how))
    return bars


def _partitions(findings: Findings) -> list[dict[str, Any]]:
    totals: dict[tuple[str, int], int] = {}
    for outage in findings.outages:
        name = outage.place[:2]
        totals[name] = totals.get(name, 0) + outage.end - outage.start
    worst = sorted(totals, key=lambda name: (-totals[name], name))[:PARTITIONS_MAX]
    bars = []
    for name in worst:
        lives = [rows for place, rows in findings.history.items() if place[:2] == name and rows]
        for rows in lives:
            start = max(findings.start, rows[0].since)
            bars.append(_bar(_name(name), "there", start, max(start, min(findings.end, rows[-1].until))))
    chosen = set(worst)
    order = {NO_LEADER: 2, UNDER_MIN_ISR: 1, STALLED: 0}
    shown = [i for i in findings.intervals if i.place[:2] in chosen][:INTERVALS_MAX]
    for interval in sorted(shown, key=lambda i: order[i.measure]):
        because = interval.how if interval.broker is None else f"broker {interval.broker}: {interval.how}"
        bars.append(_bar(_name(interval.place[:2]), interval.measure, interval.start, interval.end, because))
    return bars


def _name(name: tuple[str, int]) -> str:
    return f"{name[0][:60]}-{name[1]}"


def _heat_map(findings: Findings, timeline: Any) -> Any:
    from bokeh.models import ColumnDataSource, FactorRange, HoverTool, LinearColorMapper
    from bokeh.plotting import figure

    width = max(1000, -(-(findings.end - findings.start) // BUCKETS))
    cells: dict[tuple[int, int], dict[str, int]] = {}
    for record in findings.records:
        if record.kind in TROUBLE and record.broker is not None and findings.start <= record.t <= findings.end:
            cell = cells.setdefault((record.broker, (record.t - findings.start) // width), {})
            cell[record.kind] = cell.get(record.kind, 0) + record.times
    brokers = sorted({r.broker for r in findings.records if r.broker is not None})
    data: dict[str, list[Any]] = {
        "row": [f"broker {broker}" for broker, _ in cells],
        "left": [findings.start + bucket * width for _, bucket in cells],
        "right": [findings.start + (bucket + 1) * width for _, bucket in cells],
        "heat": [sqrt(sum(cell.values())) for cell in cells.values()],
        "from": [clock(findings.start + bucket * width) for _, bucket in cells],
        "what": [_trouble(cell) for cell in cells.values()],
    }
    picture: Any = figure(
        x_axis_type="datetime",
        x_range=timeline.x_range,
        y_range=FactorRange(factors=[f"broker {broker}" for broker in reversed(brokers)] or ["nothing"]),
        height=110 + 26 * len(brokers),
        sizing_mode=_WIDTH,
        tools="xpan,xwheel_zoom,xbox_zoom,reset",
        active_drag="xbox_zoom",
        title="Trouble that each broker reported: ISR shrinks, broken connections, sessions, refused appends",
        min_border_left=timeline.min_border_left,
    )
    palette = ["#fff3e0", "#ffe0b2", "#ffcc80", "#ffb74d", "#ff9800", "#f57c00", "#e65100", "#bf360c", "#8d1d04"]
    mapper = LinearColorMapper(palette=palette, low=0, high=max([1.0, *data["heat"]]))
    drawn = picture.quad(
        left="left",
        right="right",
        bottom={"field": "row", "transform": _offset(-0.42, picture)},
        top={"field": "row", "transform": _offset(0.42, picture)},
        fill_color={"field": "heat", "transform": mapper},
        line_color=None,
        source=ColumnDataSource(data),
    )
    picture.add_tools(HoverTool(renderers=[drawn], tooltips=[("", "@row"), ("from", "@from"), ("", "@what")]))
    _plain(picture)
    return picture


def _offset(value: float, picture: Any) -> Any:
    from bokeh.models import Dodge

    return Dodge(value=value, range=picture.y_range)


def _trouble(cell: dict[str, int]) -> str:
    return ", ".join(f"{count} {TROUBLE[kind]}" for kind, count in sorted(cell.items()))


def _plain(picture: Any) -> None:
    """Quiet axes: the bars are the message."""
    picture.toolbar.logo = None
    picture.ygrid.grid_line_color = None
    picture.xgrid.grid_line_color = "#eceff1"
    picture.outline_line_color = None
    picture.title.text_font_size = "13px"
    picture.title.text_color = "#37474f"
    picture.yaxis.axis_line_color = None
    picture.yaxis.major_tick_line_color = None
    picture.axis.minor_tick_line_color = None
    picture.axis.major_label_text_color = "#455a64"
    picture.min_border_left = 130
