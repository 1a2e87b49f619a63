"""Errors by name: those that Kafka clients receive, those of ZooKeeper, and the fence that ends a controller's term.

Each package maps foreign exceptions to these at its border. Expected outcomes, such as an election without a leader,
are return values and not exceptions.
"""

from __future__ import annotations

from enum import IntEnum


class ErrorCode(IntEnum):
    """Kafka's protocol error codes with Kafka's names. Codes above 88 are only sent by newer APIs."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    INVALID_FETCH_SIZE = 4
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    BROKER_NOT_AVAILABLE = 8
    REPLICA_NOT_AVAILABLE = 9
    MESSAGE_TOO_LARGE = 10
    STALE_CONTROLLER_EPOCH = 11
    OFFSET_METADATA_TOO_LARGE = 12
    NETWORK_EXCEPTION = 13
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC_EXCEPTION = 17
    RECORD_LIST_TOO_LARGE = 18
    NOT_ENOUGH_REPLICAS = 19
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
    INVALID_REQUIRED_ACKS = 21
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    INVALID_COMMIT_OFFSET_SIZE = 28
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    NOT_CONTROLLER = 41
    INVALID_REQUEST = 42
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    INVALID_TRANSACTION_TIMEOUT = 50
    CONCURRENT_TRANSACTIONS = 51
    TRANSACTION_COORDINATOR_FENCED = 52
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    SECURITY_DISABLED = 54
    OPERATION_NOT_ATTEMPTED = 55
    KAFKA_STORAGE_ERROR = 56
    LOG_DIR_NOT_FOUND = 57
    SASL_AUTHENTICATION_FAILED = 58
    UNKNOWN_PRODUCER_ID = 59
    REASSIGNMENT_IN_PROGRESS = 60
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    FETCH_SESSION_ID_NOT_FOUND = 70
    INVALID_FETCH_SESSION_EPOCH = 71
    LISTENER_NOT_FOUND = 72
    TOPIC_DELETION_DISABLED = 73
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    UNSUPPORTED_COMPRESSION_TYPE = 76
    STALE_BROKER_EPOCH = 77
    OFFSET_NOT_AVAILABLE = 78
    MEMBER_ID_REQUIRED = 79
    PREFERRED_LEADER_NOT_AVAILABLE = 80
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83
    ELECTION_NOT_NEEDED = 84
    NO_REASSIGNMENT_IN_PROGRESS = 85
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    INVALID_RECORD = 87
    UNSTABLE_OFFSET_COMMIT = 88
    TRANSACTIONAL_ID_NOT_FOUND = 105


class KlammError(Exception):
    """The base class of klamm's exceptions."""


class ConfigError(KlammError):
    """An invalid setting. The process does not start; the message names the key, the value and what is allowed."""


class KafkaError(KlammError):
    """An error for a client: Kafka's code, and a message for the field `error_message` if the API has one."""

    def __init__(self, code: ErrorCode, message: str | None = None) -> None:
        super().__init__(f"{code.name}: {message}" if message else code.name)
        self.code = code
        self.message = message


class ZooKeeperError(KlammError):
    """An error from ZooKeeper, with the path that it concerns."""

    code: int = -1

    def __init__(self, path: str = "", detail: str = "") -> None:
        head = f"{type(self).__name__} {path}".rstrip()
        super().__init__(f"{head}: {detail}" if detail else head)
        self.path = path


class RuntimeInconsistency(ZooKeeperError):
    """The result of an operation in a failed multi, if another operation failed."""

    code = -2


class ConnectionLoss(ZooKeeperError):
    """The connection broke while the request was in flight. ZooKeeper may have applied it, or may still do so."""

    code = -4


class Unimplemented(ZooKeeperError):
    code = -6


class MarshallingError(ZooKeeperError):
    code = -5


class BadArguments(ZooKeeperError):
    code = -8


class NoNode(ZooKeeperError):
    code = -101


class NoAuth(ZooKeeperError):
    code = -102


class BadVersion(ZooKeeperError):
    code = -103


class NoChildrenForEphemerals(ZooKeeperError):
    code = -108


class NodeExists(ZooKeeperError):
    code = -110


class NotEmpty(ZooKeeperError):
    code = -111


class SessionExpired(ZooKeeperError):
    """The session is gone, with its ephemeral nodes and watches. Its requests are not retried."""

    code = -112


class InvalidAcl(ZooKeeperError):
    code = -114


class AuthFailed(ZooKeeperError):
    code = -115


class ZNodeError(KlammError):
    """A znode with unusable content. It is skipped and reported, and never ends a controller."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class ControllerMoved(KlammError):
    """The fence failed a write: another controller has been elected, and this one must stop."""
