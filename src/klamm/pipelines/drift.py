"""How JSON values differ from their schema: fields that it does not name, and fields whose type does not fit.

Spark counts both while it writes the batch, so the topic is not read twice. Producers can send any number of names, so
they are counted in a fixed number of buckets: a bucket with several names keeps the first and the last of them. Only
fields at the top are looked at, and the types of the first fields of a schema.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from klamm.pipelines.decode import quoted
from klamm.pipelines.lake_directory import LakeDirectory

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Observation

BUCKETS: Final = 16
TYPES_MAX: Final = 50
NAMES_MAX: Final = 100
"""Names that are kept over all batches."""
_NAME_LENGTH_MAX: Final = 60
_TOLD: Final = 3
_METRICS_SECONDS_MAX: Final = 10
_FILE: Final = "drift.json"
_TEXT: Final = "CAST(value AS STRING)"
_NEW: Final = "_klamm_new_fields"


@dataclass(frozen=True, slots=True)
class Drift:
    """Counts of records by field."""

    unknown: Mapping[str, int] = field(default_factory=dict)
    """Fields that the schema does not name."""
    unfit: Mapping[str, int] = field(default_factory=dict)
    """Fields whose values do not have the type of the schema; these records are dead letters."""

    def __bool__(self) -> bool:
        return bool(self.unknown or self.unfit)

    def __add__(self, other: Drift) -> Drift:
        return Drift(_most(self.unknown, other.unknown), _most(self.unfit, other.unfit))

    def fields(self) -> dict[str, dict[str, int]]:
        """As a JSON document."""
        return {"unknown": dict(self.unknown), "unfit": dict(self.unfit)}

    def line(self) -> str:
        """As text; empty without drift."""
        parts = [("fields that the schema lacks", self.unknown), ("fields of another type", self.unfit)]
        return ", ".join(f"{what}: {_told(counts)}" for what, counts in parts if counts)


def _most(*counts: Mapping[str, int]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for part in counts:
        total.update(part)
    return dict(sorted(total.most_common(NAMES_MAX)))


def _told(counts: Mapping[str, int]) -> str:
    """
    >>> _told({"a": 1, "b": 7, "c": 2, "d": 3})
    'b (7), d (3), c (2) and 1 more'
    """
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    more = f" and {len(ordered) - _TOLD} more" if len(ordered) > _TOLD else ""
    return ", ".join(f"{name} ({count})" for name, count in ordered[:_TOLD]) + more


def parse_drift(text: str) -> Drift:
    """Raises ValueError."""
    fields = json.loads(text)
    try:
        return Drift(*({str(k): int(v) for k, v in fields[name].items()} for name in ("unknown", "unfit")))
    except (KeyError, TypeError, AttributeError) as e:
        raise ValueError(f"not a drift report: {e!r}") from e


def read_drift(directory: LakeDirectory) -> Drift:
    """What the ingests with this working directory saw so far."""
    file = directory.child(_FILE)
    try:
        return parse_drift(file.read_text()) if file.exists() else Drift()
    except (OSError, ValueError):
        return Drift()  # a report only: a kill may have cut it short


def write_drift(directory: LakeDirectory, drift: Drift) -> None:
    directory.child(_FILE).write_text(json.dumps(drift.fields()))


# --- measuring


class DriftMeter:
    """Counts the drift of one batch. `types` are those of the schema's fields, in Spark's words."""

    def __init__(self, types: Mapping[str, str], batch: str) -> None:
        self._types = types
        self._batch = batch
        self._observation: Observation | None = None

    def measured(self, rows: DataFrame) -> DataFrame:
        """The same rows, which are counted as they pass. They have `value` and `error`."""
        from pyspark.sql import Observation, functions

        self._observation = Observation(self._batch)
        counts = [functions.expr(f"{sql} AS {name}") for name, sql in metrics(self._types).items()]
        known = ", ".join(quoted(name) for name in self._types)
        new_fields = f"CASE WHEN error IS NULL THEN array_except(json_object_keys({_TEXT}), array({known})) END"
        return rows.withColumn(_NEW, functions.expr(new_fields)).observe(self._observation, *counts).drop(_NEW)

    def drift(self) -> Drift:
        """After the rows were written. Spark tells the counts soon after; without them there is no drift to report."""
        observation, found = self._observation, list[Mapping[str, Any]]()
        assert observation is not None
        waiting = threading.Thread(target=lambda: found.append(observation.get), daemon=True)
        waiting.start()
        waiting.join(_METRICS_SECONDS_MAX)
        return drift_from(found[0], list(self._types)) if found else Drift()


def metrics(types: Mapping[str, str]) -> dict[str, str]:
    """SQL aggregates over the rows of a batch, by name."""
    found = {}
    for bucket in range(BUCKETS):
        names = f"filter({_NEW}, name -> pmod(xxhash64(name), {BUCKETS}) = {bucket})"
        found[f"new_{bucket}"] = f"sum(size({names}))"
        found[f"first_{bucket}"] = f"min(array_min({names}))"
        found[f"last_{bucket}"] = f"max(array_max({names}))"
    for index, (name, kind) in enumerate(islice(types.items(), TYPES_MAX)):
        path = quoted("$['" + name + "']")
        column = "`" + name.replace("`", "``") + "`"
        fits = f"from_json({_TEXT}, {quoted(f'{column} {kind}')}).{column} IS NOT NULL"
        found[f"unfit_{index}"] = (
            f"count_if(error IS NOT NULL AND get_json_object({_TEXT}, {path}) IS NOT NULL AND NOT {fits})"
        )
    return found


def drift_from(counts: Mapping[str, Any], names: Sequence[str]) -> Drift:
    """
    >>> drift_from({"new_3": 5, "first_3": "more", "last_3": "more", "unfit_0": 2}, ["id"])
    Drift(unknown={'more': 5}, unfit={'id': 2})
    """
    unknown: dict[str, int] = {}
    for bucket in range(BUCKETS):
        if counts.get(f"new_{bucket}"):
            least, greatest = (str(counts[f"{end}_{bucket}"])[:_NAME_LENGTH_MAX] for end in ("first", "last"))
            unknown[least if least == greatest else f"{least} ... {greatest}"] = int(counts[f"new_{bucket}"])
    unfit = {name: int(counts[f"unfit_{i}"]) for i, name in enumerate(names[:TYPES_MAX]) if counts.get(f"unfit_{i}")}
    return Drift(unknown, unfit)
