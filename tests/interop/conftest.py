"""A real ZooKeeper for tests with Apache Kafka, and one Spark session for the tests of the lake.

Without Java these tests fail, because they need the real ones.
"""

from __future__ import annotations

import gc
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.interop.lake_stores import BUCKET, QUICK_JVM, s3_server
from tests.interop.lake_table import Lake

from klamm.pipelines.lake_location import for_lake
from klamm.pipelines.spark_session import SparkOptions, spark_session
from klamm.zookeeper.server.embedded import EmbeddedZooKeeper

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GIVEN = os.environ.get("KLAMM_TEST_BOOTSTRAP")


@pytest.fixture
async def zookeeper(tmp_path: Path) -> AsyncIterator[EmbeddedZooKeeper]:
    async with EmbeddedZooKeeper(tmp_path / "zookeeper", force_sync=False).running() as server:
        yield server
        await server.kill()  # a stop takes a third of a second


@pytest.fixture(scope="session")
def s3_settings() -> Iterator[dict[str, str]]:
    with s3_server() as settings:
        yield settings


@pytest.fixture(scope="session")
def lake_spark(s3_settings: dict[str, str]) -> Iterator[SparkSession]:
    """One session for all tests of the lake that need no process of their own: its start takes longest. It reads local
    lakes, HDFS and S3."""
    options = for_lake(f"s3a://{BUCKET}", SparkOptions("local[2]", conf=s3_settings))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in QUICK_JVM.items():  # only the first compiler, because these runs are short
            patch.setenv(name, value)
        with spark_session(options, "tests") as session:
            yield session
        gc.collect()


@pytest.fixture
def lake(lake_spark: SparkSession, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Lake]:
    """A new topic and its lake."""
    bootstrap = GIVEN or str(request.getfixturevalue("klamm_session_cluster").bootstrap)
    yield Lake(lake_spark, bootstrap, tmp_path / "lake")
    gc.collect()  # PySpark leaves the sockets of its results to the collector, which must not warn in another module
