"""Runs one real Apache ZooKeeper server as a child process; `embedded_ensemble` runs three (design D7).

The jars are those that PySpark ships, found without importing it, or those in $KLAMM_ZOOKEEPER_JARS. Only the few jars
that the server needs are on the class path, and it runs with C1 and the serial collector: it is ready in half a second
instead of three. It listens on 127.0.0.1 only, dies with its owner (see `child`), and logs to its data directory.

It is ready when `srvr` answers with a Mode line. An open port is not enough: the JVM accepts connections before it
serves, and a probe then gets no answer, so each probe has a timeout too.
"""

from __future__ import annotations

import asyncio
import glob
import importlib.util
import os
import shutil
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from klamm.zookeeper.server.child import Child, port_is_taken, release_port, reserve_port, start_child

HOST = "127.0.0.1"
_JARS = ("zookeeper-[0-9]*", "zookeeper-jute-*", "slf4j-api-*", "metrics-core-*", "snappy-java-*")
_LOG_JARS = ("log4j-api-*", "log4j-core-*", "log4j-slf4j2-impl-*")  # without them the server works, but does not log
_PROBE_EVERY = 0.015
_PROBE_TIMEOUT = 0.25
_STOP_GRACE = 5.0
_PORT_ATTEMPTS = 5

_LOG_CONFIG = """\
status = error
appender.file.type = RollingFile
appender.file.name = file
appender.file.fileName = {log}
appender.file.filePattern = {log}.%i
appender.file.policies.type = Policies
appender.file.policies.size.type = SizeBasedTriggeringPolicy
appender.file.policies.size.size = 64MB
appender.file.strategy.type = DefaultRolloverStrategy
appender.file.strategy.fileIndex = min
appender.file.strategy.max = 4
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = [%d] %p %m (%c)%n%throwable
rootLogger.level = info
rootLogger.appenderRef.file.ref = file
"""


class ZooKeeperNotStarted(RuntimeError):
    """One line with what failed and the end of the server's own log."""


def _java() -> str | None:
    home = os.environ.get("JAVA_HOME")
    return shutil.which("java", path=f"{home}/bin") if home else shutil.which("java")


def _jar_directories() -> Sequence[Path]:
    found: list[Path] = []
    if configured := os.environ.get("KLAMM_ZOOKEEPER_JARS"):
        found.append(Path(configured))
    pyspark = importlib.util.find_spec("pyspark")
    if pyspark is not None and pyspark.origin is not None:
        found.append(Path(pyspark.origin).parent / "jars")
    return found


def _class_path(jars: Path | None = None) -> list[str] | None:
    for directory in [jars] if jars else _jar_directories():
        needed = [glob.glob(f"{glob.escape(str(directory))}/{pattern}.jar") for pattern in _JARS]
        if all(needed):
            logs = [glob.glob(f"{glob.escape(str(directory))}/{pattern}.jar") for pattern in _LOG_JARS]
            return [sorted(matches)[-1] for matches in needed + (logs if all(logs) else [])]
    return None


def available() -> str | None:
    """None if the real server can run here, otherwise a line that says what to install."""
    if _java() is None:
        return "no Java found: install Java 17 for the real ZooKeeper"
    if _class_path() is None:
        return "no ZooKeeper jars found: install klamm[spark] (PySpark ships them) or set KLAMM_ZOOKEEPER_JARS"
    return None


class EmbeddedZooKeeper:
    """One real server. `kill` and `restart` keep data and port."""

    def __init__(
        self,
        data_dir: Path | str,
        *,
        port: int = 0,
        tick_ms: int = 500,
        min_session_timeout_ms: int = 1_000,
        max_session_timeout_ms: int = 60_000,
        force_sync: bool = True,
        heap_mb: int = 256,
        lasting: bool = False,
        settings: Mapping[str, str | int] | None = None,
        ready_timeout: float = 20.0,
        jars: Path | None = None,
    ) -> None:
        """`force_sync=False` is for tests: the server answers before a write is on disk. `lasting` is for a server that
        outlives a test: it starts a third of a second later, does a third less work per write, and allocates its whole
        heap at once instead of growing it by full collections (ADR 0004). `settings` are further zoo.cfg keys. `jars`
        is a directory with the jars of another release."""
        self.data_dir = Path(data_dir)
        self.port = port
        self._chosen_by_us = port == 0
        self._has_served = False  # from then on clients know the port, so it must not change
        self._settings: dict[str, str | int] = {
            "tickTime": tick_ms,
            "minSessionTimeout": min_session_timeout_ms,
            "maxSessionTimeout": max_session_timeout_ms,
            "forceSync": "yes" if force_sync else "no",
            **(settings or {}),
        }
        self._heap_mb = heap_mb
        self._lasting = lasting
        self._ready_timeout = ready_timeout
        self._jars = jars
        self._child: Child | None = None

    @property
    def connect_string(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child else None

    @property
    def alive(self) -> bool:
        return self._child is not None and self._child.returncode is None

    @property
    def log_path(self) -> Path:
        return self.data_dir / "zookeeper.log"

    async def start(self) -> None:
        """Returns when the server serves. Raises ZooKeeperNotStarted and then leaves nothing running."""
        for attempt in range(1, _PORT_ATTEMPTS + 1):
            try:
                self.launch()
                await self.wait_ready()
                self._has_served = True
                return
            except ZooKeeperNotStarted:
                may_move = self._chosen_by_us and not self._has_served
                stranger = not self.alive and port_is_taken(self.port)
                await self.kill()
                if not (may_move and stranger) or attempt == _PORT_ATTEMPTS:
                    raise
                release_port(self.port)
                self.port = 0
            except BaseException:
                await self.kill()
                raise

    def launch(self) -> None:
        """Start the process without waiting, because the members of an ensemble become ready only together."""
        java, jars = _java(), _class_path(self._jars)
        if java is None or jars is None:
            raise ZooKeeperNotStarted(available() or "")
        assert not self.alive, "already running"
        if self.port == 0:
            self.port = reserve_port()
        elif port_is_taken(self.port):  # checked first, because another ZooKeeper on this port would answer the probe
            raise ZooKeeperNotStarted(f"another process uses port {self.port} of {HOST}")
        self.data_dir.mkdir(parents=True, exist_ok=True)
        config = self.data_dir / "zoo.cfg"
        config.write_text("".join(f"{key}={value}\n" for key, value in self._config().items()))
        log_config = self.data_dir / "log4j2.properties"
        log_config.write_text(_LOG_CONFIG.format(log=self.log_path))
        self._child = start_child(
            [
                java,
                *((f"-Xms{self._heap_mb}m",) if self._lasting else ("-XX:TieredStopAtLevel=1",)),
                "-XX:+UseSerialGC",
                f"-Xmx{self._heap_mb}m",
                f"-Dlog4j2.configurationFile={log_config}",
                "-Dlog4j2.disableJmx=true",
                "-Dzookeeper.jmx.log4j.disable=true",
                *("-cp", ":".join(jars)),
                "org.apache.zookeeper.server.quorum.QuorumPeerMain",
                str(config),
            ],
            log_path=self.data_dir / "output.log",
        )

    def _config(self) -> dict[str, str | int]:
        return {
            "dataDir": str(self.data_dir.absolute() / "data"),
            "clientPort": self.port,
            "clientPortAddress": HOST,
            "maxClientCnxns": 0,
            "admin.enableServer": "false",
            "4lw.commands.whitelist": "srvr,ruok,mntr,cons,wchs,isro",
            "preAllocSize": 2048,
            **self._settings,
        }

    async def wait_ready(self) -> None:
        assert self._child is not None
        deadline = asyncio.get_running_loop().time() + self._ready_timeout
        while await self.mode() is None:
            if (code := self._child.returncode) is not None:
                raise ZooKeeperNotStarted(
                    f"ZooKeeper on port {self.port} ended with exit code {code}: {self._last_words()}"
                )
            if asyncio.get_running_loop().time() > deadline:
                waited = f"was not ready after {self._ready_timeout:g} s"
                raise ZooKeeperNotStarted(f"ZooKeeper on port {self.port} {waited}: {self._last_words()}")
            await asyncio.sleep(_PROBE_EVERY)

    async def mode(self) -> str | None:
        """standalone, leader or follower; None while the server does not serve."""
        answer = await four_letter_word("srvr", self.port)
        for line in answer.splitlines():
            if line.startswith("Mode: "):
                return line.removeprefix("Mode: ")
        return None

    async def stop(self) -> None:
        if self._child is not None:
            await self._child.stop(_STOP_GRACE)

    async def kill(self) -> None:
        """End the server by SIGKILL. Acknowledged writes are safe, and it is forty times faster than `stop`."""
        if self._child is not None:
            await self._child.kill()

    async def restart(self) -> None:
        await self.kill()
        await self.start()

    async def wait_ended(self) -> int:
        """Returns when the process has ended: for an owner that must notice its death."""
        assert self._child is not None
        return await self._child.wait()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[EmbeddedZooKeeper]:
        await self.start()
        try:
            yield self
        finally:
            await self.stop()
            if self._chosen_by_us:
                release_port(self.port)

    def log_text(self) -> str:
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def _last_words(self) -> str:
        assert self._child is not None
        lines = [line for line in (self.log_text() + self._child.log_text()).splitlines() if line.strip()]
        telling = [line for line in lines if "Exception: " in line or line.startswith("Error")]
        return (telling or lines or ["its log is empty"])[-1].strip()


async def four_letter_word(word: str, port: int) -> str:
    """The server's answer. Empty if it refuses the connection, does not answer, or is not running."""
    try:
        async with asyncio.timeout(_PROBE_TIMEOUT):
            reader, writer = await asyncio.open_connection(HOST, port)
            try:
                writer.write(word.encode())
                return (await reader.read()).decode()
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return ""
