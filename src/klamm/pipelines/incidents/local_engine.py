"""The local engine: the chunks of all files, spread over the processors of this machine."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor

from klamm.pipelines.incidents.reading import ChunkResult, read_chunk
from klamm.pipelines.incidents.sources import Chunk, LogFile, chunks_of

ALONE_BYTES = 16 * 1024 * 1024
"""Less than this is read faster than processes start."""


def read_locally(files: Sequence[LogFile], processes: int | None = None) -> list[ChunkResult]:
    chunks = chunks_of(files)
    wanted = min(len(chunks), processes or len(os.sched_getaffinity(0)))
    if wanted < 2 or sum(file.size for file in files) < ALONE_BYTES:
        return [read_chunk(chunk) for chunk in chunks]
    return _in_processes(chunks, wanted)


def _in_processes(chunks: Sequence[Chunk], processes: int) -> list[ChunkResult]:
    pool = ProcessPoolExecutor(processes)
    try:
        return list(pool.map(read_chunk, chunks))
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
