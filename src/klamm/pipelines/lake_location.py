"""Which directory a `--lake` means: a path, or a URI of a store that Hadoop knows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from klamm.pipelines import s3
from klamm.pipelines.hadoop_directory import HadoopDirectory
from klamm.pipelines.lake_directory import LakeDirectory, LocalDirectory
from klamm.pipelines.spark_session import SparkOptions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HADOOP_SCHEMES: Final = ("hdfs", s3.SCHEME)


def parse_location(text: str) -> str:
    """An absolute path, or the URI itself. Raises ValueError for a store that is not supported.

    >>> parse_location("file:///data/lake")
    '/data/lake'
    """
    scheme, separator, rest = text.partition("://")
    if not separator:
        return str(Path(text).absolute())
    if scheme == "file":
        return str(Path(rest).absolute())
    if scheme in HADOOP_SCHEMES:
        return text.rstrip("/")
    raise ValueError(f"{scheme}:// is not supported: use a directory, or one of {', '.join(HADOOP_SCHEMES)}")


def local_lake(location: str) -> LocalDirectory | None:
    return None if "://" in location else LocalDirectory(Path(location))


def for_lake(location: str, options: SparkOptions) -> SparkOptions:
    """The options of a session that can use this lake."""
    if not location.startswith(f"{s3.SCHEME}://"):
        return options
    conf = {f"spark.delta.logStore.{s3.SCHEME}.impl": s3.LOG_STORE, **options.conf}
    return replace(options, conf=conf, packages=(*options.packages, *s3.s3_jars()))


def check_store(spark: SparkSession, location: str) -> None:
    """Raises LakeError if the store may let two writers commit the same version."""
    if location.startswith(f"{s3.SCHEME}://"):
        s3.probe(spark, location)


def open_lake(spark: SparkSession, location: str) -> LakeDirectory:
    return local_lake(location) or HadoopDirectory(spark, location)
