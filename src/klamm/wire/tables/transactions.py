"""Idempotent producers and transactions, and the questions of KIP-664 about them."""

TABLE = """
InitProducerIdRequest 0-4, flexible 2+
transactional_id string, null
transaction_timeout_ms int32
producer_id int64 3+ = -1
producer_epoch int16 3+ = -1

InitProducerIdResponse 0-4, flexible 2+
throttle_time_ms int32
error_code int16
producer_id int64 = -1
producer_epoch int16

AddPartitionsToTxnRequest 0-3, flexible 3+
v3_and_below_transactional_id string
v3_and_below_producer_id int64
v3_and_below_producer_epoch int16
v3_and_below_topics []AddPartitionsToTxnTopic
  name string
  partitions []int32

AddPartitionsToTxnResponse 0-3, flexible 3+
throttle_time_ms int32
results_by_topic_v3_and_below []AddPartitionsToTxnTopicResult
  name string
  results_by_partition []AddPartitionsToTxnPartitionResult
    partition_index int32
    partition_error_code int16

AddOffsetsToTxnRequest 0-3, flexible 3+
transactional_id string
producer_id int64
producer_epoch int16
group_id string

AddOffsetsToTxnResponse 0-3, flexible 3+
throttle_time_ms int32
error_code int16

EndTxnRequest 0-3, flexible 3+
transactional_id string
producer_id int64
producer_epoch int16
committed bool

EndTxnResponse 0-3, flexible 3+
throttle_time_ms int32
error_code int16

WriteTxnMarkersRequest 0-1, flexible 1+
markers []WritableTxnMarker
  producer_id int64
  producer_epoch int16
  transaction_result bool
  topics []WritableTxnMarkerTopic
    name string
    partition_indexes []int32
  coordinator_epoch int32

WriteTxnMarkersResponse 0-1, flexible 1+
markers []WritableTxnMarkerResult
  producer_id int64
  topics []WritableTxnMarkerTopicResult
    name string
    partitions []WritableTxnMarkerPartitionResult
      partition_index int32
      error_code int16

TxnOffsetCommitRequest 0-3, flexible 3+
transactional_id string
group_id string
producer_id int64
producer_epoch int16
generation_id int32 3+ = -1
member_id string 3+
group_instance_id string 3+, null = null
topics []TxnOffsetCommitRequestTopic
  name string
  partitions []TxnOffsetCommitRequestPartition
    partition_index int32
    committed_offset int64
    committed_leader_epoch int32 2+ = -1
    committed_metadata string, null

TxnOffsetCommitResponse 0-3, flexible 3+
throttle_time_ms int32
topics []TxnOffsetCommitResponseTopic
  name string
  partitions []TxnOffsetCommitResponsePartition
    partition_index int32
    error_code int16

DescribeProducersRequest 0, flexible 0+
topics []TopicRequest
  name string
  partition_indexes []int32

DescribeProducersResponse 0, flexible 0+
throttle_time_ms int32
topics []TopicResponse
  name string
  partitions []PartitionResponse
    partition_index int32
    error_code int16
    error_message string, null = null
    active_producers []ProducerState
      producer_id int64
      producer_epoch int32
      last_sequence int32 = -1
      last_timestamp int64 = -1
      coordinator_epoch int32
      current_txn_start_offset int64 = -1

DescribeTransactionsRequest 0, flexible 0+
transactional_ids []string

DescribeTransactionsResponse 0, flexible 0+
throttle_time_ms int32
transaction_states []TransactionState
  error_code int16
  transactional_id string
  transaction_state string
  transaction_timeout_ms int32
  transaction_start_time_ms int64
  producer_id int64
  producer_epoch int16
  topics []TopicData
    topic string
    partitions []int32

ListTransactionsRequest 0-1, flexible 0+
state_filters []string
producer_id_filters []int64
duration_filter int64 1+ = -1

ListTransactionsResponse 0-1, flexible 0+
throttle_time_ms int32
error_code int16
unknown_state_filters []string
transaction_states []TransactionState
  transactional_id string
  producer_id int64
  transaction_state string
"""
