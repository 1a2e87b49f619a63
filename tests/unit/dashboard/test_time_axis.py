"""Time axes: round ticks, a lane for each kind, and nothing outside of them."""

from __future__ import annotations

import re

import pytest

from klamm.dashboard.time_axis import DAY, HOUR, MARKS_MAX, MINUTE, TICKS_MAX, Mark, Span, marks_axis, spans_axis, ticks

START_MS = 1_700_000_123_456


@pytest.mark.parametrize("seconds", [0, 1, 7, 45, 5 * MINUTE, 3 * HOUR, 2 * DAY, 40 * DAY, 5_000 * DAY])
def test_ticks_are_few_and_inside(seconds: int) -> None:
    end_ms = START_MS + seconds * 1000
    found = ticks(START_MS, end_ms)
    assert len(found) <= TICKS_MAX + 1
    assert all(START_MS <= tick.time_ms <= end_ms for tick in found)
    assert len(found) >= 2 or seconds < 3


def test_marks_are_on_the_lane_of_their_kind() -> None:
    marks = [
        Mark(10_000, "broker", "<b>"),
        Mark(20_000, "topic", "t"),
        Mark(99_000, "topic", "late"),
        Mark(1, "x", "x"),
    ]
    drawn = marks_axis(marks, ["broker", "topic"], 10_000, 20_000, "changes")
    places = re.findall(r'class="mark (\w+)" x="([\d.]+)" y="(\d+)"', drawn)
    assert places == [("broker", "80.0", "4"), ("topic", "897.5", "26")]
    assert "<b>" not in drawn and "late" not in drawn
    assert marks_axis([Mark(1, "a", "")] * (MARKS_MAX + 5), ["a"], 0, 2, "").count('class="mark') == MARKS_MAX


def test_spans_fill_their_lane_and_their_text_fits() -> None:
    spans = [
        Span(0, 99_000, "first", ("broker 1, epoch 1", "broker 1", "1")),
        Span(99_000, 100_000, "second", ("broker 2", "2"), "now"),
    ]
    drawn = spans_axis(spans, "terms")
    assert re.findall(r'x="([\d.]+)" y="4" width="([\d.]+)"', drawn) == [("0.0", "891.0"), ("891.0", "9.0")]
    assert re.findall(r'y="21">([^<]*)<', drawn) == ["broker 1, epoch 1", ""]
    assert spans_axis([], "terms") == ""
