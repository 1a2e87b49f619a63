"""The ranges of a batch, from the files that Spark writes to a checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest

from klamm.pipelines.batch_ranges import planned_ranges
from klamm.pipelines.lake_directory import LocalDirectory
from klamm.pipelines.lake_state import LakeError, OffsetRange


def checkpoint(directory: Path, *ends: str) -> LocalDirectory:
    (directory / "sources" / "0").mkdir(parents=True)
    (directory / "sources" / "0" / "0").write_text('\0v1\n{"orders":{"0":4,"1":0}}')
    (directory / "offsets").mkdir()
    for batch, line in enumerate(ends):
        (directory / "offsets" / str(batch)).write_text(f'v1\n{{"batchWatermarkMs":0}}\n{line}')
    return LocalDirectory(directory)


def test_a_batch_begins_where_the_one_before_ended(tmp_path: Path) -> None:
    directory = checkpoint(tmp_path, '{"orders":{"1":3,"0":9}}', '{"orders":{"1":3,"0":12,"2":5}}')
    assert planned_ranges(directory, 0, "orders") == {0: OffsetRange(4, 9), 1: OffsetRange(0, 3)}
    # partition 2 was added between the two batches
    assert planned_ranges(directory, 1, "orders") == {0: OffsetRange(9, 12), 1: OffsetRange(3, 3), 2: OffsetRange(0, 5)}


@pytest.mark.parametrize("line", ['{"other":{"0":1}}', '{"orders":{"0":1},"other":{"0":1}}', "-", "[]", "{"])
def test_what_is_not_understood_is_not_guessed(tmp_path: Path, line: str) -> None:
    with pytest.raises(LakeError, match="batch 0"):
        planned_ranges(checkpoint(tmp_path, line), 0, "orders")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(LakeError, match="offsets/1"):
        planned_ranges(checkpoint(tmp_path, '{"orders":{"0":9,"1":3}}'), 1, "orders")
