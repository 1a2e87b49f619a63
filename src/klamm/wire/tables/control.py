"""What the controller and brokers say to each other. Partition states are flat in old versions, and by topic since."""

TABLE = """
LeaderAndIsrRequest 0-4, flexible 4+
controller_id int32
controller_epoch int32
broker_epoch int64 2+ = -1
ungrouped_partition_states []UngroupedPartitionState 0-1
  topic_name string
  partition_index int32
  controller_epoch int32
  leader int32
  leader_epoch int32
  isr []int32
  zk_version int32
  replicas []int32
  is_new bool 1
topic_states []TopicState 2+
  topic_name string
  partition_states []PartitionState
    partition_index int32
    controller_epoch int32
    leader int32
    leader_epoch int32
    isr []int32
    zk_version int32
    replicas []int32
    adding_replicas []int32 3+
    removing_replicas []int32 3+
    is_new bool
live_leaders []LiveLeader
  broker_id int32
  host_name string
  port int32

LeaderAndIsrResponse 0-4, flexible 4+
error_code int16
partition_errors []PartitionError
  topic_name string
  partition_index int32
  error_code int16

StopReplicaRequest 0-3, flexible 2+
controller_id int32
controller_epoch int32
broker_epoch int64 1+ = -1
delete_partitions bool 0-2
ungrouped_partitions []UngroupedPartition 0
  topic_name string
  partition_index int32
topics []TopicPartitions 1-2
  name string
  partition_indexes []int32
topic_states []TopicState 3+
  topic_name string
  partition_states []PartitionState
    partition_index int32
    leader_epoch int32 = -1
    delete_partition bool

StopReplicaResponse 0-3, flexible 2+
error_code int16
partition_errors []PartitionError
  topic_name string
  partition_index int32
  error_code int16

UpdateMetadataRequest 0-6, flexible 6+
controller_id int32
controller_epoch int32
broker_epoch int64 5+ = -1
ungrouped_partition_states []UngroupedPartitionState 0-4
  topic_name string
  partition_index int32
  controller_epoch int32
  leader int32
  leader_epoch int32
  isr []int32
  zk_version int32
  replicas []int32
  offline_replicas []int32 4
topic_states []TopicState 5+
  topic_name string
  partition_states []PartitionState
    partition_index int32
    controller_epoch int32
    leader int32
    leader_epoch int32
    isr []int32
    zk_version int32
    replicas []int32
    offline_replicas []int32
live_brokers []LiveBroker
  id int32
  host string 0
  port int32 0
  endpoints []LiveEndpoint 1+
    port int32
    host string
    listener string 3+
    security_protocol int16
  rack string 2+, null = null

UpdateMetadataResponse 0-6, flexible 6+
error_code int16

ControlledShutdownRequest 0-3, flexible 3+
broker_id int32
broker_epoch int64 2+ = -1

ControlledShutdownResponse 0-3, flexible 3+
error_code int16
remaining_partitions []RemainingPartition
  topic_name string
  partition_index int32
"""
