"""Configurations and client quotas."""

TABLE = """
DescribeConfigsRequest 0-4, flexible 4+
resources []DescribeConfigsResource
  resource_type int8
  resource_name string
  configuration_keys []string, null
include_synonyms bool 1+
include_documentation bool 3+

DescribeConfigsResponse 0-4, flexible 4+
throttle_time_ms int32
results []DescribeConfigsResult
  error_code int16
  error_message string, null
  resource_type int8
  resource_name string
  configs []DescribeConfigsResourceResult
    name string
    value string, null
    read_only bool
    is_default bool 0
    config_source int8 1+ = -1
    is_sensitive bool
    synonyms []DescribeConfigsSynonym 1+
      name string
      value string, null
      source int8
    config_type int8 3+
    documentation string 3+, null

AlterConfigsRequest 0-2, flexible 2+
resources []AlterConfigsResource
  resource_type int8
  resource_name string
  configs []AlterableConfig
    name string
    value string, null
validate_only bool

AlterConfigsResponse 0-2, flexible 2+
throttle_time_ms int32
responses []AlterConfigsResourceResponse
  error_code int16
  error_message string, null
  resource_type int8
  resource_name string

IncrementalAlterConfigsRequest 0-1, flexible 1+
resources []AlterConfigsResource
  resource_type int8
  resource_name string
  configs []AlterableConfig
    name string
    config_operation int8
    value string, null
validate_only bool

IncrementalAlterConfigsResponse 0-1, flexible 1+
throttle_time_ms int32
responses []AlterConfigsResourceResponse
  error_code int16
  error_message string, null
  resource_type int8
  resource_name string

DescribeClientQuotasRequest 0-1, flexible 1+
components []ComponentData
  entity_type string
  match_type int8
  match string, null
strict bool

DescribeClientQuotasResponse 0-1, flexible 1+
throttle_time_ms int32
error_code int16
error_message string, null
entries []EntryData, null
  entity []EntityData
    entity_type string
    entity_name string, null
  values []ValueData
    key string
    value float64

AlterClientQuotasRequest 0-1, flexible 1+
entries []EntryData
  entity []EntityData
    entity_type string
    entity_name string, null
  ops []OpData
    key string
    value float64
    remove bool
validate_only bool

AlterClientQuotasResponse 0-1, flexible 1+
throttle_time_ms int32
entries []EntryData
  error_code int16
  error_message string, null
  entity []EntityData
    entity_type string
    entity_name string, null
"""
