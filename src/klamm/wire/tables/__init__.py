"""What each message looks like, in every version: klamm's own tables of the protocol, one module per subject.

A message is a paragraph. Its first line has the name, the versions, and the first flexible version (KIP-482). Each
further line is a field in the order of the wire:

    name type [versions][, null [versions]][, tag number][ = default]

A type is `bool`, `int8`, `int16`, `int32`, `int64`, `float64`, `uuid`, `string`, `bytes`, `records`, or the name of a
struct, whose fields follow, indented. `[]` before the type makes an array of it. Without versions a field is in all
versions of its struct. Without a default it is zero, false or empty.
"""

from __future__ import annotations

from typing import Final

from klamm.wire.tables import access, configs, control, data, groups, topics, transactions

PARAGRAPHS: Final = {
    paragraph.split(maxsplit=1)[0]: paragraph
    for module in (access, configs, control, data, groups, topics, transactions)
    for paragraph in module.TABLE.strip().split("\n\n")
}
"""The text of each message by its name. It is parsed when the message is first used."""
