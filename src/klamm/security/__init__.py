"""Principal, authorizer, quotas. Allow-all and unlimited until an authorizer is configured."""
