"""A real ZooKeeper for tests with Apache Kafka. Without Java these tests fail, because they need the real one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from klamm.zookeeper.server.embedded import EmbeddedZooKeeper


@pytest.fixture
async def zookeeper(tmp_path: Path) -> AsyncIterator[EmbeddedZooKeeper]:
    async with EmbeddedZooKeeper(tmp_path / "zookeeper", force_sync=False).running() as server:
        yield server
