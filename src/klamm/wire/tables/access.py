"""SASL and access control lists."""

TABLE = """
SaslHandshakeRequest 0-1
mechanism string

SaslHandshakeResponse 0-1
error_code int16
mechanisms []string

SaslAuthenticateRequest 0-2, flexible 2+
auth_bytes bytes

SaslAuthenticateResponse 0-2, flexible 2+
error_code int16
error_message string, null
auth_bytes bytes
session_lifetime_ms int64 1+

DescribeAclsRequest 0-3, flexible 2+
resource_type_filter int8
resource_name_filter string, null
pattern_type_filter int8 1+ = 3
principal_filter string, null
host_filter string, null
operation int8
permission_type int8

DescribeAclsResponse 0-3, flexible 2+
throttle_time_ms int32
error_code int16
error_message string, null
resources []DescribeAclsResource
  resource_type int8
  resource_name string
  pattern_type int8 1+ = 3
  acls []AclDescription
    principal string
    host string
    operation int8
    permission_type int8

CreateAclsRequest 0-3, flexible 2+
creations []AclCreation
  resource_type int8
  resource_name string
  resource_pattern_type int8 1+ = 3
  principal string
  host string
  operation int8
  permission_type int8

CreateAclsResponse 0-3, flexible 2+
throttle_time_ms int32
results []AclCreationResult
  error_code int16
  error_message string, null

DeleteAclsRequest 0-3, flexible 2+
filters []DeleteAclsFilter
  resource_type_filter int8
  resource_name_filter string, null
  pattern_type_filter int8 1+ = 3
  principal_filter string, null
  host_filter string, null
  operation int8
  permission_type int8

DeleteAclsResponse 0-3, flexible 2+
throttle_time_ms int32
filter_results []DeleteAclsFilterResult
  error_code int16
  error_message string, null
  matching_acls []DeleteAclsMatchingAcl
    error_code int16
    error_message string, null
    resource_type int8
    resource_name string
    pattern_type int8 1+ = 3
    principal string
    host string
    operation int8
    permission_type int8
"""
