"""Which client may do what. Without an authorizer everything is allowed, except that control requests are obeyed only
on the listener that brokers use among themselves (design D6). Kafka without an authorizer obeys them on any listener.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple, Protocol

from klamm.model.requests import RequestContext


class Operation(Enum):
    READ = "Read"
    WRITE = "Write"
    CREATE = "Create"
    DELETE = "Delete"
    ALTER = "Alter"
    DESCRIBE = "Describe"
    CLUSTER_ACTION = "ClusterAction"
    DESCRIBE_CONFIGS = "DescribeConfigs"
    ALTER_CONFIGS = "AlterConfigs"
    IDEMPOTENT_WRITE = "IdempotentWrite"


_BITS: Final = {
    Operation.READ: 3,
    Operation.WRITE: 4,
    Operation.CREATE: 5,
    Operation.DELETE: 6,
    Operation.ALTER: 7,
    Operation.DESCRIBE: 8,
    Operation.CLUSTER_ACTION: 9,
    Operation.DESCRIBE_CONFIGS: 10,
    Operation.ALTER_CONFIGS: 11,
    Operation.IDEMPOTENT_WRITE: 12,
}
"""The number of each operation in ACLs, and its bit in `authorized_operations` (KIP-430)."""


class ResourceType(Enum):
    TOPIC = "Topic"
    GROUP = "Group"
    CLUSTER = "Cluster"
    TRANSACTIONAL_ID = "TransactionalId"


class Resource(NamedTuple):
    type: ResourceType
    name: str


CLUSTER = Resource(ResourceType.CLUSTER, "kafka-cluster")


_OPERATIONS: Final = {
    ResourceType.TOPIC: (
        Operation.READ,
        Operation.WRITE,
        Operation.CREATE,
        Operation.DELETE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceType.CLUSTER: (
        Operation.CREATE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.CLUSTER_ACTION,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
        Operation.IDEMPOTENT_WRITE,
    ),
    ResourceType.GROUP: (Operation.READ, Operation.DESCRIBE, Operation.DELETE),
}
"""What can be done to each kind of resource."""


def topic(name: str) -> Resource:
    return Resource(ResourceType.TOPIC, name)


def group(name: str) -> Resource:
    return Resource(ResourceType.GROUP, name)


def transactional_id(name: str) -> Resource:
    return Resource(ResourceType.TRANSACTIONAL_ID, name)


class Authorizer(Protocol):
    def authorize(self, context: RequestContext, operation: Operation, resource: Resource) -> bool: ...


class AllowAll:
    """The default: clients may do everything except what only brokers do."""

    def authorize(self, context: RequestContext, operation: Operation, resource: Resource) -> bool:
        return operation is not Operation.CLUSTER_ACTION or context.privileged


def authorized_operations(authorizer: Authorizer, context: RequestContext, resource: Resource) -> int:
    """What the client may do to this resource, as a set of bits."""
    allowed = (op for op in _OPERATIONS[resource.type] if authorizer.authorize(context, op, resource))
    return sum(1 << _BITS[operation] for operation in allowed)
