"""/admin/preferred_replica_election: the old tools' way to ask for it; removed by the controller when done."""

from __future__ import annotations

from typing import Final

from klamm.zookeeper.znodes import document

PATH: Final = "/admin/preferred_replica_election"
encode = document.partition_list
decode = document.parse_partition_list
