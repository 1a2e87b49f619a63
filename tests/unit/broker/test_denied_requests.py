"""A client that may not do what it asks for is refused, request by request, and nothing happens."""

from __future__ import annotations

from typing import Any

import pytest

from klamm.model.errors import ErrorCode
from klamm.security.authorizer import Operation
from klamm.wire.apis import ApiKey
from klamm.wire.messages import request_class

from .one_broker import OneBroker, one

__all__ = ["one"]

GROUP, TOPIC, TRANSACTION = "group", "orders", "tx"
OF_GROUP = ErrorCode.GROUP_AUTHORIZATION_FAILED
OF_TOPIC = ErrorCode.TOPIC_AUTHORIZATION_FAILED
OF_TRANSACTION = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def offsets(key: ApiKey, **fields: Any) -> list[Any]:
    """The topics of a request about committed offsets: partition 0 of one topic."""
    names = {
        ApiKey.OFFSET_COMMIT: ("OffsetCommitRequestTopic", "OffsetCommitRequestPartition"),
        ApiKey.TXN_OFFSET_COMMIT: ("TxnOffsetCommitRequestTopic", "TxnOffsetCommitRequestPartition"),
        ApiKey.OFFSET_DELETE: ("OffsetDeleteRequestTopic", "OffsetDeleteRequestPartition"),
    }
    topic, partition = names[key]
    topic_class = getattr(request_class(key), topic)
    return [topic_class(name=TOPIC, partitions=[getattr(topic_class, partition)(partition_index=0, **fields)])]


COMMITTED = {"committed_offset": 1, "committed_metadata": ""}
MEMBER = {"group_id": GROUP, "member_id": "m", "group_instance_id": None}
LEAVING = request_class(ApiKey.LEAVE_GROUP).MemberIdentity(member_id="m", group_instance_id=None)
FETCHED = request_class(ApiKey.OFFSET_FETCH).OffsetFetchRequestTopic(name=TOPIC, partition_indexes=[0])

REQUESTS: dict[str, tuple[ApiKey, int, dict[str, Any]]] = {
    "heartbeat": (ApiKey.HEARTBEAT, 3, {**MEMBER, "generation_id": 1}),
    "leave": (ApiKey.LEAVE_GROUP, 3, {"group_id": GROUP, "members": [LEAVING]}),
    "sync": (ApiKey.SYNC_GROUP, 3, {**MEMBER, "generation_id": 1, "assignments": []}),
    "commit": (
        ApiKey.OFFSET_COMMIT,
        7,
        {**MEMBER, "generation_id_or_member_epoch": -1, "topics": offsets(ApiKey.OFFSET_COMMIT, **COMMITTED)},
    ),
    "commit in a transaction": (
        ApiKey.TXN_OFFSET_COMMIT,
        2,
        {
            "transactional_id": TRANSACTION,
            "group_id": GROUP,
            "producer_id": 7,
            "producer_epoch": 0,
            "topics": offsets(ApiKey.TXN_OFFSET_COMMIT, **COMMITTED),
        },
    ),
    "fetch offsets": (ApiKey.OFFSET_FETCH, 5, {"group_id": GROUP, "topics": [FETCHED]}),
    "delete offsets": (ApiKey.OFFSET_DELETE, 0, {"group_id": GROUP, "topics": offsets(ApiKey.OFFSET_DELETE)}),
    "delete the group": (ApiKey.DELETE_GROUPS, 1, {"groups_names": [GROUP]}),
    "describe the group": (ApiKey.DESCRIBE_GROUPS, 3, {"groups": [GROUP], "include_authorized_operations": False}),
    "delete the topic": (ApiKey.DELETE_TOPICS, 3, {"topic_names": [TOPIC], "timeout_ms": 0}),
}


def errors_in(answer: Any) -> set[int]:
    """The error codes of an answer, of all its levels; without 0, which says nothing about the levels below."""
    found: set[int] = set()
    for name in getattr(answer, "__slots__", ()):
        value = getattr(answer, name)
        if name == "error_code" and value:
            found.add(value)
        for entry in value if isinstance(value, list | tuple) else ():
            found |= errors_in(entry)
    return found


@pytest.mark.parametrize(
    ("what", "operation", "resource", "error"),
    [
        ("heartbeat", Operation.READ, GROUP, OF_GROUP),
        ("leave", Operation.READ, GROUP, OF_GROUP),
        ("sync", Operation.READ, GROUP, OF_GROUP),
        ("commit", Operation.READ, GROUP, OF_GROUP),
        ("commit", Operation.READ, TOPIC, OF_TOPIC),
        ("commit in a transaction", Operation.WRITE, TRANSACTION, OF_TRANSACTION),
        ("commit in a transaction", Operation.READ, GROUP, OF_GROUP),
        ("commit in a transaction", Operation.READ, TOPIC, OF_TOPIC),
        ("fetch offsets", Operation.DESCRIBE, GROUP, OF_GROUP),
        ("delete offsets", Operation.DELETE, GROUP, OF_GROUP),
        ("delete the group", Operation.DELETE, GROUP, OF_GROUP),
        ("describe the group", Operation.DESCRIBE, GROUP, OF_GROUP),
        ("delete the topic", Operation.DELETE, TOPIC, OF_TOPIC),
    ],
)
async def test_it_is_refused(one: OneBroker, what: str, operation: Operation, resource: str, error: ErrorCode) -> None:
    await one.told()
    key, version, fields = REQUESTS[what]
    assert error not in errors_in(await one.ask(key, version, **fields)), "without the denial it is not refused so"
    one.guard.denied.add((operation, resource))
    writes = len(one.zk.tree.writes)
    assert error in errors_in(await one.ask(key, version, **fields))
    assert len(one.zk.tree.writes) == writes
