"""Groups through the client: answers become values, requests go to the coordinator."""

from __future__ import annotations

from typing import Any

import pytest

from klamm.client.addresses import addresses
from klamm.client.cluster import ClusterClient
from klamm.client.groups import GroupAdmin, GroupMember, ListedGroup, assigned_partitions
from klamm.model.errors import ErrorCode
from klamm.model.ids import TopicPartition
from klamm.wire.apis import ApiKey
from klamm.wire.messages import response_class

from .fake_brokers import FakeWorld

ASSIGNMENT = b"\0\1\0\0\0\1\0\1t\0\0\0\2\0\0\0\1\0\0\0\0\xff\xff\xff\xff"
"""Partitions 1 and 0 of topic t, without user data."""
PLACES = tuple(TopicPartition("t", number) for number in range(3))


def world() -> FakeWorld:
    made = FakeWorld()
    made.leaders["t"] = [1, 2, 1]
    for broker in made.brokers.values():
        broker.answers[ApiKey.FIND_COORDINATOR] = lambda key, *_: response_class(key)(node_id=2, host="b2", port=9092)
    return made


def connected(made: FakeWorld) -> Any:
    return ClusterClient(addresses("b1"), network=made, timeout=5.0).running()


@pytest.mark.parametrize("data", [b"", b"\0", b"\0\1\0\0\0\2\0\1t", b"\0\1\x7f\xff\xff\xff"])
def test_an_assignment_that_cannot_be_read_is_empty(data: bytes) -> None:
    assert assigned_partitions(data) == ()


async def test_groups_of_all_brokers_with_their_states() -> None:
    made = world()
    listed, described = response_class(ApiKey.LIST_GROUPS), response_class(ApiKey.DESCRIBE_GROUPS)
    entries = {1: ("g2", ErrorCode.NONE), 2: ("g1", ErrorCode.NOT_COORDINATOR)}
    for broker in made.brokers.values():
        name, code = entries[broker.number]
        found = listed(groups=[listed.ListedGroup(group_id=name, protocol_type="consumer")])
        states = described(groups=[described.DescribedGroup(group_id=name, error_code=code, group_state="Stable")])
        broker.answers[ApiKey.LIST_GROUPS] = lambda *_, found=found: found
        broker.answers[ApiKey.DESCRIBE_GROUPS] = lambda *_, states=states: states
    async with connected(made) as client:
        assert await GroupAdmin(client).list_all() == [
            ListedGroup("g1", "consumer", "", 2),  # it moved between the two requests
            ListedGroup("g2", "consumer", "Stable", 1),
        ]


@pytest.mark.parametrize(("kind", "partitions"), [("consumer", PLACES[:2]), ("connect", ())])
async def test_a_group_with_a_member(kind: str, partitions: tuple[TopicPartition, ...]) -> None:
    made = world()
    cls = response_class(ApiKey.DESCRIBE_GROUPS)
    member = cls.DescribedGroup.DescribedGroupMember(
        member_id="m", client_id="app", client_host="/10.0.0.1", member_assignment=ASSIGNMENT
    )
    entry = cls.DescribedGroup(
        group_id="g", group_state="Stable", protocol_type=kind, protocol_data="range", members=[member]
    )
    made.brokers["b2"].answers[ApiKey.DESCRIBE_GROUPS] = lambda *_: cls(groups=[entry])
    async with connected(made) as client:
        found = await GroupAdmin(client).describe("g")
    assert found.members == (GroupMember("m", None, "app", "/10.0.0.1", partitions),)
    assert found.member_of() == dict.fromkeys(partitions, "app")


async def test_commits_go_to_the_coordinator_as_from_outside_the_group() -> None:
    made = world()
    cls = response_class(ApiKey.OFFSET_COMMIT)

    def commit(key: ApiKey, version: int, request: Any) -> Any:
        assert (request.group_id, request.generation_id_or_member_epoch, request.member_id) == ("g", -1, "")
        topic = cls.OffsetCommitResponseTopic
        codes = {0: ErrorCode.NONE, 1: ErrorCode.UNKNOWN_MEMBER_ID}
        results = [
            topic.OffsetCommitResponsePartition(partition_index=p.partition_index, error_code=codes[p.partition_index])
            for p in request.topics[0].partitions
        ]
        return cls(topics=[topic(name="t", partitions=results)])

    made.brokers["b2"].answers[ApiKey.OFFSET_COMMIT] = commit
    async with connected(made) as client:
        found = await GroupAdmin(client).commit("g", {PLACES[0]: 4, PLACES[1]: 5})
    assert found[PLACES[0]] is None
    refused = found[PLACES[1]]
    assert refused is not None and refused.code is ErrorCode.UNKNOWN_MEMBER_ID


async def test_ranges_take_one_request_per_leader_and_kind_of_end_and_ask_again_what_moved() -> None:
    made = world()
    cls = response_class(ApiKey.LIST_OFFSETS)
    moved = iter([ErrorCode.NONE, ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER])

    def answer(key: ApiKey, version: int, request: Any) -> Any:
        topic = cls.ListOffsetsTopicResponse
        results = [
            topic.ListOffsetsPartitionResponse(
                partition_index=entry.partition_index,
                offset=2 if entry.timestamp == -2 else 9,
                error_code=next(moved, ErrorCode.NONE),
            )
            for entry in request.topics[0].partitions
        ]
        return cls(topics=[topic(name="t", partitions=results)])

    for broker in made.brokers.values():
        broker.answers[ApiKey.LIST_OFFSETS] = answer
    async with connected(made) as client:
        found = await GroupAdmin(client).log_ranges([*PLACES, TopicPartition("gone", 0)])
    assert found == dict.fromkeys(PLACES, (2, 9))
    asked = [broker.keys().count(ApiKey.LIST_OFFSETS) for broker in made.brokers.values()]
    assert asked == [2, 3], "only what broker 2 could not answer at first is asked again"


async def test_partitions_without_a_commit_are_left_out() -> None:
    made = world()
    cls = response_class(ApiKey.OFFSET_FETCH)
    topic = cls.OffsetFetchResponseTopic
    entries = [
        topic.OffsetFetchResponsePartition(partition_index=index, committed_offset=offset, metadata="")
        for index, offset in ((0, 7), (1, -1))
    ]
    made.brokers["b2"].answers[ApiKey.OFFSET_FETCH] = lambda *_: cls(topics=[topic(name="t", partitions=entries)])
    async with connected(made) as client:
        assert await GroupAdmin(client).offsets("g") == {PLACES[0]: 7}
