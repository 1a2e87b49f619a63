"""/admin/preferred_replica_election: how old tools request the election. The controller removes it when it is done."""

from __future__ import annotations

from typing import Final

from klamm.zookeeper.znodes import document

PATH: Final = "/admin/preferred_replica_election"
encode = document.partition_list
decode = document.parse_partition_list
