"""/admin/preferred_replica_election: how old tools request an election. The controller removes it afterwards."""

from __future__ import annotations

from typing import Final

from klamm.zookeeper.znodes import document

PATH: Final = "/admin/preferred_replica_election"
encode = document.partition_list
decode = document.parse_partition_list
