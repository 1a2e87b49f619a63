"""Frames for fuzzing a broker: valid requests of every API and version, and mutations of them.

Seeds are built from the tables, with values that reach deep into the handlers: topics and partitions that exist,
record batches with a correct checksum. Mutations then change bits, lengths, counts, versions, keys or the size of the
frame, or splice two requests. All choices come from one `random.Random`.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from klamm.wire.apis import Api, ApiKey
from klamm.wire.compression import Codec
from klamm.wire.messages import encode_request, request_class
from klamm.wire.records import Record, build_batch
from klamm.wire.schema import Field
from klamm.wire.server_connection import RequestHeader, request_head

CORRELATION: Final = slice(8, 12)
"""Position of the correlation id in a frame. Mutations leave it alone, because it matches answers to requests."""
BODY: Final = 12
SEEDS_EACH: Final = 12
INTERESTING: Final = (0x00, 0x01, 0x7F, 0x80, 0xFE, 0xFF)
COUNTS: Final = (0x7FFFFFFF, 0x00FFFFFF, 0x00010000, -1, -2, -0x80000000)
_I16 = struct.Struct(">h")
_I32 = struct.Struct(">i")


class FuzzFrame(NamedTuple):
    api: str
    version: int
    """Version of the seed, even if the mutation changed it."""
    mutation: str
    data: bytes

    @property
    def is_aligned(self) -> bool:
        """Whether its size field is right, so that a broker reads the bytes after it as the next frame."""
        return len(self.data) >= BODY and _I32.unpack_from(self.data)[0] == len(self.data) - 4

    @property
    def is_incomplete(self) -> bool:
        return len(self.data) < 4 or _I32.unpack_from(self.data)[0] > len(self.data) - 4


class Scene(NamedTuple):
    """The names and ids that the seeds contain."""

    topic: str
    """A topic that exists and must survive."""
    ghost: str
    """Prefix of topics that frames may create and delete."""
    broker: int
    controller_epoch: int


def seed_bodies(api: Api, version: int, scene: Scene, rng: random.Random) -> list[bytes]:
    return [_body(api, version, scene, rng) for _ in range(SEEDS_EACH)]


def _body(api: Api, version: int, scene: Scene, rng: random.Random) -> bytes:
    is_control = api.key in (ApiKey.LEADER_AND_ISR, ApiKey.STOP_REPLICA, ApiKey.UPDATE_METADATA)
    makes_topics = api.key in (ApiKey.CREATE_TOPICS, ApiKey.DELETE_TOPICS, ApiKey.CREATE_PARTITIONS)
    topic = f"{scene.ghost}-{rng.randrange(20)}" if is_control or makes_topics else scene.topic
    known: dict[str, Callable[[], Any]] = {
        "acks": lambda: rng.choice((1, 1, -1, 0)),
        "transactional_id": lambda: None,
        "min_bytes": lambda: rng.randrange(2),
        "max_wait_ms": lambda: rng.choice((0, 5)),
        "timeout_ms": lambda: 20,
        "max_bytes": lambda: 10_000,
        "partition_max_bytes": lambda: 1_000,
        "replica_id": lambda: rng.choice((-1, -1, -2, scene.broker)),
        "session_epoch": lambda: rng.choice((-1, 0)),
        "num_partitions": lambda: rng.choice((1, 2, -1)),
        "replication_factor": lambda: rng.choice((1, -1)),
        "assignments": lambda: [] if api.key is ApiKey.CREATE_TOPICS else None,
        "configs": list,
        "validate_only": lambda: rng.random() < 0.9,
        "count": lambda: rng.randrange(4),
        "controller_id": lambda: scene.broker,
        "controller_epoch": lambda: scene.controller_epoch,
        "broker_epoch": lambda: -1,
        "leader": lambda: rng.choice((scene.broker, scene.broker, -1, -2)),
        "leader_epoch": lambda: rng.randrange(1000),
        "current_leader_epoch": lambda: rng.choice((-1, 0)),
        "timestamp": lambda: rng.choice((-1, -2, 0, 10**12)),
        "host": lambda: "127.0.0.1",
        "port": lambda: 1,
        "security_protocol": lambda: 0,
        "client_software_name": lambda: "fuzz",
        "client_software_version": lambda: "1.0",
        "delete_partition": lambda: rng.random() < 0.5,
        "records": lambda: _batch(rng),
    }

    def value(cls: Any, field: Field) -> Any:
        if field.name in known:
            found = known[field.name]()
            if found is not None or field.is_nullable(version):
                return found
        if field.struct is not None:
            inner = getattr(cls, field.struct.name)
            return [message(inner) for _ in range(rng.randrange(1, 3))]
        if field.is_array:
            return [topic] if field.type == "string" else [scene.broker, *([7] if rng.random() < 0.2 else [])]
        match field.type:
            case "string":
                return topic
            case "bytes":
                return rng.randbytes(10)
            case "bool":
                return rng.random() < 0.5
            case "uuid":
                return bytes(16)
        return rng.randrange(2)

    def message(cls: Any) -> Any:
        return cls(**{field.name: value(cls, field) for field in cls.struct.fields(version)})

    return encode_request(message(request_class(api.key)), version)


def _batch(rng: random.Random) -> bytes:
    records = [Record(b"key", rng.randbytes(20), 1_700_000_000_000) for _ in range(rng.randrange(1, 3))]
    return build_batch(records, codec=rng.choice(tuple(Codec)))


class FuzzFrames:
    """An endless supply of mutated frames, taking APIs and versions in turn."""

    def __init__(self, apis: Sequence[Api], scene: Scene, rng: random.Random) -> None:
        self._rng = rng
        self.kinds = [(api, version) for api in apis for version in range(api.min_version, api.max_version + 1)]
        self._seeds = {
            (api.key, version): [
                request_head(RequestHeader(api.key, version, 0, rng.choice((None, "fuzz"))), len(body)) + body
                for body in seed_bodies(api, version, scene, rng)
            ]
            for api, version in self.kinds
        }
        self._made = 0

    def make(self) -> FuzzFrame:
        api, version = self.kinds[self._made % len(self.kinds)]
        self._made += 1
        frame = bytearray(self._rng.choice(self._seeds[api.key, version]))
        mutation, mutate = self._rng.choice(MUTATIONS)
        mutate(frame, self._rng, self)
        if mutation != "size":
            _I32.pack_into(frame, 0, len(frame) - 4)
        return FuzzFrame(api.name, version, mutation, bytes(frame))

    def another(self) -> bytes:
        api, version = self._rng.choice(self.kinds)
        return self._rng.choice(self._seeds[api.key, version])


def _position(frame: bytearray, rng: random.Random) -> int:
    """A position outside the size and the correlation id, mostly in the body."""
    if len(frame) <= BODY or rng.random() < 0.03:
        return rng.randrange(4, 8)
    return rng.randrange(BODY, len(frame))


def _nothing(frame: bytearray, rng: random.Random, frames: FuzzFrames) -> None: ...


def _bits(frame: bytearray, rng: random.Random, frames: FuzzFrames) -> None:
    for _ in range(rng.randrange(1, 4)):
        frame[_position(frame, rng)] ^= 1 << rng.randrange(8)


def _bytes(frame: bytearray, rng: random.Random, frames: FuzzFrames) -> None:
    for _ in range(rng.randrange(1, 4)):
        frame[_position(frame, rng)] = rng.choice(INTERESTING)


def _truncation(frame: bytearray, rng: random.Random, frames: FuzzFrames) -> None:
    del frame[rng.randrange(min(BODY, len(frame)), len(frame) + 1) :]


def _count(frame: bytearray, rng: random.Random, frames: FuzzFrames) -> None:
    """Overwrite four bytes, or as many as are left, which may be a count."""
    position = _position(frame, rng)
    raw = _I32.pack(rng.choice(COUNTS))
    frame[position : position + 4] = raw[: max(len(frame) - position, 0)]


def _length(frame: bytearray, rng: random.Random, frames: FuzzFrames) -> None:
    position = _position(frame, rng)
    raw = _I16.pack(rng.choice((-1, -2, -0x8000, 0x7FFF, 0)))
    frame[position : position + 2] = raw[: max(len(frame) - position, 0)]


def _size(frame: bytearray, rng: random.Random, frames: FuzzFrames) -> None:
    true = len(frame) - 4
    lies = (true - 1, true // 2, true + 1, true + 1000, 0, 7, -1, -(2**31), 2**31 - 1, 200 << 20)
    _I32.pack_into(frame, 0, rng.choice(lies))


def _version(frame: bytearray, rng: random.Random, frames: FuzzFrames) -> None:
    _I16.pack_into(frame, 6, rng.choice((-1, -0x8000, 0x7FFF, rng.randrange(20))))


def _key(frame: bytearray, rng: random.Random, frames: FuzzFrames) -> None:
    _I16.pack_into(frame, 4, rng.choice((-1, 0x7FFF, 38, 99, rng.randrange(80))))


def _trailing(frame: bytearray, rng: random.Random, frames: FuzzFrames) -> None:
    frame += rng.randbytes(rng.randrange(1, 40))


def _varint(frame: bytearray, rng: random.Random, frames: FuzzFrames) -> None:
    position = _position(frame, rng)
    frame[position : position + 1] = b"\xff" * rng.randrange(1, 12) + bytes([rng.choice((0x00, 0x01, 0x0F, 0x7F))])


def _splice(frame: bytearray, rng: random.Random, frames: FuzzFrames) -> None:
    other = frames.another()
    frame[_position(frame, rng) :] = other[rng.randrange(min(BODY, len(other)), len(other) + 1) :]


def _chunk(frame: bytearray, rng: random.Random, frames: FuzzFrames) -> None:
    """Remove a piece, or repeat it."""
    start = _position(frame, rng)
    end = min(len(frame), start + rng.randrange(1, 16))
    frame[start:end] = bytes(frame[start:end]) * rng.choice((0, 2, 3))


MUTATIONS: Final[tuple[tuple[str, Callable[[bytearray, random.Random, FuzzFrames], None]], ...]] = (
    ("none", _nothing),
    ("bits", _bits),
    ("bytes", _bytes),
    ("truncation", _truncation),
    ("count", _count),
    ("length", _length),
    ("size", _size),
    ("version", _version),
    ("key", _key),
    ("trailing", _trailing),
    ("varint", _varint),
    ("splice", _splice),
    ("chunk", _chunk),
)
