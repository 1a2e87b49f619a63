"""/feature: versions of features that the whole cluster has finalised (KIP-584). Read only.

Controllers of 2.7 and later keep it; below protocol 2.7 they write it as disabled. We serve up to 2.6 and leave it
alone: what it says matters to whoever wants to raise the protocol, and to whoever finds it enabled under our feet.
Version 1 has a lowest and a highest level for each feature, version 2 (protocol 3.3) only the highest.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from klamm.model.errors import ZNodeError
from klamm.zookeeper.znodes import document

PATH: Final = "/feature"


class FinalisedFeatures(NamedTuple):
    enabled: bool
    levels: dict[str, tuple[int, int]]
    """Lowest and highest; equal where only one is given."""


@document.decoder
def decode(path: str, data: bytes | None) -> FinalisedFeatures:
    fields = document.parse(path, data)
    version = document.version(path, fields, (1, 2))
    status = document.integer(path, fields, "status")
    if status not in (0, 1):
        raise ZNodeError(path, f"status {status} is neither 0, disabled, nor 1, enabled")
    levels: dict[str, tuple[int, int]] = {}
    features = document.mapping(path, fields, "features") if status else fields.get("features") or {}
    for name, value in features.items():
        if not isinstance(value, dict):
            raise ZNodeError(path, f"feature {name}: an object was expected, not {value!r}")
        highest = document.integer(path, value, "max_version_level")
        levels[name] = (document.integer(path, value, "min_version_level") if version == 1 else highest, highest)
        if not 1 <= levels[name][0] <= highest:
            raise ZNodeError(path, f"feature {name}: levels {levels[name][0]} to {highest} make no sense")
    return FinalisedFeatures(bool(status), levels)
