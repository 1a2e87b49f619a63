"""/feature: the versions of features that the whole cluster has finalised (KIP-584). klamm only reads it.

Controllers of 2.7 and later maintain it; below protocol 2.7 they write it as disabled. klamm serves protocols up to 2.6
and does not write it. Its content matters when an operator raises the protocol version, or finds features enabled
unexpectedly. Version 1 has a lowest and a highest level for each feature, version 2 (protocol 3.3) only the highest.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from klamm.model.errors import ZNodeError
from klamm.zookeeper.znodes import document

PATH: Final = "/feature"


class FinalisedFeatures(NamedTuple):
    enabled: bool
    levels: dict[str, tuple[int, int]]
    """The lowest and the highest level; equal if only one is given."""


@document.decoder
def decode(path: str, data: bytes | None) -> FinalisedFeatures:
    fields = document.parse(path, data)
    version = document.version(path, fields, (1, 2))
    status = document.integer(path, fields, "status")
    if status not in (0, 1):
        raise ZNodeError(path, f"status {status} is neither 0 (disabled) nor 1 (enabled)")
    levels: dict[str, tuple[int, int]] = {}
    features = document.mapping(path, fields, "features") if status else fields.get("features") or {}
    for name, value in features.items():
        if not isinstance(value, dict):
            raise ZNodeError(path, f"feature {name}: expected an object, not {value!r}")
        highest = document.integer(path, value, "max_version_level")
        levels[name] = (document.integer(path, value, "min_version_level") if version == 1 else highest, highest)
        if not 1 <= levels[name][0] <= highest:
            raise ZNodeError(path, f"feature {name}: levels {levels[name][0]} to {highest} are not a valid range")
    return FinalisedFeatures(bool(status), levels)
