"""The APIs that klamm speaks: key, name, supported versions, and the first flexible version.

The table has Kafka 2.5's ranges, StopReplica 3 of 2.6, and the few newer APIs that tools ask for. It says what the wire
can decode, not what a broker serves: the server advertises only APIs with a handler, because a request of an advertised
but unserved version would close the connection. Produce must be advertised from version 0: librdkafka turns
compression off otherwise (KAFKA-18659).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Final, NamedTuple

NEVER: Final = 32767


class ApiKey(IntEnum):
    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    LEADER_AND_ISR = 4
    STOP_REPLICA = 5
    UPDATE_METADATA = 6
    CONTROLLED_SHUTDOWN = 7
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    ALTER_REPLICA_LOG_DIRS = 34
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66


class Api(NamedTuple):
    key: ApiKey
    name: str
    min_version: int
    max_version: int
    flexible_from: int
    """First version with compact lengths and tagged fields, in body and header (KIP-482)."""

    def serves(self, version: int) -> bool:
        return self.min_version <= version <= self.max_version

    def is_flexible(self, version: int) -> bool:
        return version >= self.flexible_from

    def request_header_version(self, version: int) -> int:
        if self.key is ApiKey.CONTROLLED_SHUTDOWN and version == 0:
            return 0  # the first Kafka versions sent no client id
        return 2 if version >= self.flexible_from else 1

    def response_header_version(self, version: int) -> int:
        if self.key is ApiKey.API_VERSIONS:
            return 0  # a client that does not know our versions yet must be able to read it
        return 1 if version >= self.flexible_from else 0


APIS: Final[Mapping[int, Api]] = {
    api.key: api
    for api in (
        Api(ApiKey.PRODUCE, "Produce", 0, 8, 9),
        Api(ApiKey.FETCH, "Fetch", 0, 11, 12),
        Api(ApiKey.LIST_OFFSETS, "ListOffsets", 0, 5, 6),
        Api(ApiKey.METADATA, "Metadata", 0, 9, 9),
        Api(ApiKey.LEADER_AND_ISR, "LeaderAndIsr", 0, 4, 4),
        Api(ApiKey.STOP_REPLICA, "StopReplica", 0, 3, 2),
        Api(ApiKey.UPDATE_METADATA, "UpdateMetadata", 0, 6, 6),
        Api(ApiKey.CONTROLLED_SHUTDOWN, "ControlledShutdown", 0, 3, 3),
        Api(ApiKey.OFFSET_COMMIT, "OffsetCommit", 0, 8, 8),
        Api(ApiKey.OFFSET_FETCH, "OffsetFetch", 0, 7, 6),
        Api(ApiKey.FIND_COORDINATOR, "FindCoordinator", 0, 3, 3),
        Api(ApiKey.JOIN_GROUP, "JoinGroup", 0, 7, 6),
        Api(ApiKey.HEARTBEAT, "Heartbeat", 0, 4, 4),
        Api(ApiKey.LEAVE_GROUP, "LeaveGroup", 0, 4, 4),
        Api(ApiKey.SYNC_GROUP, "SyncGroup", 0, 5, 4),
        Api(ApiKey.DESCRIBE_GROUPS, "DescribeGroups", 0, 5, 5),
        Api(ApiKey.LIST_GROUPS, "ListGroups", 0, 3, 3),
        Api(ApiKey.SASL_HANDSHAKE, "SaslHandshake", 0, 1, NEVER),
        Api(ApiKey.API_VERSIONS, "ApiVersions", 0, 3, 3),
        Api(ApiKey.CREATE_TOPICS, "CreateTopics", 0, 5, 5),
        Api(ApiKey.DELETE_TOPICS, "DeleteTopics", 0, 4, 4),
        Api(ApiKey.DELETE_RECORDS, "DeleteRecords", 0, 1, 2),
        Api(ApiKey.INIT_PRODUCER_ID, "InitProducerId", 0, 3, 2),
        Api(ApiKey.OFFSET_FOR_LEADER_EPOCH, "OffsetForLeaderEpoch", 0, 3, 4),
        Api(ApiKey.ADD_PARTITIONS_TO_TXN, "AddPartitionsToTxn", 0, 1, 3),
        Api(ApiKey.ADD_OFFSETS_TO_TXN, "AddOffsetsToTxn", 0, 1, 3),
        Api(ApiKey.END_TXN, "EndTxn", 0, 1, 3),
        Api(ApiKey.WRITE_TXN_MARKERS, "WriteTxnMarkers", 0, 1, 1),
        Api(ApiKey.TXN_OFFSET_COMMIT, "TxnOffsetCommit", 0, 3, 3),
        Api(ApiKey.DESCRIBE_ACLS, "DescribeAcls", 0, 2, 2),
        Api(ApiKey.CREATE_ACLS, "CreateAcls", 0, 2, 2),
        Api(ApiKey.DELETE_ACLS, "DeleteAcls", 0, 2, 2),
        Api(ApiKey.DESCRIBE_CONFIGS, "DescribeConfigs", 0, 4, 4),
        Api(ApiKey.ALTER_CONFIGS, "AlterConfigs", 0, 1, 2),
        Api(ApiKey.ALTER_REPLICA_LOG_DIRS, "AlterReplicaLogDirs", 0, 1, 2),
        Api(ApiKey.DESCRIBE_LOG_DIRS, "DescribeLogDirs", 0, 4, 2),
        Api(ApiKey.SASL_AUTHENTICATE, "SaslAuthenticate", 0, 2, 2),
        Api(ApiKey.CREATE_PARTITIONS, "CreatePartitions", 0, 2, 2),
        Api(ApiKey.DELETE_GROUPS, "DeleteGroups", 0, 2, 2),
        Api(ApiKey.ELECT_LEADERS, "ElectLeaders", 0, 2, 2),
        Api(ApiKey.INCREMENTAL_ALTER_CONFIGS, "IncrementalAlterConfigs", 0, 1, 1),
        Api(ApiKey.ALTER_PARTITION_REASSIGNMENTS, "AlterPartitionReassignments", 0, 0, 0),
        Api(ApiKey.LIST_PARTITION_REASSIGNMENTS, "ListPartitionReassignments", 0, 0, 0),
        Api(ApiKey.OFFSET_DELETE, "OffsetDelete", 0, 0, NEVER),
        Api(ApiKey.DESCRIBE_CLIENT_QUOTAS, "DescribeClientQuotas", 0, 0, 1),
        Api(ApiKey.ALTER_CLIENT_QUOTAS, "AlterClientQuotas", 0, 0, 1),
        Api(ApiKey.DESCRIBE_CLUSTER, "DescribeCluster", 0, 1, 0),
        Api(ApiKey.DESCRIBE_PRODUCERS, "DescribeProducers", 0, 0, 0),
        Api(ApiKey.DESCRIBE_TRANSACTIONS, "DescribeTransactions", 0, 0, 0),
        Api(ApiKey.LIST_TRANSACTIONS, "ListTransactions", 0, 1, 0),
    )
}

CONTROL_APIS: Final = frozenset(
    {ApiKey.LEADER_AND_ISR, ApiKey.STOP_REPLICA, ApiKey.UPDATE_METADATA, ApiKey.CONTROLLED_SHUTDOWN}
)
"""Accepted only on the listener that brokers use among themselves (design D6)."""
