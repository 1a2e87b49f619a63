"""An ingest in a process of its own that kills itself, with its JVM, at a named point: `python lake_driver.py '{...}'`.

The argument has the fields of IngestOptions that tests set, `point` and `times`: at which call of the point it ends.
At BEFORE_COMMIT the files of a batch are written and its commit is not: only Delta's log store knows that moment, so
KillingLogStore.java, in the jar `hook`, sends the signal there: KILL, or STOP to suspend the process.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from klamm.pipelines.ingest import run_ingest
from klamm.pipelines.ingest_options import IngestOptions
from klamm.pipelines.lake_state import LakeError
from klamm.pipelines.s3 import LOG_STORE, SCHEME
from klamm.pipelines.spark_session import SparkOptions

BEFORE_COMMIT = "before-commit"
HDFS_LOG_STORE = "io.delta.storage.HDFSLogStore"


def killer(point: str | None, times: int) -> Callable[[str, str], None]:
    calls: list[str] = []

    def at(name: str, _topic: str) -> None:
        if name == point:
            calls.append(name)
            if len(calls) == times:
                os.killpg(os.getpgrp(), signal.SIGKILL)

    return at


def killing_log_store(lake: str, times: int, signal_name: str) -> dict[str, str]:
    """The settings of Spark that send this process group a signal before the commit of a batch."""
    scheme = lake.partition("://")[0] if "://" in lake else "file"
    return {
        f"spark.delta.logStore.{scheme}.impl": "klamm.test.KillingLogStore",
        "spark.hadoop.klamm.test.store": LOG_STORE if scheme == SCHEME else HDFS_LOG_STORE,
        "spark.hadoop.klamm.test.times": str(times),
        "spark.hadoop.klamm.test.group": str(os.getpgrp()),
        "spark.hadoop.klamm.test.signal": signal_name,
    }


def main() -> int:
    given: dict[str, Any] = json.loads(sys.argv[1])
    point, times, hook = given.pop("point", None), given.pop("times", 1), given.pop("hook", None)
    signal_name = given.pop("signal", "KILL")
    spark = given.pop("spark")
    if point == BEFORE_COMMIT:
        spark["conf"] = {**spark["conf"], **killing_log_store(given["lake"], times, signal_name)}
        spark["packages"] = [Path(hook)]
    try:
        reports = run_ingest(IngestOptions(**given, spark=SparkOptions(**spark), at_point=killer(point, times)))
    except LakeError as e:
        print(f"klamm: {e}", file=sys.stderr)
        return 1
    print(json.dumps([asdict(report) for report in reports]))
    return int(any(report.failure for report in reports))


if __name__ == "__main__":
    sys.exit(main())
