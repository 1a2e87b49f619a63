"""Produce, Fetch, and what clients ask before them: offsets, epochs, metadata, versions."""

TABLE = """
ProduceRequest 0-9, flexible 9+
transactional_id string 3+, null 3+ = null
acks int16
timeout_ms int32
topic_data []TopicProduceData
  name string
  partition_data []PartitionProduceData
    index int32
    records records, null

ProduceResponse 0-9, flexible 9+
responses []TopicProduceResponse
  name string
  partition_responses []PartitionProduceResponse
    index int32
    error_code int16
    base_offset int64
    log_append_time_ms int64 2+ = -1
    log_start_offset int64 5+ = -1
    record_errors []BatchIndexAndErrorMessage 8+
      batch_index int32
      batch_index_error_message string, null = null
    error_message string 8+, null = null
throttle_time_ms int32 1+

FetchRequest 0-11, flexible 12+
replica_id int32 = -1
max_wait_ms int32
min_bytes int32
max_bytes int32 3+ = 0x7fffffff
isolation_level int8 4+
session_id int32 7+
session_epoch int32 7+ = -1
topics []FetchTopic
  topic string
  partitions []FetchPartition
    partition int32
    current_leader_epoch int32 9+ = -1
    fetch_offset int64
    log_start_offset int64 5+ = -1
    partition_max_bytes int32
forgotten_topics_data []ForgottenTopic 7+
  topic string
  partitions []int32
rack_id string 11+

FetchResponse 0-11, flexible 12+
throttle_time_ms int32 1+
error_code int16 7+
session_id int32 7+
responses []FetchableTopicResponse
  topic string
  partitions []PartitionData
    partition_index int32
    error_code int16
    high_watermark int64
    last_stable_offset int64 4+ = -1
    log_start_offset int64 5+ = -1
    aborted_transactions []AbortedTransaction 4+, null
      producer_id int64
      first_offset int64
    preferred_read_replica int32 11+ = -1
    records records, null

ListOffsetsRequest 0-7, flexible 6+
replica_id int32 = -1
isolation_level int8 2+
topics []ListOffsetsTopic
  name string
  partitions []ListOffsetsPartition
    partition_index int32
    current_leader_epoch int32 4+ = -1
    timestamp int64
    max_num_offsets int32 0 = 1

ListOffsetsResponse 0-7, flexible 6+
throttle_time_ms int32 2+
topics []ListOffsetsTopicResponse
  name string
  partitions []ListOffsetsPartitionResponse
    partition_index int32
    error_code int16
    old_style_offsets []int64 0
    timestamp int64 1+ = -1
    offset int64 1+ = -1
    leader_epoch int32 4+ = -1

MetadataRequest 0-12, flexible 9+
topics []MetadataRequestTopic, null 1+
  topic_id uuid 10+
  name string, null 10+
allow_auto_topic_creation bool 4+ = true
include_cluster_authorized_operations bool 8-10
include_topic_authorized_operations bool 8+

MetadataResponse 0-12, flexible 9+
throttle_time_ms int32 3+
brokers []MetadataResponseBroker
  node_id int32
  host string
  port int32
  rack string 1+, null = null
cluster_id string 2+, null = null
controller_id int32 1+ = -1
topics []MetadataResponseTopic
  error_code int16
  name string, null 12+
  topic_id uuid 10+
  is_internal bool 1+
  partitions []MetadataResponsePartition
    error_code int16
    partition_index int32
    leader_id int32
    leader_epoch int32 7+ = -1
    replica_nodes []int32
    isr_nodes []int32
    offline_replicas []int32 5+
  authorized_operations int32 8+ = -2147483648
authorized_operations int32 8-10 = -2147483648

ApiVersionsRequest 0-3, flexible 3+
client_software_name string 3+
client_software_version string 3+

ApiVersionsResponse 0-3, flexible 3+
error_code int16
api_keys []ApiVersion
  api_key int16
  min_version int16
  max_version int16
throttle_time_ms int32 1+
supported_features []SupportedFeatureKey 3+, tag 0
  name string
  min_version int16
  max_version int16
finalized_features_epoch int64 3+, tag 1 = -1
finalized_features []FinalizedFeatureKey 3+, tag 2
  name string
  max_version_level int16
  min_version_level int16
zk_migration_ready bool 3+, tag 3

OffsetForLeaderEpochRequest 0-4, flexible 4+
replica_id int32 3+ = -2
topics []OffsetForLeaderTopic
  topic string
  partitions []OffsetForLeaderPartition
    partition int32
    current_leader_epoch int32 2+ = -1
    leader_epoch int32

OffsetForLeaderEpochResponse 0-4, flexible 4+
throttle_time_ms int32 2+
topics []OffsetForLeaderTopicResult
  topic string
  partitions []EpochEndOffset
    error_code int16
    partition int32
    leader_epoch int32 1+ = -1
    end_offset int64 = -1

DeleteRecordsRequest 0-2, flexible 2+
topics []DeleteRecordsTopic
  name string
  partitions []DeleteRecordsPartition
    partition_index int32
    offset int64
timeout_ms int32

DeleteRecordsResponse 0-2, flexible 2+
throttle_time_ms int32
topics []DeleteRecordsTopicResult
  name string
  partitions []DeleteRecordsPartitionResult
    partition_index int32
    low_watermark int64
    error_code int16
"""
