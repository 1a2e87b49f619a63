"""An incident report: find the logs, read them with an engine, analyse, write tables and page in one step."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from klamm.model.errors import KlammError
from klamm.pipelines.incidents.analysis.findings import Findings, analyse
from klamm.pipelines.incidents.local_engine import read_locally
from klamm.pipelines.incidents.reading import Logs, join
from klamm.pipelines.incidents.sources import LogFile, find_logs
from klamm.pipelines.incidents.spark_engine import read_with_spark
from klamm.pipelines.incidents.tables import Table, make_tables, write_parquet

PAGE: Final = "report.html"
TABLES: Final = "tables"
SPARK_BYTES: Final = 20 * 1024**3
"""Below this, measured on one machine, Spark takes longer to start than local processes take to read."""


class IncidentError(KlammError):
    """A report that cannot be made."""


class Options(NamedTuple):
    paths: Sequence[Path]
    out: Path
    engine: str = "auto"
    master: str = "local[*]"
    start: int | None = None
    end: int | None = None


class Report(NamedTuple):
    engine: str
    findings: Findings
    logs: Logs
    tables: dict[str, Table]

    @property
    def problems(self) -> list[str]:
        return [f"{file.path}: {file.problem}" for file in self.logs.files if file.problem]


def make_report(options: Options) -> Report:
    """Reads and analyses. Writes nothing."""
    files = find_logs(options.paths)
    if not files:
        named = ", ".join(map(str, options.paths))
        raise IncidentError(
            f"no log in {named}: name files, or directories that hold state-change.log, controller.log and server.log"
        )
    engine = chosen(options.engine, files)
    results = read_with_spark(files, options.master) if engine == "spark" else read_locally(files)
    logs = join(files, results)
    if not any(file.entries for file in logs.files):
        reasons = "; ".join(f"{file.path}: {file.problem or 'it is empty'}" for file in logs.files[:3])
        raise IncidentError(f"nothing to report: {reasons}")
    findings = analyse(logs.records, logs.writers, options.start, options.end)
    return Report(engine, findings, logs, make_tables(findings, logs))


def chosen(engine: str, files: Sequence[LogFile]) -> str:
    """What `auto` means for these files. A gzipped log holds about ten times its size."""
    if engine != "auto":
        return engine
    return "spark" if sum(f.size * (10 if f.compressed else 1) for f in files) > SPARK_BYTES else "local"


def check_out(out: Path) -> None:
    """Refuse, before any work, to replace something that is not a report."""
    if out.exists() and not out.is_dir():
        raise IncidentError(f"{out} is a file: --out names the directory of the report")
    if out.is_dir() and any(out.iterdir()) and not (out / PAGE).is_file():
        raise IncidentError(f"{out} holds something else than a report: name a new directory")
    if not out.absolute().parent.is_dir():
        raise IncidentError(f"{out.absolute().parent} does not exist")


def write_report(report: Report, out: Path) -> None:
    """All of it or nothing: written beside, then put in place."""
    from klamm.pipelines.incidents.page import render

    check_out(out)
    beside = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.absolute().parent))
    try:
        beside.chmod(0o755)
        (beside / TABLES).mkdir()
        write_parquet(report.tables, beside / TABLES)
        (beside / PAGE).write_text(render(report.findings, report.tables), encoding="utf-8")
        if out.exists():
            shutil.rmtree(out)
        os.replace(beside, out)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
