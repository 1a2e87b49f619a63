"""A log file rotates and says in each file whose log it is."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from klamm.telemetry.log_file import HEADING, LogFile


@pytest.fixture
def log(tmp_path: Path) -> Iterator[logging.Logger]:
    handler = LogFile(str(tmp_path / "broker.log"), bytes_max=30, kept=2)
    handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    logger = logging.getLogger("a test of log files")
    logger.propagate = False
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    yield logger
    logger.removeHandler(handler)
    handler.close()


def test_every_file_begins_with_the_heading(log: logging.Logger, tmp_path: Path) -> None:
    log.info("klamm 1", extra=HEADING)
    log.info("cluster abc", extra=HEADING)
    for number in range(4):
        log.info("a line of the log, number %d", number)
    heading = "INFO klamm 1\nINFO cluster abc\n"
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        "broker.log": f"{heading}INFO a line of the log, number 3\n",
        "broker.log.1": f"{heading}INFO a line of the log, number 2\n",
        "broker.log.2": f"{heading}INFO a line of the log, number 1\n",
    }


def test_a_full_disk_does_not_stop_the_process(
    log: logging.Logger, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(_text: str) -> None:
        raise OSError("no space left on device")

    handler = next(each for each in log.handlers if isinstance(each, LogFile))
    with monkeypatch.context() as patch:
        patch.setattr(handler._file, "write", full)
        log.info("lost")
    assert "no space left on device" in capsys.readouterr().err
    log.info("written")
