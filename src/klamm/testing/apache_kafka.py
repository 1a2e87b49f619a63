"""Apache Kafka in klamm's tests: its brokers, its tools, and clusters that mix both kinds of brokers.

    brokers = [ApacheKafkaBroker("2.5.1", 1, zookeeper, path / "1"), KlammBroker(2, zookeeper, path / "2")]
    async with MixedCluster(brokers).running() as cluster:
        await run_tool("2.5.1", "kafka.admin.TopicCommand", "--bootstrap-server", cluster.bootstrap, "--list")

A JVM broker writes server.log, controller.log and state-change.log into its directory, the last two at TRACE.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

from klamm.pipelines.class_archive import archive_options, java_build
from klamm.server.broker_process import BrokerProcess
from klamm.testing.kafka_jars import kafka_jars
from klamm.zookeeper.server.child import dying_with_us

_JVM_FLAGS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto", "-Djava.awt.headless=true")
_TOOL_TIMEOUT = 60.0

_LOG_CONFIG = """\
log4j.rootLogger=INFO, server, stdout
log4j.appender.stdout=org.apache.log4j.ConsoleAppender
log4j.appender.stdout.layout=org.apache.log4j.PatternLayout
log4j.appender.stdout.layout.ConversionPattern=[%d] %p %m (%c)%n
{files}
log4j.logger.kafka.controller=TRACE, controller
log4j.additivity.kafka.controller=false
log4j.logger.state.change.logger=TRACE, state-change
log4j.additivity.state.change.logger=false
"""
_LOG_FILE = """\
log4j.appender.{name}=org.apache.log4j.FileAppender
log4j.appender.{name}.File={path}
log4j.appender.{name}.layout=org.apache.log4j.PatternLayout
log4j.appender.{name}.layout.ConversionPattern=[%d] %p %m (%c)%n
"""
_TOOL_LOG_CONFIG = """\
log4j.rootLogger=WARN, stderr
log4j.appender.stderr=org.apache.log4j.ConsoleAppender
log4j.appender.stderr.Target=System.err
log4j.appender.stderr.layout=org.apache.log4j.PatternLayout
log4j.appender.stderr.layout.ConversionPattern=[%d] %p %m (%c)%n
"""


def _java(
    version: str,
    heap_mb: int,
    log_config: Path,
    main_class: str,
    arguments: Sequence[str],
    flags: Sequence[str],
) -> list[str]:
    return [
        "java",
        *flags,
        f"-Xmx{heap_mb}m",
        f"-Dlog4j.configuration=file:{log_config}",
        *("-cp", f"{kafka_jars(version)}/*"),
        main_class,
        *arguments,
    ]


def class_archive(version: str) -> Path:
    """The JVM of brokers and tools reads classes from this file, if `klamm.testing.class_archive` has made it."""
    build = hashlib.sha256(java_build().encode()).hexdigest()[:16]
    return kafka_jars(version).with_name(f"apache-kafka-{version}-{build}.jsa")


def _quick_flags(version: str) -> tuple[str, ...]:
    return (*_JVM_FLAGS, *archive_options(class_archive(version)).split())


class ApacheKafkaBroker(BrokerProcess):
    ready = re.compile(r"(\[KafkaServer id=\d+\] started)")

    def __init__(
        self,
        version: str,
        broker_id: int,
        zookeeper: str,
        directory: Path,
        *,
        inter_broker_protocol: str = "2.5",
        heap_mb: int = 256,
        properties: Mapping[str, str | int] | None = None,
        archived: bool = True,
    ) -> None:
        """With `archived`, it starts from the class archive, which a Kafka as shipped does not have."""
        super().__init__(broker_id, zookeeper, directory, properties)
        self._archived = archived
        self.version = version
        self._inter_broker_protocol = inter_broker_protocol
        self._heap_mb = heap_mb

    def command(self) -> Sequence[str]:
        files = (
            _LOG_FILE.format(name=name, path=self.directory / f"{name}.log")
            for name in ("server", "controller", "state-change")
        )
        log_config = self.directory / "log4j.properties"
        log_config.write_text(_LOG_CONFIG.format(files="".join(files)))
        flags = _quick_flags(self.version) if self._archived else _JVM_FLAGS
        return _java(self.version, self._heap_mb, log_config, "kafka.Kafka", [str(self.properties_file)], flags)

    def last_words(self, output: str) -> str:
        return "\n".join(output.splitlines()[-15:])

    def default_properties(self) -> dict[str, str | int]:
        return {
            **super().default_properties(),
            "inter.broker.protocol.version": self._inter_broker_protocol,
            "offsets.topic.replication.factor": 1,
            "offsets.topic.num.partitions": 4,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "transaction.state.log.num.partitions": 4,
            "group.initial.rebalance.delay.ms": 0,
            "log.cleaner.dedupe.buffer.size": 8 * 1024 * 1024,  # the default of 128 MB does not fit a small heap
            "num.network.threads": 2,
            "num.io.threads": 4,
        }

    def state_change_log(self) -> str:
        path = self.directory / "state-change.log"
        return path.read_text(errors="replace") if path.exists() else ""


class ToolResult(NamedTuple):
    code: int
    output: str
    errors: str


async def run_tool(
    version: str,
    main_class: str,
    *arguments: str,
    stdin: str = "",
    timeout: float = _TOOL_TIMEOUT,
    check: bool = True,
    heap_mb: int = 128,
    flags: Sequence[str] | None = None,
) -> ToolResult:
    """Run one of Kafka's main classes (kafka.admin.TopicCommand, kafka.tools.DumpLogSegments, ...) until it ends. A
    path of a Java source file works too.

    Some of them exit with code 0 even if they fail, so the caller must check the output. Use `check=False` for a tool
    that should fail.
    """
    chosen = _quick_flags(version) if flags is None else flags
    with tempfile.TemporaryDirectory(prefix="klamm-tool-") as directory:
        log_config = Path(directory) / "log4j.properties"
        log_config.write_text(_TOOL_LOG_CONFIG)
        process = await asyncio.create_subprocess_exec(
            *dying_with_us(_java(version, heap_mb, log_config, main_class, arguments, chosen)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            process_group=0,
        )
        try:
            output, errors = await asyncio.wait_for(process.communicate(stdin.encode()), timeout)
        except TimeoutError:
            raise AssertionError(f"{main_class} {' '.join(arguments)} did not end within {timeout:g} s") from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    assert process.returncode is not None
    result = ToolResult(process.returncode, output.decode(errors="replace"), errors.decode(errors="replace"))
    assert not check or result.code == 0, f"{main_class} ended with code {result.code}:\n{result.output}{result.errors}"
    return result


class MixedCluster:
    """Brokers of either kind on one ZooKeeper, which the caller runs."""

    def __init__(self, brokers: Sequence[BrokerProcess]) -> None:
        self.brokers = {broker.id: broker for broker in brokers}

    def __getitem__(self, broker_id: int) -> BrokerProcess:
        return self.brokers[broker_id]

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.address for broker in self.brokers.values())

    @property
    def alive(self) -> list[int]:
        return sorted(broker.id for broker in self.brokers.values() if broker.alive)

    async def start(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for broker in self.brokers.values():
                tasks.create_task(broker.start())

    async def kill(self) -> None:
        for broker in self.brokers.values():
            await broker.kill()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[MixedCluster]:
        """Kills the brokers at the end: a controlled shutdown takes seconds, and no leadership has to survive."""
        try:
            await self.start()
            yield self
        finally:
            await self.kill()
            for broker in self.brokers.values():
                broker.release_ports()
