"""Topics, partitions, replicas: creation, deletion, growth, elections, reassignment, log directories, the cluster."""

TABLE = """
CreateTopicsRequest 0-7, flexible 5+
topics []CreatableTopic
  name string
  num_partitions int32
  replication_factor int16
  assignments []CreatableReplicaAssignment
    partition_index int32
    broker_ids []int32
  configs []CreatableTopicConfig
    name string
    value string, null
timeout_ms int32 = 60000
validate_only bool 1+

CreateTopicsResponse 0-7, flexible 5+
throttle_time_ms int32 2+
topics []CreatableTopicResult
  name string
  topic_id uuid 7+
  error_code int16
  error_message string 1+, null
  topic_config_error_code int16 5+, tag 0
  num_partitions int32 5+ = -1
  replication_factor int16 5+ = -1
  configs []CreatableTopicConfigs 5+, null
    name string
    value string, null
    read_only bool
    config_source int8 = -1
    is_sensitive bool

DeleteTopicsRequest 0-6, flexible 4+
topics []DeleteTopicState 6+
  name string, null = null
  topic_id uuid
topic_names []string 0-5
timeout_ms int32

DeleteTopicsResponse 0-6, flexible 4+
throttle_time_ms int32 1+
responses []DeletableTopicResult
  name string, null 6+
  topic_id uuid 6+
  error_code int16
  error_message string 5+, null = null

CreatePartitionsRequest 0-3, flexible 2+
topics []CreatePartitionsTopic
  name string
  count int32
  assignments []CreatePartitionsAssignment, null = null
    broker_ids []int32
timeout_ms int32
validate_only bool

CreatePartitionsResponse 0-3, flexible 2+
throttle_time_ms int32
results []CreatePartitionsTopicResult
  name string
  error_code int16
  error_message string, null = null

ElectLeadersRequest 0-2, flexible 2+
election_type int8 1+
topic_partitions []TopicPartitions, null
  topic string
  partitions []int32
timeout_ms int32 = 60000

ElectLeadersResponse 0-2, flexible 2+
throttle_time_ms int32
error_code int16 1+
replica_election_results []ReplicaElectionResult
  topic string
  partition_result []PartitionResult
    partition_id int32
    error_code int16
    error_message string, null

AlterPartitionReassignmentsRequest 0, flexible 0+
timeout_ms int32 = 60000
topics []ReassignableTopic
  name string
  partitions []ReassignablePartition
    partition_index int32
    replicas []int32, null = null

AlterPartitionReassignmentsResponse 0, flexible 0+
throttle_time_ms int32
error_code int16
error_message string, null
responses []ReassignableTopicResponse
  name string
  partitions []ReassignablePartitionResponse
    partition_index int32
    error_code int16
    error_message string, null

ListPartitionReassignmentsRequest 0, flexible 0+
timeout_ms int32 = 60000
topics []ListPartitionReassignmentsTopics, null = null
  name string
  partition_indexes []int32

ListPartitionReassignmentsResponse 0, flexible 0+
throttle_time_ms int32
error_code int16
error_message string, null
topics []OngoingTopicReassignment
  name string
  partitions []OngoingPartitionReassignment
    partition_index int32
    replicas []int32
    adding_replicas []int32
    removing_replicas []int32

AlterReplicaLogDirsRequest 0-2, flexible 2+
dirs []AlterReplicaLogDir
  path string
  topics []AlterReplicaLogDirTopic
    name string
    partitions []int32

AlterReplicaLogDirsResponse 0-2, flexible 2+
throttle_time_ms int32
results []AlterReplicaLogDirTopicResult
  topic_name string
  partitions []AlterReplicaLogDirPartitionResult
    partition_index int32
    error_code int16

DescribeLogDirsRequest 0-4, flexible 2+
topics []DescribableLogDirTopic, null
  topic string
  partitions []int32

DescribeLogDirsResponse 0-4, flexible 2+
throttle_time_ms int32
error_code int16 3+
results []DescribeLogDirsResult
  error_code int16
  log_dir string
  topics []DescribeLogDirsTopic
    name string
    partitions []DescribeLogDirsPartition
      partition_index int32
      partition_size int64
      offset_lag int64
      is_future_key bool
  total_bytes int64 4+ = -1
  usable_bytes int64 4+ = -1

DescribeClusterRequest 0-1, flexible 0+
include_cluster_authorized_operations bool
endpoint_type int8 1+ = 1

DescribeClusterResponse 0-1, flexible 0+
throttle_time_ms int32
error_code int16
error_message string, null = null
endpoint_type int8 1+ = 1
cluster_id string
controller_id int32 = -1
brokers []DescribeClusterBroker
  broker_id int32
  host string
  port int32
  rack string, null = null
authorized_operations int32 = -2147483648
"""
