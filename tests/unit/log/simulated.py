"""A log manager on the simulated disk, for tests that break the disk."""

from __future__ import annotations

import random

from klamm.log.log import Log
from klamm.log.log_manager import LogManager
from klamm.model.config import BrokerConfig, TopicConfig
from klamm.model.ids import TopicPartition
from klamm.simulation.disk import SimulatedDisk

from .conftest import SetClock

A, B = TopicPartition("a", 0), TopicPartition("b", 0)
BROKER = BrokerConfig(zookeeper_connect="x", log_dirs=("/data/1",), log_cleaner_enable=False)


def new_disk(seed: int = 1, directories: tuple[str, ...] = BROKER.log_dirs) -> SimulatedDisk:
    disk = SimulatedDisk(SetClock(), random.Random(seed))
    for path in directories:
        disk.make_directories(path)
    disk.sync_directory("/data")
    disk.sync_directory("/")
    return disk


async def opened(disk: SimulatedDisk, config: TopicConfig | None = None, broker: BrokerConfig = BROKER) -> LogManager:
    """Locked and loaded; its timers do not run."""
    logs = LogManager(disk, SetClock(), broker, random.Random(1))
    logs.directories.lock()
    await logs.load(lambda _: config or TopicConfig())
    return logs


async def created(logs: LogManager, config: TopicConfig | None = None, name: TopicPartition = A) -> Log:
    log = (await logs.create_many([(name, config or TopicConfig(), True)]))[name]
    assert isinstance(log, Log)
    return log
