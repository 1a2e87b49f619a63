"""What a log and a table must be like before an ingest goes on. Pure: each violation is a LakeRefusal with its cure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from klamm.pipelines.anchors import NotTheSameLog
from klamm.pipelines.columns import PartitionBy
from klamm.pipelines.delta_log import LOG_NAME
from klamm.pipelines.ingest_options import OnNewLog
from klamm.pipelines.lake_state import LakeRefusal

LOG_RETENTION: Final = "interval 3650 days"
"""The log has the ranges; by default Delta removes it after 30 days."""
RETENTION_PROPERTY: Final = "delta.logRetentionDuration"


def check_log(topic: str, changes: Sequence[NotTheSameLog], on_new_log: OnNewLog) -> bool:
    """Whether the topic goes on as a new incarnation. Raises LakeRefusal if it must not go on."""
    if not changes:
        return False
    if on_new_log is OnNewLog.NEW_INCARNATION and any(change.is_new_log for change in changes):
        return True
    told = "; ".join(f"{topic}-{change.partition}: {change.detail}" for change in changes[:3])
    more = f" (and {len(changes) - 3} more partitions)" if len(changes) > 3 else ""
    cure = "; --on-new-log new-incarnation ingests it beside the old rows" if changes[0].is_new_log else ""
    raise LakeRefusal(f"{told}{more}{cure}")


def check_retention(table: str, properties: Mapping[str, str]) -> None:
    """The ranges are in the table's log. If Delta may clean it early, the positions go with it."""
    value = properties.get(RETENTION_PROPERTY, "interval 30 days")
    if value != LOG_RETENTION:
        raise LakeRefusal(
            f"{table}: {RETENTION_PROPERTY} is '{value}', so Delta removes the commits that tell what was ingested; "
            f"ALTER TABLE delta.`{table}` SET TBLPROPERTIES ('{RETENTION_PROPERTY}' = '{LOG_RETENTION}')"
        )


def check_partitioning(table: str, columns: Sequence[str], wanted: PartitionBy) -> None:
    if list(columns) != list(wanted.columns):
        now = ",".join(columns) or PartitionBy.NONE.value
        raise LakeRefusal(f"{table} is partitioned by {now}: use --partition-by {now}, or another lake")


def check_place(table: str, names: Sequence[str]) -> None:
    """The directory of a table that does not exist yet. What another program keeps there must not become part of it."""
    if names and LOG_NAME not in names:
        raise LakeRefusal(
            f"{table} holds something else than a Delta table, such as {sorted(names)[0]}: name another lake"
        )
