"""Consumer groups: coordinator, membership, committed offsets, and their administration."""

TABLE = """
FindCoordinatorRequest 0-4, flexible 3+
key string 0-3
key_type int8 1+
coordinator_keys []string 4+

FindCoordinatorResponse 0-4, flexible 3+
throttle_time_ms int32 1+
error_code int16 0-3
error_message string 1-3, null
node_id int32 0-3
host string 0-3
port int32 0-3
coordinators []Coordinator 4+
  key string
  node_id int32
  host string
  port int32
  error_code int16
  error_message string, null

JoinGroupRequest 0-9, flexible 6+
group_id string
session_timeout_ms int32
rebalance_timeout_ms int32 1+ = -1
member_id string
group_instance_id string 5+, null = null
protocol_type string
protocols []JoinGroupRequestProtocol
  name string
  metadata bytes
reason string 8+, null = null

JoinGroupResponse 0-9, flexible 6+
throttle_time_ms int32 2+
error_code int16
generation_id int32 = -1
protocol_type string 7+, null = null
protocol_name string, null 7+
leader string
skip_assignment bool 9+
member_id string
members []JoinGroupResponseMember
  member_id string
  group_instance_id string 5+, null = null
  metadata bytes

HeartbeatRequest 0-4, flexible 4+
group_id string
generation_id int32
member_id string
group_instance_id string 3+, null = null

HeartbeatResponse 0-4, flexible 4+
throttle_time_ms int32 1+
error_code int16

LeaveGroupRequest 0-5, flexible 4+
group_id string
member_id string 0-2
members []MemberIdentity 3+
  member_id string
  group_instance_id string, null = null
  reason string 5+, null = null

LeaveGroupResponse 0-5, flexible 4+
throttle_time_ms int32 1+
error_code int16
members []MemberResponse 3+
  member_id string
  group_instance_id string, null
  error_code int16

SyncGroupRequest 0-5, flexible 4+
group_id string
generation_id int32
member_id string
group_instance_id string 3+, null = null
protocol_type string 5+, null = null
protocol_name string 5+, null = null
assignments []SyncGroupRequestAssignment
  member_id string
  assignment bytes

SyncGroupResponse 0-5, flexible 4+
throttle_time_ms int32 1+
error_code int16
protocol_type string 5+, null = null
protocol_name string 5+, null = null
assignment bytes

OffsetCommitRequest 0-8, flexible 8+
group_id string
generation_id_or_member_epoch int32 1+ = -1
member_id string 1+
group_instance_id string 7+, null = null
retention_time_ms int64 2-4 = -1
topics []OffsetCommitRequestTopic
  name string
  partitions []OffsetCommitRequestPartition
    partition_index int32
    committed_offset int64
    committed_leader_epoch int32 6+ = -1
    commit_timestamp int64 1 = -1
    committed_metadata string, null

OffsetCommitResponse 0-8, flexible 8+
throttle_time_ms int32 3+
topics []OffsetCommitResponseTopic
  name string
  partitions []OffsetCommitResponsePartition
    partition_index int32
    error_code int16

OffsetFetchRequest 0-8, flexible 6+
group_id string 0-7
topics []OffsetFetchRequestTopic 0-7, null 2-7
  name string
  partition_indexes []int32
groups []OffsetFetchRequestGroup 8+
  group_id string
  topics []OffsetFetchRequestTopics, null
    name string
    partition_indexes []int32
require_stable bool 7+

OffsetFetchResponse 0-8, flexible 6+
throttle_time_ms int32 3+
topics []OffsetFetchResponseTopic 0-7
  name string
  partitions []OffsetFetchResponsePartition
    partition_index int32
    committed_offset int64
    committed_leader_epoch int32 5+ = -1
    metadata string, null
    error_code int16
error_code int16 2-7
groups []OffsetFetchResponseGroup 8+
  group_id string
  topics []OffsetFetchResponseTopics
    name string
    partitions []OffsetFetchResponsePartitions
      partition_index int32
      committed_offset int64
      committed_leader_epoch int32 = -1
      metadata string, null
      error_code int16
  error_code int16

OffsetDeleteRequest 0
group_id string
topics []OffsetDeleteRequestTopic
  name string
  partitions []OffsetDeleteRequestPartition
    partition_index int32

OffsetDeleteResponse 0
error_code int16
throttle_time_ms int32
topics []OffsetDeleteResponseTopic
  name string
  partitions []OffsetDeleteResponsePartition
    partition_index int32
    error_code int16

DescribeGroupsRequest 0-5, flexible 5+
groups []string
include_authorized_operations bool 3+

DescribeGroupsResponse 0-5, flexible 5+
throttle_time_ms int32 1+
groups []DescribedGroup
  error_code int16
  group_id string
  group_state string
  protocol_type string
  protocol_data string
  members []DescribedGroupMember
    member_id string
    group_instance_id string 4+, null = null
    client_id string
    client_host string
    member_metadata bytes
    member_assignment bytes
  authorized_operations int32 3+ = -2147483648

ListGroupsRequest 0-4, flexible 3+
states_filter []string 4+

ListGroupsResponse 0-4, flexible 3+
throttle_time_ms int32 1+
error_code int16
groups []ListedGroup
  group_id string
  protocol_type string
  group_state string 4+

DeleteGroupsRequest 0-2, flexible 2+
groups_names []string

DeleteGroupsResponse 0-2, flexible 2+
throttle_time_ms int32
results []DeletableGroupResult
  group_id string
  error_code int16
"""
