"""An ingest in a process of its own that kills itself, with its JVM, at a named point: `python lake_driver.py '{...}'`.

The argument has the fields of IngestOptions that tests set, `point` and `times`: at which call of the point it ends.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from klamm.pipelines.ingest import run_ingest
from klamm.pipelines.ingest_options import IngestOptions
from klamm.pipelines.spark_session import SparkOptions

FILES_SEEN = "files-seen"


def end() -> None:
    os.killpg(os.getpgrp(), signal.SIGKILL)


def killer(point: str | None, times: int, table: Path | None) -> Callable[[str], None]:
    calls: list[str] = []

    def watch() -> None:
        """Ends the process when the batch's files are there: before its commit, or just after it."""
        assert table is not None
        before = len(list(table.glob("*.parquet")))
        while len(list(table.glob("*.parquet"))) == before:
            time.sleep(0.001)
        end()

    def at(name: str) -> None:
        if point == FILES_SEEN and name == "before-write":
            calls.append(name)
            if len(calls) == times:
                threading.Thread(target=watch, daemon=True).start()
        elif name == point:
            calls.append(name)
            if len(calls) == times:
                end()

    return at


def main() -> int:
    given: dict[str, Any] = json.loads(sys.argv[1])
    point, times = given.pop("point", None), given.pop("times", 1)
    table = Path(given["lake"], given["topics"][0]) if "://" not in given["lake"] else None
    spark = SparkOptions(**given.pop("spark"))
    reports = run_ingest(IngestOptions(**given, spark=spark, at_point=killer(point, times, table)))
    print(json.dumps([asdict(report) for report in reports]))
    return int(any(report.failure for report in reports))


if __name__ == "__main__":
    sys.exit(main())
