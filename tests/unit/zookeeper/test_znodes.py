"""The codecs on bytes that a real Kafka 2.5.1 wrote, and on malformed content."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from klamm.model.brokers import Broker, Endpoint, SecurityProtocol
from klamm.model.errors import ZNodeError
from klamm.model.ids import BrokerId, ControllerEpoch, LeaderEpoch, TopicPartition
from klamm.model.partition import Assignment, LeaderAndIsr
from klamm.zookeeper.znodes import (
    broker_id,
    candidates,
    cluster_id,
    config,
    config_change,
    controller,
    controller_epoch,
    delete_topics,
    isr_change,
    log_dir_event,
    partition_state,
    preferred_replica_election,
    producer_id_block,
    reassign_partitions,
    topic,
)
from klamm.zookeeper.znodes.persistent import PERSISTENT_PATHS


def brokers(*ids: int) -> tuple[BrokerId, ...]:
    return tuple(BrokerId(i) for i in ids)


PERF1 = {0: Assignment(brokers(1, 3, 2)), 1: Assignment(brokers(2, 1, 3)), 2: Assignment(brokers(3, 2, 1))}

# path, bytes as Kafka 2.5.1 wrote them, our bytes for the same content
WRITTEN_BY_KAFKA = [
    (
        "/controller",
        b'{"version":1,"brokerid":3,"timestamp":"1794772480820"}',
        controller.encode(BrokerId(3), 1794772480820),
    ),
    ("/controller_epoch", b"1", controller_epoch.encode(ControllerEpoch(1))),
    (
        "/latest_producer_id_block",
        b'{"version":1,"broker":1,"block_start":"2000","block_end":"2999"}',
        producer_id_block.encode(producer_id_block.block_from(BrokerId(1), 2000)),
    ),
    ("/cluster/id", b'{"version":"1","id":"CrYB-5f7Q_6sQWz3Kop07A"}', cluster_id.encode("CrYB-5f7Q_6sQWz3Kop07A")),
    (
        "/brokers/ids/1",
        b'{"listener_security_protocol_map":{"PLAINTEXT":"PLAINTEXT"},"endpoints":["PLAINTEXT://127.0.0.1:19091"],'
        b'"jmx_port":-1,"port":19091,"host":"127.0.0.1","version":4,"timestamp":"1794772480890"}',
        broker_id.encode(Broker(BrokerId(1), (Endpoint("PLAINTEXT", "127.0.0.1", 19091),)), 1794772480890),
    ),
    (
        "/brokers/topics/perf1",
        b'{"version":2,"partitions":{"0":[1,3,2],"1":[2,1,3],"2":[3,2,1]},"adding_replicas":{},"removing_replicas":{}}',
        topic.encode(PERF1),
    ),
    (
        "/config/topics/__consumer_offsets",
        b'{"version":1,"config":{"compression.type":"producer","cleanup.policy":"compact",'
        b'"segment.bytes":"104857600"}}',
        config.encode(
            {"compression.type": "producer", "cleanup.policy": "compact", "segment.bytes": "104857600"},
        ),
    ),
    ("/config/topics/perf", b'{"version":1,"config":{}}', config.encode({})),
    (
        "/brokers/topics/perf1/partitions/0/state",
        b'{"controller_epoch":1,"leader":1,"version":1,"leader_epoch":0,"isr":[1,3,2]}',
        partition_state.encode(LeaderAndIsr(BrokerId(1), LeaderEpoch(0), brokers(1, 3, 2), ControllerEpoch(1))),
    ),
]


@pytest.mark.parametrize(("path", "theirs", "ours"), WRITTEN_BY_KAFKA, ids=[path for path, _, _ in WRITTEN_BY_KAFKA])
def test_bytes_are_kafkas(path: str, theirs: bytes, ours: bytes) -> None:
    assert ours == theirs


def test_paths() -> None:
    assert partition_state.path(TopicPartition("perf1", 0)) == "/brokers/topics/perf1/partitions/0/state"
    assert broker_id.path(BrokerId(7)) == "/brokers/ids/7"
    assert delete_topics.path("t") == "/admin/delete_topics/t"
    assert isr_change.PREFIX == "/isr_change_notification/isr_change_"
    assert config.user_client_path("<default>", config.sanitised("a b*/~ü")) == (
        "/config/users/<default>/clients/a%20b%2A%2F%7E%C3%BC"
    )
    assert config.unsanitised("a%20b%2A%2F%7E%C3%BC") == "a b*/~ü"


def test_persistent_paths_of_a_broker_start() -> None:
    assert sorted(PERSISTENT_PATHS) == [
        "/admin/delete_topics",
        "/brokers/ids",
        "/brokers/seqid",
        "/brokers/topics",
        "/config/brokers",
        "/config/changes",
        "/config/clients",
        "/config/topics",
        "/config/users",
        "/consumers",
        "/isr_change_notification",
        "/latest_producer_id_block",
        "/log_dir_event_notification",
    ]


class TestBroker:
    def test_round_trip_with_rack_and_several_listeners(self) -> None:
        broker = Broker(
            BrokerId(4),
            (
                Endpoint("INTERNAL", "::1", 9093, SecurityProtocol.SASL_SSL),
                Endpoint("CLIENT", "example", 9092, SecurityProtocol.PLAINTEXT),
            ),
            rack="r1",
        )
        data = broker_id.encode(broker, 5)
        assert data == (
            b'{"listener_security_protocol_map":{"INTERNAL":"SASL_SSL","CLIENT":"PLAINTEXT"},'
            b'"endpoints":["INTERNAL://[::1]:9093","CLIENT://example:9092"],"rack":"r1","jmx_port":-1,"port":9092,'
            b'"host":"example","version":4,"timestamp":"5"}'
        )
        assert broker_id.decode("/brokers/ids/4", data) == broker

    def test_a_dedicated_controller_says_so_behind_what_kafka_reads(self) -> None:
        plain = Broker(BrokerId(1), (Endpoint("PLAINTEXT", "h", 1),))
        dedicated = plain._replace(controller_only=True)
        data = broker_id.encode(dedicated, 5)
        assert data == broker_id.encode(plain, 5)[:-1] + b',"klamm":{"controller_only":true}}'
        assert broker_id.decode("/brokers/ids/1", data) == dedicated
        for junk in (b"1", b"{}", b'{"controller_only":"true"}'):
            data = broker_id.encode(plain, 5)[:-1] + b',"klamm":' + junk + b"}"
            assert broker_id.decode("/brokers/ids/1", data) == plain

    def test_without_a_plain_endpoint_host_is_null(self) -> None:
        secured = Broker(BrokerId(1), (Endpoint("S", "h", 1, SecurityProtocol.SSL),))
        assert b'"port":-1,"host":null' in broker_id.encode(secured, 0)

    @pytest.mark.parametrize(
        ("document", "endpoints", "rack"),
        [
            (
                b'{"version":1,"host":"h","port":9092,"jmx_port":9999,"timestamp":"1"}',
                (Endpoint("PLAINTEXT", "h", 9092),),
                None,
            ),
            (
                b'{"version":2,"host":"h","port":9092,"jmx_port":-1,"timestamp":"1","endpoints":["SSL://h:1"]}',
                (Endpoint("SSL", "h", 1, SecurityProtocol.SSL),),
                None,
            ),
            (
                b'{"version":3,"host":"h","port":1,"jmx_port":-1,"timestamp":"1","rack":null,'
                b'"endpoints":["PLAINTEXT://h:1"]}',
                (Endpoint("PLAINTEXT", "h", 1),),
                None,
            ),
            (
                b'{"features":{"x":{"min_version":1,"max_version":2}},"listener_security_protocol_map":{"A":"SSL"},'
                b'"endpoints":["A://h:1"],"rack":"z","jmx_port":-1,"port":-1,"host":null,"version":5,"timestamp":"1"}',
                (Endpoint("A", "h", 1, SecurityProtocol.SSL),),
                "z",
            ),
        ],
        ids=["v1", "v2", "v3", "v5"],
    )
    def test_every_version_is_read(self, document: bytes, endpoints: tuple[Endpoint, ...], rack: str | None) -> None:
        assert broker_id.decode("/brokers/ids/9", document) == Broker(BrokerId(9), endpoints, rack)


class TestTopic:
    def test_a_reassignment_survives(self) -> None:
        partitions = {0: Assignment(brokers(1, 2)), 1: Assignment(brokers(4, 2, 1), brokers(4), brokers(1))}
        data = topic.encode(partitions)
        assert data == (
            b'{"version":2,"partitions":{"0":[1,2],"1":[4,2,1]},"adding_replicas":{"1":[4]},"removing_replicas":{"1":[1]}}'
        )
        assert topic.decode("/brokers/topics/t", data) == topic.TopicAssignment(partitions)

    def test_a_topic_id_is_kept_in_the_order_of_newer_kafkas(self) -> None:
        data = (
            b'{"partitions":{"0":[1]},"topic_id":"rJ7RqxEqT4S8hWLLZNDjqw","adding_replicas":{},'
            b'"removing_replicas":{},"version":3}'
        )
        found = topic.decode("/brokers/topics/t", data)
        assert found.topic_id == "rJ7RqxEqT4S8hWLLZNDjqw"
        assert topic.encode(*found) == data

    def test_version_1_has_no_reassignment(self) -> None:
        found = topic.decode("/brokers/topics/t", b'{"version":1,"partitions":{"1":[2],"0":[1,2]}}')
        assert found == topic.TopicAssignment({1: Assignment(brokers(2)), 0: Assignment(brokers(1, 2))})


class TestPartitionState:
    STATE = LeaderAndIsr(BrokerId(-1), LeaderEpoch(7), (), ControllerEpoch(3))

    def test_round_trip_of_a_partition_without_leader(self) -> None:
        data = partition_state.encode(self.STATE)
        assert data == b'{"controller_epoch":3,"leader":-1,"version":1,"leader_epoch":7,"isr":[]}'
        assert partition_state.decode("/x", data) == self.STATE

    def test_what_newer_kafkas_add_is_accepted(self) -> None:
        data = b'{"controller_epoch":1,"leader":2,"version":1,"leader_recovery_state":1,"leader_epoch":4,"isr":[2]}'
        expected = LeaderAndIsr(BrokerId(2), LeaderEpoch(4), brokers(2), ControllerEpoch(1))
        assert partition_state.decode("/x", data) == expected

    def test_equal_bytes_give_the_same_object_until_cleared(self) -> None:
        data = partition_state.encode(self.STATE)
        first = partition_state.decode("/x", data)
        assert partition_state.decode("/y", bytes(bytearray(data))) is first
        partition_state.clear_caches()
        assert partition_state.decode("/x", data) is not first


class TestOthers:
    TPS = (TopicPartition("t", 0), TopicPartition("u", 3))
    LIST = b'{"version":1,"partitions":[{"topic":"t","partition":0},{"topic":"u","partition":3}]}'

    def test_partition_lists(self) -> None:
        assert isr_change.encode(self.TPS) == preferred_replica_election.encode(self.TPS) == self.LIST
        assert isr_change.decode("/x", self.LIST) == self.TPS

    def test_reassignment(self) -> None:
        data = b'{"version":1,"partitions":[{"topic":"t","partition":0,"replicas":[1,2]}]}'
        targets = {TopicPartition("t", 0): brokers(1, 2)}
        assert reassign_partitions.encode(targets) == data
        assert reassign_partitions.decode("/x", data) == targets

    def test_log_dir_event(self) -> None:
        assert log_dir_event.encode(BrokerId(2)) == b'{"version":1,"broker":2,"event":1}'
        assert log_dir_event.decode("/x", log_dir_event.encode(BrokerId(2))) == 2

    def test_config_change_of_both_versions(self) -> None:
        assert config_change.encode("topics/foo") == b'{"version":2,"entity_path":"topics/foo"}'
        assert config_change.decode("/x", config_change.encode("users/<default>")) == "users/<default>"
        assert config_change.decode("/x", b'{"version":1,"entity_type":"topics","entity_name":"foo"}') == "topics/foo"

    def test_producer_id_blocks_follow_each_other(self) -> None:
        found = producer_id_block.decode("/x", b'{"version":1,"broker":1,"block_start":"2000","block_end":"2999"}')
        assert found is not None
        assert found.next_for(BrokerId(3)) == producer_id_block.ProducerIdBlock(3, 3000, 3999)  # type: ignore[arg-type]
        assert producer_id_block.decode("/x", None) is None

    def test_config_without_data_has_no_overrides(self) -> None:
        assert config.decode("/x", None) == config.decode("/x", b"") == {}

    def test_controller_of_any_version(self) -> None:
        v2 = b'{"version":2,"brokerid":5,"timestamp":"1","kraftControllerEpoch":-1}'
        assert controller.decode("/controller", v2) == 5

    def test_candidates_pass_over_what_is_no_id(self) -> None:
        assert candidates.ids_of(["10", "2", "x", "-1", "٣"]) == [2, 10]

    def test_cluster_id_is_made_from_the_given_randomness(self) -> None:
        made = cluster_id.generate(Random(1))
        assert made == cluster_id.generate(Random(1)) != cluster_id.generate(Random(2))
        assert len(made) == 22
        assert cluster_id.decode("/cluster/id", cluster_id.encode(made)) == made


MALFORMED: list[tuple[Callable[[str, bytes | None], object], bytes | None, str]] = [
    (controller.decode, None, "no data, expected a JSON object"),
    (controller.decode, b"\xff{", "not JSON"),
    (controller.decode, b"[1]", "expected a JSON object, not [1]"),
    (controller.decode, b'{"version":1}', "brokerid is missing"),
    (controller.decode, b'{"brokerid":true}', "brokerid: expected an integer, not True"),
    (controller_epoch.decode, b"1x", "expected a decimal number, not b'1x'"),
    (controller_epoch.decode, None, "expected a decimal number"),
    (broker_id.decode, b'{"version":6,"jmx_port":1}', "version 6 is not one of 1, 2, 3, 4, 5"),
    (broker_id.decode, b'{"version":1,"host":"h","port":1}', "jmx_port is missing"),
    (
        broker_id.decode,
        b'{"version":2,"jmx_port":1,"endpoints":["SSL://a:1","ssl://b:2"]}',
        "a listener appears twice in SSL, SSL",
    ),
    (broker_id.decode, b'{"version":2,"jmx_port":1,"endpoints":["SSL//a"]}', "is not a NAME://host:port"),
    (
        broker_id.decode,
        b'{"version":4,"jmx_port":1,"endpoints":["A://h:1"],"listener_security_protocol_map":{"A":["x"]}}',
        "listener A has no known security protocol: ['x']",
    ),
    (topic.decode, b'{"version":2,"partitions":[]}', "partitions: expected an object, not []"),
    (topic.decode, b'{"version":2,"partitions":{"x":[1]}}', "'x' is not a partition number"),
    (topic.decode, b'{"version":2,"partitions":{"0":["1"]}}', "partition 0: expected a list of broker ids"),
    (
        partition_state.decode,
        b'{"leader":1,"leader_epoch":0,"controller_epoch":1}',
        "isr: expected a list of broker ids",
    ),
    (partition_state.decode, None, "no data"),
    (reassign_partitions.decode, b'{"version":1,"partitions":[],"extra":1}', "unknown key extra"),
    (
        reassign_partitions.decode,
        b'{"version":1,"partitions":[{"topic":"t","partition":0,"replicas":[1],"log_dirs":["any"]}]}',
        "unknown key log_dirs",
    ),
    (isr_change.decode, b'{"version":1,"partitions":[{"topic":1,"partition":0}]}', "topic: expected a string"),
    (config.decode, b'{"version":2,"config":{}}', "version 2 is not one of 1"),
    (config.decode, b'{"version":1,"config":{"a":1}}', "config a: expected a string, not 1"),
    (config_change.decode, b'{"version":3,"entity_path":"topics/a"}', "version 3 is not one of 1, 2"),
    (
        config_change.decode,
        b'{"version":1,"entity_type":"users","entity_name":"a"}',
        "entity_type 'users' is not valid in version 1",
    ),
    (
        producer_id_block.decode,
        b'{"broker":1,"block_start":"a","block_end":"1"}',
        "block_start: expected a number in a string",
    ),
]


@pytest.mark.parametrize(("decode", "data", "reason"), MALFORMED, ids=[reason for _, _, reason in MALFORMED])
def test_malformed_content_names_path_and_reason(
    decode: Callable[[str, bytes | None], object], data: bytes | None, reason: str
) -> None:
    with pytest.raises(ZNodeError) as caught:
        decode("/brokers/ids/1", data)
    assert caught.value.path == "/brokers/ids/1"
    assert reason in caught.value.reason


def test_a_child_of_brokers_ids_that_is_no_id() -> None:
    with pytest.raises(ZNodeError, match="the name is not a broker id"):
        broker_id.decode("/brokers/ids/seven", b"{}")
