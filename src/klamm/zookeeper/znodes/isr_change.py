"""/isr_change_notification/isr_change_<n>: a leader has changed the ISR of these partitions. Persistent sequential. The
controller reads the node and deletes it."""

from __future__ import annotations

from typing import Final

from klamm.zookeeper.znodes import document

PARENT: Final = "/isr_change_notification"
PREFIX: Final = f"{PARENT}/isr_change_"
encode = document.partition_list
decode = document.parse_partition_list


def path(name: str) -> str:
    return f"{PARENT}/{name}"
