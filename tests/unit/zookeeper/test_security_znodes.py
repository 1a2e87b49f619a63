"""ACLs, delegation tokens and features: the bytes that Kafka's tools and encoders wrote, and malformed content."""

from __future__ import annotations

from typing import Any

import pytest

from klamm.model.errors import ZNodeError
from klamm.zookeeper.znodes import acl, acl_change, delegation_token, feature
from klamm.zookeeper.znodes.acl import AclEntry, PatternType
from klamm.zookeeper.znodes.acl_change import ChangedResource
from klamm.zookeeper.znodes.delegation_token import DelegationToken

LETTERS = (
    AclEntry("User:a", "Allow", "Describe", "10.0.0.1"),
    AclEntry("User:b c", "Deny", "All", "*"),
)
TOKEN = DelegationToken("tok-1", "User:o:w ner", ("User:r1", "User:r2"), 1000, 2000, 3000)

# path, bytes as Kafka 2.5.1 wrote them, their value, our codec
WRITTEN_BY_KAFKA: list[tuple[str, bytes, Any, Any]] = [
    (
        "/kafka-acl/Topic/letters",
        b'{"version":1,"acls":[{"principal":"User:a","permissionType":"Allow","operation":"Describe","host":"10.0.0.1"},'
        b'{"principal":"User:b c","permissionType":"Deny","operation":"All","host":"*"}]}',
        LETTERS,
        acl,
    ),
    (
        "/kafka-acl-changes/acl_changes_0000000000",
        b"TOPIC:letters",
        ChangedResource(PatternType.LITERAL, "Topic", "letters"),
        acl_change,
    ),
    (
        "/kafka-acl-changes/acl_changes_0000000001",
        b"CLUSTER:kafka-cluster",
        ChangedResource(PatternType.LITERAL, "Cluster", "kafka-cluster"),
        acl_change,
    ),
    (
        "/kafka-acl-extended-changes/acl_changes_0000000000",
        b'{"version":1,"resourceType":"TOPIC","name":"pre","patternType":"PREFIXED"}',
        ChangedResource(PatternType.PREFIXED, "Topic", "pre"),
        acl_change,
    ),
    (
        "/delegation_token/tokens/tok-1",
        b'{"issueTimestamp":1000,"renewers":["User%3Ar1","User%3Ar2"],"tokenId":"tok-1","owner":"User%3Ao%3Aw%20ner",'
        b'"expiryTimestamp":2000,"maxTimestamp":3000,"version":1}',
        TOKEN,
        delegation_token,
    ),
]


@pytest.mark.parametrize(("path", "data", "value", "codec"), WRITTEN_BY_KAFKA, ids=[w[0] for w in WRITTEN_BY_KAFKA])
def test_bytes_are_kafkas_both_ways(path: str, data: bytes, value: Any, codec: Any) -> None:
    assert codec.decode(path, data) == value
    assert codec.encode(value) == data


def test_paths() -> None:
    assert acl.path(PatternType.LITERAL, "Topic", "letters") == "/kafka-acl/Topic/letters"
    assert acl.path(PatternType.PREFIXED, "Group", "g") == "/kafka-acl-extended/prefixed/Group/g"
    assert ChangedResource(PatternType.PREFIXED, "Topic", "pre").acl_path == "/kafka-acl-extended/prefixed/Topic/pre"
    assert acl_change.PREFIXES[PatternType.LITERAL] == "/kafka-acl-changes/acl_changes_"
    assert delegation_token.path("tok-1") == "/delegation_token/tokens/tok-1"
    assert delegation_token.CHANGES_PREFIX == "/delegation_token/token_changes/token_change_"


def test_the_order_of_newer_kafkas_and_their_words() -> None:
    data = (
        b'{"acls":[{"principal":"User:a","permissionType":"Allow","host":"*","operation":"CreateTokens"}],"version":1}'
    )
    assert acl.decode("/kafka-acl/User/u", data) == (AclEntry("User:a", "Allow", "CreateTokens", "*"),)
    assert acl.decode("/kafka-acl/Topic/t", None) == ()


def test_changes_as_they_were_written_before_2_0() -> None:
    changed = acl_change.decode("/kafka-acl-changes/acl_changes_0000000000", b"TransactionalId:a:b")
    assert changed == ChangedResource(PatternType.LITERAL, "TransactionalId", "a:b")


def test_a_token_of_3_9() -> None:
    data = (
        b'{"issueTimestamp":1000,"renewers":["User%3Ar1","User%3Ar2"],"tokenRequester":"User%3Areq","tokenId":"tok-1",'
        b'"owner":"User%3Ao%3Aw%20ner","expiryTimestamp":2000,"maxTimestamp":3000,"version":3}'
    )
    assert delegation_token.decode("/delegation_token/tokens/tok-1", data) == TOKEN._replace(requester="User:req")


def test_a_changed_token() -> None:
    path = "/delegation_token/token_changes/token_change_0000000000"
    assert delegation_token.encode_change("tok-1") == b"tok-1"
    assert delegation_token.decode_change(path, b"tok-1") == "tok-1"
    for data in (None, b"", b"\xff"):
        with pytest.raises(ZNodeError, match=path):
            delegation_token.decode_change(path, data)


def test_features_of_each_version() -> None:
    both = b'{"version":1,"status":1,"features":{"f":{"min_version_level":1,"max_version_level":3}}}'
    one = b'{"version":2,"status":1,"features":{"f":{"max_version_level":3}}}'
    assert feature.decode("/feature", both) == (True, {"f": (1, 3)})
    assert feature.decode("/feature", one) == (True, {"f": (3, 3)})
    assert feature.decode("/feature", b'{"version":1,"status":0,"features":{}}') == (False, {})


ACL, CHANGE, EXTENDED = (
    "/kafka-acl/Topic/t",
    "/kafka-acl-changes/acl_changes_1",
    "/kafka-acl-extended-changes/acl_changes_1",
)
TOKENS = "/delegation_token/tokens/t"
MALFORMED: list[tuple[Any, str, bytes | None, str]] = [
    (acl, ACL, b"[]", "expected a JSON object"),
    (acl, ACL, b'{"acls":[]}', "version is missing"),
    (acl, ACL, b'{"version":2,"acls":[]}', "version 2 is not one of 1"),
    (acl, ACL, b'{"version":1}', "acls is missing"),
    (acl, ACL, b'{"version":1,"acls":[1]}', "expected a list of objects"),
    (acl, ACL, b'{"version":1,"acls":[{"principal":"a"}]}', "'a' is not a Type:name"),
    (acl, ACL, b'{"version":1,"acls":[{"principal":"User:a","permissionType":"Maybe"}]}', "neither Allow nor Deny"),
    (acl, ACL, b'{"version":1,"acls":[{"principal":"User:a","permissionType":"Deny"}]}', "operation is missing"),
    (acl_change, CHANGE, None, "expected TYPE:name"),
    (acl_change, CHANGE, b"TOPIC", "expected TYPE:name"),
    (acl_change, CHANGE, b"TOPIC:", "expected TYPE:name"),
    (acl_change, CHANGE, b"SHOE:x", "unknown resource type 'SHOE'"),
    (acl_change, CHANGE, b"\xff:x", "not UTF-8"),
    (acl_change, EXTENDED, b"TOPIC:x", "not JSON"),
    (
        acl_change,
        EXTENDED,
        b'{"version":1,"resourceType":"TOPIC","name":"x","patternType":"LITERAL"}',
        "is not valid here",
    ),
    (acl_change, EXTENDED, b'{"version":1,"resourceType":"TOPIC","name":"x","patternType":"?"}', "is not valid here"),
    (acl_change, EXTENDED, b'{"version":1,"a":1}', "unknown key a"),
    (acl_change, EXTENDED, b'{"version":3,"resourceType":"TOPIC","name":"x","patternType":"PREFIXED"}', "version 3"),
    (delegation_token, TOKENS, None, "no data"),
    (delegation_token, TOKENS, b'{"version":4}', "version 4 is not one of 1, 2, 3"),
    (delegation_token, TOKENS, b'{"version":1}', "renewers: expected a list of principals"),
    (delegation_token, TOKENS, b'{"version":1,"renewers":[]}', "tokenId is missing"),
    (delegation_token, TOKENS, b'{"version":1,"renewers":[],"tokenId":"t"}', "owner: None is not a Type:name"),
    (delegation_token, TOKENS, b'{"version":1,"renewers":[7],"tokenId":"t","owner":"User%3Aa"}', "renewers: 7 is no"),
    (feature, "/feature", b'{"version":3}', "version 3 is not one of 1, 2"),
    (feature, "/feature", b'{"version":1,"status":2}', "status 2 is neither"),
    (feature, "/feature", b'{"version":1,"status":1}', "features is missing"),
    (feature, "/feature", b'{"version":1,"status":1,"features":{"f":1}}', "feature f: expected an object"),
    (feature, "/feature", b'{"version":1,"status":1,"features":{"f":{"max_version_level":1}}}', "min_version_level"),
    (
        feature,
        "/feature",
        b'{"version":1,"status":1,"features":{"f":{"min_version_level":3,"max_version_level":1}}}',
        "levels 3 to 1 are not a valid range",
    ),
]


@pytest.mark.parametrize(("codec", "path", "data", "reason"), MALFORMED, ids=[f"{m[1]} {m[3]}" for m in MALFORMED])
def test_malformed_content_names_path_and_reason(codec: Any, path: str, data: bytes | None, reason: str) -> None:
    with pytest.raises(ZNodeError) as caught:
        codec.decode(path, data)
    assert path in str(caught.value) and reason in str(caught.value)


@pytest.mark.parametrize(("path", "data", "value", "codec"), WRITTEN_BY_KAFKA, ids=[w[0] for w in WRITTEN_BY_KAFKA])
def test_cut_at_any_byte_it_is_a_typed_error_or_a_value(path: str, data: bytes, value: Any, codec: Any) -> None:
    for length in range(len(data)):
        try:
            codec.decode(path, data[:length])
        except ZNodeError:
            continue
