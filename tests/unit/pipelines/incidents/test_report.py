# ruff: noqa: E501 - entries stand here as brokers write them
"""The command, its tables and its page, from a small story that is told in the logs of three brokers."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pyarrow.parquet
import pytest
from typer.testing import CliRunner

from klamm.cli.app import app
from klamm.pipelines.incidents.report import Options, make_report, write_report

HOSTILE = "</script><img src=x onerror=alert(1)>"


def line(second: float, message: str) -> str:
    return f"[2026-11-15 21:{int(second) // 60:02}:{int(second) % 60:02},{round(second * 1000) % 1000:03}] INFO {message}\n"


def state(leader: int, epoch: int, isr: str, version: int) -> str:
    return f"with state LeaderAndIsr(leader={leader}, leaderEpoch={epoch}, isr=List({isr}), zkVersion={version})"


def write_story(directory: Path) -> None:
    """Broker 2 leads a-0 and dies at 21:01:00. Broker 1, the controller, notices after 6 s and elects broker 3."""
    settings = "KafkaConfig values: \n\tzookeeper.session.timeout.ms = 6000\n\treplica.lag.time.max.ms = 1500\n"
    logs = {
        "b1/controller.log": [
            (1, "[Controller id=1] 1 successfully elected as the controller. Epoch incremented to 1 and epoch zk"),
            (66, "[Controller id=1] Newly added brokers: , deleted brokers: 2, bounced brokers: , all live brokers: 1,3"),
        ],
        "b1/state-change.log": [
            (2, f"[Controller id=1 epoch=1] Changed partition a-0 from NewPartition to OnlinePartition {state(2, 0, '2, 3', 0)}"),
            (66.5, f"[Controller id=1 epoch=1] Changed partition a-0 from Offline to Online {state(3, 1, '3', 1)}"),
            (90, "[Controller id=1 epoch=1] A sentence that nobody knows 17 (state.change.logger)"),
        ],
        "b1/server.log": [(0, settings), (100, "[KafkaServer id=1] Cluster ID = x (kafka.server.KafkaServer)")],
        "b3/server.log": [
            (60.1, "[ReplicaFetcher replicaId=3, leaderId=2, fetcherId=0] Node 2 disconnected. (x.NetworkClient)"),
            (67, "[Partition a-0 broker=3] a-0 starts at leader epoch 1 from offset 0 with high watermark 0. Previous"),
        ],
        "b2/server.log": [(2.1, "[Partition a-0 broker=2] a-0 starts at leader epoch 0 from offset 0 with high watermark 0.")],
    }  # fmt: skip
    for name, entries in logs.items():
        path = directory / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join(line(*entry) for entry in entries))


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    directory = tmp_path / "logs"
    directory.mkdir()
    write_story(directory)
    return directory


def run(*arguments: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["incidents", "report", *map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr


def test_the_command_writes_tables_and_a_page(logs: Path, tmp_path: Path) -> None:
    code, printed, errors = run(logs, "--out", tmp_path / "r", "--json")
    assert (code, errors) == (0, "")
    told = json.loads(printed)
    (outage,) = told["outages"]
    assert (outage["topic"], outage["partition"], outage["broker"], outage["how"]) == ("a", 0, 2, "killed")
    assert (outage["seconds"], outage["detect"], outage["elect"], outage["propagate"]) == (6.9, 5.9, 0.5, 0.5)
    assert told["engine"] == "local"
    assert told["not_understood"] == [{"shape": "A sentence that nobody knows N (state.change.logger)", "times": 1}]
    table = pyarrow.parquet.read_table(tmp_path / "r" / "tables" / "outages.parquet")
    assert table.column("seconds").to_pylist() == [6.9]
    assert str(table.schema.field("start").type) == "timestamp[ms, tz=UTC]"
    written = {path.stem for path in (tmp_path / "r" / "tables").iterdir()}
    assert written == {*told} - {"page", "engine", "summary", "missing"} | {"partition_states"}
    page = (tmp_path / "r" / "report.html").read_text()
    assert "1 partition (a-0) had no leader for up to 6.9 s" in page
    assert "A sentence that nobody knows N" in page


def test_the_printed_summary_names_the_worst(logs: Path, tmp_path: Path) -> None:
    code, printed, _ = run(logs, "--out", tmp_path / "r")
    assert code == 0
    assert " was lost 1 time, and the controller changed 0 times. 1 partition was unavailable for 6.9 s" in printed
    assert str(tmp_path / "r" / "report.html") in printed


def test_an_older_report_is_replaced_and_anything_else_is_not(logs: Path, tmp_path: Path) -> None:
    for _ in range(2):
        assert run(logs, "--out", tmp_path / "r")[0] == 0
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("x")
    code, _, errors = run(logs, "--out", tmp_path / "mine")
    assert (code, errors) == (
        1,
        f"klamm: {tmp_path / 'mine'} holds something else than a report: name a new directory\n",
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["logs", "mine", "r"], "nothing half-written stays"


def test_a_damaged_file_is_one_line_and_exit_1_and_the_report_has_the_rest(logs: Path, tmp_path: Path) -> None:
    damaged = logs / "b1" / "server.log.1.gz"
    damaged.write_bytes(b"\x1f\x8b\x08\x00")
    code, printed, errors = run(logs, "--out", tmp_path / "r")
    assert (code, errors.count("\n")) == (1, 1)
    assert errors.startswith(f"klamm: {damaged}: it is cut off")
    assert "unavailable for 6.9 s" in printed


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--from", "yesterday"], 2, "is not a time such as"),
        (["--from", "2026-01-02", "--to", "2026-01-01"], 2, "--from is not before --to"),
        (["--engine", "abacus"], 2, "abacus"),
    ],
)
def test_wrong_usage(logs: Path, tmp_path: Path, arguments: list[str], code: int, said: str) -> None:
    found, _, errors = run(logs, "--out", tmp_path / "r", *arguments)
    assert found == code
    assert said in errors.replace("│", "").replace("\n", " ")
    assert not (tmp_path / "r").exists()


def test_nothing_to_read_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    code, _, errors = run(tmp_path / "empty", "--out", tmp_path / "r")
    assert (code, errors.count("\n")) == (1, 1)
    assert "no log in" in errors
    (tmp_path / "empty" / "server.log").write_bytes(bytes(100))
    code, _, errors = run(tmp_path / "empty", "--out", tmp_path / "r")
    assert (code, errors.count("\n")) == (1, 1)
    assert "it is binary" in errors


def test_only_the_asked_time_is_reported(logs: Path, tmp_path: Path) -> None:
    code, printed, _ = run(logs, "--out", tmp_path / "r", "--from", "2026-11-15T21:01:20", "--json")
    assert code == 0
    assert json.loads(printed)["outages"] == []


def test_hostile_names_stay_text_and_the_page_loads_nothing(logs: Path, tmp_path: Path) -> None:
    event = {
        "v": 1, "kind": "state-change", "time_ms": 1794776400000, "broker": 9, "role": "controller",
        "controller_epoch": 1, "topic": HOSTILE, "partition": 0, "from": "x", "to": "y", "leader": -1, "leader_epoch": 0,
        "isr": [9], "zk_version": 0, "cause": HOSTILE,
    }  # fmt: skip
    elected = {**event, "leader": 9, "leader_epoch": 1, "zk_version": 1, "time_ms": 1794776409000}
    (logs / "b1" / "state-change.json").write_text(f"{json.dumps(event)}\n{json.dumps(elected)}\n")
    unknown = f"[Controller id=1 epoch=1] {HOSTILE} (state.change.logger)"
    (logs / "b1" / "state-change.log").rename(logs / "b3" / "state-change.log")
    (logs / "b3" / "controller.log").write_text(line(5, unknown))
    report = make_report(Options([logs], tmp_path / "r"))
    assert HOSTILE in {row["topic"] for row in report.tables["outages"].dicts()}
    write_report(report, tmp_path / "r")
    page = (tmp_path / "r" / "report.html").read_text()
    assert "<img src=x" not in page
    assert page.count("</script>") == 3
    assert "&lt;/script&gt;&lt;img src=x onerror=alert(1)&gt;" in page
    assert "default-src &#39;none&#39;" in page or "default-src 'none'" in page
    without_scripts = re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
    assert re.findall(r"(?:src|href)=|url\(|@import", without_scripts.replace("&lt;", "").replace("src=x", "")) == []
