"""Mutated frames of every API and version against a running listener: each connection is answered or closed, the
process neither raises nor hangs, and a well-behaved client next to them notices nothing."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import struct
import tracemalloc
from collections import Counter
from collections.abc import Sequence

import pytest

from klamm.model.ports import Buffer
from klamm.model.requests import ANONYMOUS, RequestContext
from klamm.net.client import BrokerConnection
from klamm.net.clock import SystemClock
from klamm.net.listener import Listener
from klamm.net.network import AsyncioNetwork
from klamm.wire import fetch, produce
from klamm.wire.apis import APIS, ApiKey
from klamm.wire.connection import RequestHeader, ServerConnection, request_head
from klamm.wire.errors import ProtocolError
from klamm.wire.messages import (
    decode_request,
    encode_request,
    request_class,
    unsupported_api_versions_body,
)

FRAMES = int(os.environ.get("KLAMM_FUZZ_FRAMES", "2000"))
FRAME_BYTES_MAX = 64 * 1024
INTERESTING = (0, 1, 0x7F, 0x80, 0xFE, 0xFF)
EVERY = [(key, version) for key, api in APIS.items() for version in range(api.min_version, api.max_version + 1)]


async def decode(context: RequestContext, header: RequestHeader, body: memoryview) -> Sequence[Buffer] | None:
    """What a broker does first with a request, without the broker."""
    key, version = header.api_key, header.api_version
    if not APIS[key].serves(version):
        if key is ApiKey.API_VERSIONS:
            return [unsupported_api_versions_body()]
        raise ProtocolError(f"{key.name} version {version} is not served")
    if key is ApiKey.PRODUCE and version >= 3:
        produce.decode_request(version, body)
    elif key is ApiKey.FETCH and version >= 4:
        fetch.decode_request(version, body)
    else:
        decode_request(key, version, body)
    return [b"ok"]


def plausible_body(key: ApiKey, version: int, rng: random.Random) -> bytes:
    """Every array with an element or two, so that mutations reach the inner fields."""

    def value(field: object) -> object:
        f: object = field
        if f.is_struct_array():  # type: ignore[attr-defined]
            inner = f.array_of  # type: ignore[attr-defined]
            return [struct_value(inner) for _ in range(rng.randrange(1, 3))]
        if f.is_array():  # type: ignore[attr-defined]
            return [value(f.array_of) for _ in range(rng.randrange(1, 3))]  # type: ignore[attr-defined]
        match f.type_str:  # type: ignore[attr-defined]
            case "string":
                return "topic"
            case "bytes" | "records":
                return rng.randbytes(70)
            case "bool":
                return True
            case "uuid":
                return None
            case "float64":
                return 1.5
        return rng.randrange(100)

    def struct_value(struct_field: object) -> object:
        fields = struct_field.untagged_fields(version)  # type: ignore[attr-defined]
        return struct_field.data_class(version=version, **{f.name: value(f) for f in fields})  # type: ignore[attr-defined]

    cls = request_class(key)
    return encode_request(
        cls(version=version, **{f.name: value(f) for f in cls._struct.untagged_fields(version)}), version
    )


def mutated_frame(key: ApiKey, version: int, rng: random.Random) -> bytes:
    body = plausible_body(key, version, rng)
    frame = bytearray(request_head(RequestHeader(key, version, rng.randrange(2**31), "fuzz"), len(body)) + body)
    for _ in range(rng.randrange(1, 5)):
        match rng.randrange(5):
            case 0 | 1:
                frame[rng.randrange(4, len(frame))] = rng.choice(INTERESTING)
            case 2:
                frame[rng.randrange(4, len(frame))] = rng.randrange(256)
            case 3:
                position = rng.randrange(4, len(frame))
                frame[position : position + rng.randrange(8)] = rng.randbytes(rng.randrange(8))
            case 4:
                frame = frame[: rng.randrange(4, len(frame) + 1)]
        if len(frame) < 12:
            break
    if rng.random() < 0.9:  # mostly a true size, so that the frame is parsed at all
        struct.pack_into(">i", frame, 0, len(frame) - 4)
    else:
        frame[rng.randrange(4)] = rng.choice(INTERESTING)
    return bytes(frame)


async def outcome(port: int, frame: bytes) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(frame)
        writer.write_eof()  # a frame that waits for more bytes ends here
        data = await reader.read(4)
        return "answered" if data else "closed"
    except ConnectionError:
        return "closed"
    finally:
        writer.transport.abort()


async def test_decoding_allocates_no_more_than_a_small_multiple_of_the_frame() -> None:
    rng = random.Random(21)
    context = RequestContext(ANONYMOUS, "CLIENT", "fuzz", "test", False)
    for key, version in EVERY:
        frame = mutated_frame(ApiKey(key), version, rng)
        await decode_quietly(context, frame)  # codecs are compiled on first use
        tracemalloc.start()
        await decode_quietly(context, frame)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 64 * len(frame) + 32 * 1024


async def decode_quietly(context: RequestContext, frame: bytes) -> None:
    try:
        wire = ServerConnection(FRAME_BYTES_MAX)
        wire.feed(frame)
        request = wire.next_request()
        if request is not None:
            await decode(context, request.header, request.body)
    except ProtocolError:
        pass


async def test_mutated_frames(caplog: pytest.LogCaptureFixture) -> None:
    rng = random.Random(20)
    caplog.set_level(logging.WARNING)
    server = Listener(
        AsyncioNetwork(), "CLIENT", "127.0.0.1", 0, decode, privileged=False, frame_bytes_max=FRAME_BYTES_MAX
    )
    seen: Counter[tuple[ApiKey, int]] = Counter()
    outcomes: Counter[str] = Counter()
    async with server.running():
        neighbour = BrokerConnection(AsyncioNetwork(), "127.0.0.1", server.port, "good", SystemClock())
        await neighbour.connect()
        good = encode_request(request_class(ApiKey.METADATA)(version=9, topics=None), 9)
        for number in range(FRAMES):
            key, version = EVERY[number % len(EVERY)]
            frame = mutated_frame(ApiKey(key), version, rng)
            seen[ApiKey(key), version] += 1
            async with asyncio.timeout(5):
                outcomes[await outcome(server.port, frame)] += 1
            if number % 100 == 0:
                assert bytes(await neighbour.request(ApiKey.METADATA, 9, [good], timeout=5)) == b"ok"
        await neighbour.close()
        async with asyncio.timeout(5):
            while server.connection_count:
                await asyncio.sleep(0.01)
        assert len(asyncio.all_tasks()) == 1
    assert len(seen) == len(EVERY)
    assert outcomes["answered"] > FRAMES / 20
    assert outcomes["closed"] > FRAMES / 20
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []
    refused = [record for record in caplog.records if record.name == "klamm.net.listener"]
    assert len(refused) <= outcomes["closed"]
