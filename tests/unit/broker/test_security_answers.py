"""What a broker without an authorizer and without SASL answers, and which operations it allows."""

from __future__ import annotations

from typing import Any

import pytest

from klamm.broker.handlers.metadata import NOT_ASKED
from klamm.model.errors import ErrorCode
from klamm.security.authorizer import Operation
from klamm.wire.apis import ApiKey
from klamm.wire.messages import request_class

from .one_broker import INTERNAL, OneBroker, one

__all__ = ["one"]
TOPIC_OPERATIONS = sum(1 << bit for bit in (3, 4, 5, 6, 7, 8, 10, 11))
CLUSTER_OPERATIONS = sum(1 << bit for bit in (5, 7, 8, 10, 11, 12))
CLUSTER_ACTION = 1 << 9


async def acl_errors(one: OneBroker, version: int) -> list[tuple[int, str | None]]:
    acl = {"operation": 3, "permission_type": 3}
    creation = request_class(ApiKey.CREATE_ACLS).AclCreation(
        resource_type=2, resource_name="t", principal="User:a", host="*", **acl
    )
    filters = {"resource_type_filter": 2, "resource_name_filter": None, "principal_filter": None, "host_filter": None}
    described = await one.ask(ApiKey.DESCRIBE_ACLS, version, **filters, **acl)
    created = await one.ask(ApiKey.CREATE_ACLS, version, creations=[creation, creation])
    wanted = request_class(ApiKey.DELETE_ACLS).DeleteAclsFilter(**filters, **acl)
    deleted = await one.ask(ApiKey.DELETE_ACLS, version, filters=[wanted])
    assert (len(created.results), len(deleted.filter_results)) == (2, 1)
    answers: list[Any] = [described, *created.results, *deleted.filter_results]
    return [(answer.error_code, answer.error_message) for answer in answers]


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_acls_need_an_authorizer(one: OneBroker, version: int) -> None:
    disabled = (ErrorCode.SECURITY_DISABLED, "No Authorizer is configured on the broker")
    assert await acl_errors(one, version) == [disabled] * 4
    one.guard.denied = {(Operation.DESCRIBE, "kafka-cluster"), (Operation.ALTER, "kafka-cluster")}
    assert [code for code, _ in await acl_errors(one, version)] == [ErrorCode.CLUSTER_AUTHORIZATION_FAILED] * 4


async def test_sasl_is_out_of_place(one: OneBroker) -> None:
    for version in (0, 1):
        answer = await one.ask(ApiKey.SASL_HANDSHAKE, version, mechanism="PLAIN")
        assert (answer.error_code, list(answer.mechanisms)) == (ErrorCode.ILLEGAL_SASL_STATE, [])
    for version in (0, 1, 2):
        answer = await one.ask(ApiKey.SASL_AUTHENTICATE, version, auth_bytes=b"\0a\0b")
        assert answer.error_code == ErrorCode.ILLEGAL_SASL_STATE


async def metadata(one: OneBroker, version: int, *, asked: bool, context: Any = None) -> Any:
    topics = [request_class(ApiKey.METADATA).MetadataRequestTopic(name=name) for name in ("orders", "secret")]
    fields = {
        "topics": topics,
        "allow_auto_topic_creation": False,
        "include_topic_authorized_operations": asked,
        "include_cluster_authorized_operations": asked,
    }
    return await one.ask(ApiKey.METADATA, version, **({"context": context} if context else {}), **fields)


@pytest.mark.parametrize("version", [8, 9])
async def test_authorized_operations(one: OneBroker, version: int) -> None:
    await one.told()
    one.guard.denied = {(Operation.DESCRIBE, "secret")}
    answer = await metadata(one, version, asked=False)
    assert [answer.authorized_operations, *(topic.authorized_operations for topic in answer.topics)] == [NOT_ASKED] * 3
    answer = await metadata(one, version, asked=True)
    assert [topic.authorized_operations for topic in answer.topics] == [TOPIC_OPERATIONS, NOT_ASKED]
    assert answer.authorized_operations == CLUSTER_OPERATIONS
    brokers = await metadata(one, version, asked=True, context=INTERNAL)
    assert brokers.authorized_operations == CLUSTER_OPERATIONS | CLUSTER_ACTION
    one.guard.denied |= {(Operation.WRITE, "orders"), (Operation.DESCRIBE, "kafka-cluster")}
    answer = await metadata(one, version, asked=True)
    assert answer.topics[0].authorized_operations == TOPIC_OPERATIONS & ~(1 << 4)
    assert answer.authorized_operations == 0


async def test_describe_cluster_tells_operations_if_asked(one: OneBroker) -> None:
    for asked, expected in ((False, NOT_ASKED), (True, CLUSTER_OPERATIONS)):
        answer = await one.ask(ApiKey.DESCRIBE_CLUSTER, 0, include_cluster_authorized_operations=asked)
        assert answer.authorized_operations == expected
