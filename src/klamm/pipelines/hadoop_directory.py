"""A directory of a lake on a store that Hadoop knows, through the FileSystem of Spark's JVM."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from klamm.pipelines.lake_state import LakeError
from klamm.pipelines.spark_session import one_line, spark_errors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class HadoopDirectory:
    def __init__(self, spark: SparkSession, uri: str) -> None:
        self._spark = spark
        self.uri = uri.rstrip("/")
        jvm: Any = spark._jvm
        self._path = jvm.org.apache.hadoop.fs.Path(self.uri)

    def __str__(self) -> str:
        return self.uri

    def child(self, *names: str) -> HadoopDirectory:
        return HadoopDirectory(self._spark, "/".join((self.uri, *names)))

    def exists(self) -> bool:
        return bool(self._call(lambda: self._file_system().exists(self._path)))

    def names(self) -> Sequence[str]:
        def found() -> list[str]:
            files = self._file_system()
            if not files.exists(self._path):
                return []
            return [str(status.getPath().getName()) for status in files.listStatus(self._path)]

        return list(self._call(found))

    def read_text(self) -> str:
        """Raises OSError, as a local directory does."""
        try:
            stream = self._file_system().open(self._path)
            try:
                return bytes(stream.readAllBytes()).decode()
            finally:
                stream.close()
        except spark_errors() as e:
            raise OSError(one_line(e)) from e

    def write_text(self, text: str) -> None:
        def replaced() -> None:
            stream = self._file_system().create(self._path, True)
            try:
                stream.write(bytearray(text.encode()))
            finally:
                stream.close()

        self._call(replaced)

    def make(self) -> None:
        self._call(lambda: self._file_system().mkdirs(self._path))

    def remove(self) -> None:
        self._call(lambda: self._file_system().delete(self._path, True))

    def _file_system(self) -> Any:
        return self._path.getFileSystem(self._spark._jsc.hadoopConfiguration())

    def _call(self, call: Any) -> Any:
        try:
            return call()
        except spark_errors() as e:
            raise LakeError(f"cannot use the lake {self.uri}: {one_line(e)}") from e
