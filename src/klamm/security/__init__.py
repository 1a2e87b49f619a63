"""Authorizer and quotas. Everything is allowed and unlimited, because neither can be configured yet."""
