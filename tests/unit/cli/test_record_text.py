"""Records as lines, there and back."""

from __future__ import annotations

import orjson
import pytest

from klamm.cli.record_text import BadLine, Form, line_of, parse
from klamm.model.ids import TopicPartition
from klamm.wire.records import Record

PLACE = TopicPartition("t", 3)


@pytest.mark.parametrize(
    "record",
    [
        Record(b"k", b"v", 5, (("h", b"x"), ("n", None)), 7),
        Record(None, None, 5, (), 7),
        Record(b"\xff", b"\x00\xfe", 5, (("b", b"\xff"),), 7),
    ],
    ids=["text", "nulls", "bytes"],
)
def test_a_json_line_reads_back_as_the_same_record(record: Record) -> None:
    parsed = parse(line_of(PLACE, record, Form.JSON, b""), Form.JSON, b"", (), 0)
    assert parsed.record == record._replace(offset=parsed.record.offset)
    assert parsed.partition == 3


def test_values_in_json_may_be_documents() -> None:
    parsed = parse(b'{"value": {"n": [1, 2]}}', Form.JSON, b"", (("all", b"yes"),), 9)
    assert parsed.record == Record(None, b'{"n":[1,2]}', 9, (("all", b"yes"),))
    assert orjson.loads(line_of(PLACE, parsed.record, Form.JSON, b""))["headers"] == {"all": "yes"}


@pytest.mark.parametrize(
    ("form", "line", "key", "value"),
    [
        (Form.TEXT, b"a:b:c", b"a", b"b:c"),
        (Form.TEXT, b"abc", None, b"abc"),
        (Form.HEX, b"61:00ff", b"a", b"\x00\xff"),
        (Form.HEX, b"00FF", None, b"\x00\xff"),
    ],
)
def test_keys_stand_before_the_separator(form: Form, line: bytes, key: bytes | None, value: bytes) -> None:
    parsed = parse(line, form, b":", (), 1)
    assert (parsed.record.key, parsed.record.value, parsed.partition) == (key, value, None)
    if key is not None:
        assert line_of(PLACE, parsed.record, form, b":") == line


@pytest.mark.parametrize(
    ("form", "line"),
    [
        (Form.HEX, b"abc"),
        (Form.HEX, b"zz"),
        (Form.JSON, b"{"),
        (Form.JSON, b"[1]"),
        (Form.JSON, b'{"headers": 3}'),
        (Form.JSON, b'{"value": {"base64": "?"}}'),
        (Form.JSON, b'{"partition": "x"}'),
    ],
)
def test_what_is_no_record(form: Form, line: bytes) -> None:
    with pytest.raises(BadLine):
        parse(line, form, b"", (), 0)
