"""The small text files next to the logs: offset checkpoints, leader epochs, meta.properties.

A checkpoint is Kafka's `CheckpointFile`: a line with the version (0), a line with the number of entries, then one line
per entry. An empty file, or one without a count, has no entries; any other inconsistency is a storage error. Files are
written atomically and synced together with their directory (KAFKA-3968, KAFKA-16541).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from klamm.model.errors import ConfigError, ErrorCode, KafkaError
from klamm.model.ids import BrokerId, TopicPartition
from klamm.model.ports import Disk
from klamm.model.settings import parse_properties

RECOVERY_POINTS: Final = "recovery-point-offset-checkpoint"
LOG_START_OFFSETS: Final = "log-start-offset-checkpoint"
HIGH_WATERMARKS: Final = "replication-offset-checkpoint"
CLEANER_OFFSETS: Final = "cleaner-offset-checkpoint"
META_PROPERTIES: Final = "meta.properties"
CLEAN_SHUTDOWN: Final = ".kafka_cleanshutdown"
LOCK: Final = ".lock"

_VERSION: Final = 0


class MetaProperties(NamedTuple):
    broker_id: BrokerId | None
    cluster_id: str | None


def encode_lines(entries: Iterable[tuple[object, ...]]) -> bytes:
    lines = [" ".join(map(str, entry)) for entry in entries]
    return "\n".join([str(_VERSION), str(len(lines)), *lines, ""]).encode()


def decode_lines(path: str, data: bytes, fields: int) -> list[list[str]]:
    """The fields of each line. Raises KAFKA_STORAGE_ERROR with the path and the fault."""
    lines = data.decode("utf-8", "replace").splitlines()
    if not lines:
        return []
    if lines[0].strip() != str(_VERSION):
        raise _malformed(path, f"version {lines[0]!r}")
    if len(lines) == 1:
        return []
    entries = [line.split() for line in lines[2:] if line.strip()]
    if not lines[1].strip().isdigit() or int(lines[1]) != len(entries):
        raise _malformed(path, f"it announces {lines[1]!r} entries and has {len(entries)}")
    for entry in entries:
        if len(entry) != fields:
            raise _malformed(path, f"line {' '.join(entry)!r}")
    return entries


def read_offsets(disk: Disk, path: str) -> dict[TopicPartition, int]:
    """Empty if there is no such file."""
    if not disk.exists(path):
        return {}
    try:
        return {
            TopicPartition(topic, int(partition)): int(offset)
            for topic, partition, offset in decode_lines(path, disk.read(path), 3)
        }
    except ValueError as error:
        raise _malformed(path, str(error)) from error


def write_offsets(disk: Disk, path: str, offsets: Mapping[TopicPartition, int], turn: int = 0) -> None:
    disk.write_atomically(path, encode_lines((tp.topic, tp.partition, offsets[tp]) for tp in sorted(offsets)), turn)


def read_meta(disk: Disk, path: str) -> MetaProperties | None:
    """None if there is no file yet. Unknown keys, which later versions write, are ignored."""
    if not disk.exists(path):
        return None
    properties = parse_properties(disk.read(path).decode("utf-8", "replace"))
    version = properties.get("version", "0")
    if version != "0":
        raise ConfigError(f"{path}: unknown version={version}: it must be 0 (is this a directory formatted for KRaft?)")
    broker_id = properties.get("broker.id")
    if broker_id is not None and not broker_id.isdigit():
        raise ConfigError(f"{path}: broker.id={broker_id} is not a broker id")
    return MetaProperties(None if broker_id is None else BrokerId(int(broker_id)), properties.get("cluster.id"))


def write_meta(disk: Disk, path: str, broker_id: BrokerId, cluster_id: str) -> None:
    disk.write_atomically(path, f"version=0\nbroker.id={broker_id}\ncluster.id={cluster_id}\n".encode())


def _malformed(path: str, reason: str) -> KafkaError:
    return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"malformed checkpoint {path}: {reason}")
