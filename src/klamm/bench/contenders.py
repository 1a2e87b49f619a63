"""The controllers that `klamm bench controller` compares: one process each, without replicas, with default settings.

Both write their logs and events by default. Apache Kafka runs with the flags of its own start script, but its heap may
grow to four times the script's size: with 100,000 partitions in one gigabyte the figures would measure its garbage
collector.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import orjson

from klamm.bench.processes import cpu_seconds
from klamm.bench.stubs import BenchFailed
from klamm.server.broker_process import BrokerProcess, KlammBroker
from klamm.testing.apache_kafka import ApacheKafkaBroker
from klamm.testing.kafka_jars import VERSIONS, JarsMissing, kafka_jars

KAFKA: Final = "apache-kafka-"
RIVALS: Final = tuple(f"{KAFKA}{version}" for version in VERSIONS)
CONTROLLER_ID: Final = 100
"""Above the ids of all stubs; placement never chooses it."""
INTER_BROKER_PROTOCOL: Final = "2.5"
HEAP: Final = ("-Xms1g", "-Xmx4g")
JVM_FLAGS: Final = (
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-XX:MaxInlineLevel=15",
    "-Djava.awt.headless=true",
)
_LEVELS: Final = {"2.5.1": "TRACE", "3.9.1": "INFO"}
"""Default level of the state-change log by version. Both log the controller at TRACE."""
_LOG_LINE: Final = "[%d] %p %m (%c)%n"


class Events(NamedTuple):
    written: int
    longest_hold_ms: float | None
    """The longest time that the event loop was blocked; 0 if never long enough for an event, None without a loop."""
    longest_busy_ms: float | None = None
    """The longest time that the loop's own thread worked while the loop was blocked; other processes used the rest."""


class Contender:
    """A controller process, seen from outside."""

    has_event_loop = False

    def __init__(self, name: str, process: BrokerProcess, settings: dict[str, str]) -> None:
        self.name = name
        self.process = process
        self.settings = settings
        self._events_seen: dict[int, int] = {}

    def launch(self, zookeeper: str) -> None:
        self.process.zookeeper = zookeeper
        self.process.launch()

    async def stop(self) -> None:
        await self.process.stop()

    def require_alive(self) -> None:
        if not self.process.alive:
            lines = [line for line in self.process.log_text().splitlines() if line.strip()]
            raise BenchFailed(f"{self.name} ended during the benchmark: {lines[-1] if lines else 'no output'}")

    def cpu_seconds(self) -> float:
        """User and system time of the process so far; 0 before it runs."""
        return cpu_seconds(self.process.pid) if self.process.alive else 0.0

    def resident_mb(self) -> float:
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20

    def new_events(self) -> Events:
        """The events written since the last call. Read line by line, because at TRACE the files grow by gigabytes."""
        written, longest, busiest = 0, 0.0, 0.0
        for path in self.event_files():
            with path.open("rb") as file:
                inode = os.fstat(file.fileno()).st_ino  # its name changes every hour
                file.seek(self._events_seen.get(inode, 0))
                for line in file:
                    written += 1
                    if self.has_event_loop and b'"loop-held"' in line:
                        held = orjson.loads(line)
                        longest = max(longest, held["duration_ms"])
                        busiest = max(busiest, held["counts"]["busy_ms"])
                self._events_seen[inode] = file.tell()
        if not self.has_event_loop:
            return Events(written, None)
        return Events(written, round(longest, 1), busiest)

    def event_files(self) -> list[Path]:
        """The current event file and the hourly ones before it."""
        return sorted(self.process.directory.glob("state-change.log*"))


class ShippedKlamm(KlammBroker):
    """A broker with default settings."""

    def default_properties(self) -> dict[str, str | int]:
        return _without(super().default_properties(), "zookeeper.session.timeout.ms")


class KlammContender(Contender):
    has_event_loop = True

    def __init__(self, directory: Path) -> None:
        process = ShippedKlamm(CONTROLLER_ID, "", directory / "klamm", {"klamm.controller.only": "true"})
        super().__init__("klamm", process, {"logs": "state-change.log and state-change.json on"})

    def event_files(self) -> list[Path]:
        return [path for path in (self.process.data_directory / "state-change.json",) if path.exists()]


class ShippedApacheKafka(ApacheKafkaBroker):
    """A broker with default settings and the flags of its own start script."""

    heap: Sequence[str] = ("-Xms1g", "-Xmx1g")

    def command(self) -> Sequence[str]:
        log_config = self.directory / "log4j.properties"
        log_config.write_text(_log4j(self.directory, _LEVELS[self.version]))
        jars = ("-cp", f"{kafka_jars(self.version)}/*")
        logging = f"-Dlog4j.configuration=file:{log_config}"
        return ["java", *self.heap, *JVM_FLAGS, logging, *jars, "kafka.Kafka", str(self.properties_file)]

    def default_properties(self) -> dict[str, str | int]:
        shipped = _without(BrokerProcess.default_properties(self), "zookeeper.session.timeout.ms")
        return {**shipped, "inter.broker.protocol.version": INTER_BROKER_PROTOCOL}


def require_kafka(name: str) -> str:
    """The version that a rival's name says. Raises BenchFailed if it is unknown, or Java or the jars are missing."""
    version = name.removeprefix(KAFKA)
    if name not in RIVALS:
        raise BenchFailed(f"unknown rival {name}; choose one of {', '.join(RIVALS)}")
    if shutil.which("java") is None:
        raise BenchFailed("Java not found: install Java 17 to run Apache Kafka")
    try:
        kafka_jars(version)
    except JarsMissing as missing:
        raise BenchFailed(str(missing)) from None
    return version


def kafka_contender(name: str, directory: Path) -> Contender:
    """Raises BenchFailed as `require_kafka` does."""
    version = require_kafka(name)
    settings = {
        "heap": " ".join(HEAP),
        "heap_of_its_start_script": " ".join(ShippedApacheKafka.heap),
        "flags": " ".join(JVM_FLAGS),
        "inter.broker.protocol.version": INTER_BROKER_PROTOCOL,
        "logs": f"state-change.log at {_LEVELS[version]}, controller.log at TRACE",
    }
    process = ShippedApacheKafka(version, CONTROLLER_ID, "", directory / name)
    process.heap = HEAP
    return Contender(name, process, settings)


def _log4j(directory: Path, state_change_level: str) -> str:
    """Log levels, layout and hourly files as in Kafka's distribution."""
    lines = ["log4j.rootLogger=INFO, stdout, server", "log4j.appender.stdout=org.apache.log4j.ConsoleAppender"]
    for name in ("server", "controller", "state-change"):
        lines += [
            f"log4j.appender.{name}=org.apache.log4j.DailyRollingFileAppender",
            f"log4j.appender.{name}.DatePattern='.'yyyy-MM-dd-HH",
            f"log4j.appender.{name}.File={directory / name}.log",
        ]
    for name in ("stdout", "server", "controller", "state-change"):
        lines += [
            f"log4j.appender.{name}.layout=org.apache.log4j.PatternLayout",
            f"log4j.appender.{name}.layout.ConversionPattern={_LOG_LINE}",
        ]
    for logger, level, name in (
        ("kafka.controller", "TRACE", "controller"),
        ("state.change.logger", state_change_level, "state-change"),
    ):
        lines += [f"log4j.logger.{logger}={level}, {name}", f"log4j.additivity.{logger}=false"]
    return "".join(f"{line}\n" for line in lines)


def _without(properties: dict[str, str | int], *keys: str) -> dict[str, str | int]:
    return {key: value for key, value in properties.items() if key not in keys}
