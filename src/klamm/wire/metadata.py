"""A Metadata response from topics that are encoded one by one, so that a broker can keep their bytes.

The topics are the last array of the response. What follows them has a fixed size: the cluster's authorized operations
in versions 8 to 10, and an empty tag section from version 9 on.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, Final

from klamm.model.ports import Buffer
from klamm.wire.apis import ApiKey
from klamm.wire.cursor import INT32
from klamm.wire.messages import encode_response, response_class
from klamm.wire.varint import uvarint
from klamm.wire.writers import Writer, compile_struct_writer

FIRST_FLEXIBLE: Final = 9
_RESPONSE: Final = response_class(ApiKey.METADATA)


@cache
def _topic_writer(version: int) -> Writer:
    return compile_struct_writer(_RESPONSE.MetadataResponseTopic.struct, version, flexible=version >= FIRST_FLEXIBLE)


def encode_topic(topic: Any, version: int) -> bytes:
    return _topic_writer(version)(topic)


def join_response(response: Any, version: int, count: int, topics: Sequence[bytes]) -> list[Buffer]:
    """`response` has no topics of its own; `topics` are the bytes of `count` topics, in any pieces."""
    assert not response.topics
    whole = encode_response(response, version)
    is_flexible = version >= FIRST_FLEXIBLE
    after = (INT32.size if 8 <= version <= 10 else 0) + is_flexible
    length = uvarint(count + 1) if is_flexible else INT32.pack(count)
    split = len(whole) - after
    head = whole[: split - (1 if is_flexible else INT32.size)]
    return [head + length, *topics, whole[split:]]
