# ruff: noqa: E501 - entries stand here as brokers write them
"""The grammar: one entry for every rule, in the forms of Kafka 2.5 and of Kafka 3, and what they must say."""

from __future__ import annotations

import json
import re

import pytest

from klamm.pipelines.incidents.klamm_events import parse_event
from klamm.pipelines.incidents.parser import UNKNOWN, parse, split
from klamm.pipelines.incidents.record import Record, fold
from klamm.pipelines.incidents.rules import RULES

T = 1794779797546
STATE = "topicName='a-b.c', partitionIndex=3, controllerEpoch=1, leader=2, leaderEpoch=5, isr=[2, 1], "
TAIL = "replicas=[1, 2], addingReplicas=[], removingReplicas=[], isNew=true"
TRACE = "\njava.io.IOException: Connection failed\n\tat kafka.controller.RequestSendThread.doWork(X.scala:242)"
POSITION = {"topic": "a-b.c", "partition": 3}
PLACED = {**POSITION, "leader": 2, "leader_epoch": 5, "version": 7, "brokers": (2, 1), "replicas": (1, 2)}

CONTROLLER = [
    (
        "[Controller id=1] 1 successfully elected as the controller. Epoch incremented to 4 and epoch zk version is now 4",
        "ctl.elected",
        {"broker": 1, "epoch": 4},
    ),
    (
        "[Controller id=1] Currently active brokers in the cluster: HashSet(1, 12)",
        "ctl.live",
        {"broker": 1, "brokers": (1, 12)},
    ),
    ("[Controller id=1] Ready to serve as the new controller with epoch 4", "ctl.ready", {"broker": 1, "epoch": 4}),
    ("[Controller id=1] Resigning", "ctl.resigning", {"broker": 1}),
    ("[Controller id=1] Resigned", "ctl.resigned", {"broker": 1}),
    (
        "[Controller id=1] Controller moved to another broker when processing BrokerChange.",
        "ctl.moved",
        {"broker": 1, "text": "BrokerChange."},
    ),
    (
        "[Controller id=1] Error while electing or becoming controller on broker 1",
        "ctl.error",
        {"broker": 1, "other": 1},
    ),
    (
        "[Controller id=2] Newly added brokers: 4, deleted brokers: 1, bounced brokers: 3, all live brokers: 2,3,4",
        "brokers.changed",
        {"broker": 2, "text": "4", "brokers": (1, 3), "replicas": (2, 3, 4)},
    ),
    ("[Controller id=2] Shutting down broker 3", "cs.asked", {"broker": 2, "other": 3}),
    (
        "[RequestSendThread controllerId=2] Controller 2's connection to broker h:9092 (id: 3 rack: null) was unsuccessful"
        + TRACE,
        "net.lost",
        {"broker": 2, "other": 3},
    ),
    (
        "[RequestSendThread controllerId=2] Controller 2 epoch 4 fails to send request (type=StopReplicaRequest, "
        "partitions=a-1) to broker h:9092 (id: 1 rack: r). Reconnecting to broker.",
        "net.lost",
        {"broker": 2, "other": 1},
    ),
    (
        "[Controller id=1] New topics: [Set(a, b)], deleted topics: [Set()], new partition replica assignment [Map()]",
        "topics.new",
        {"broker": 1, "text": "a, b"},
    ),
    ("[Controller id=2] Starting topic deletion for topics a,b", "del.asked", {"broker": 2, "text": "a,b"}),
    ("[Topic Deletion Manager 2] Deletion of topic a (re)started", "del.started", {"broker": 2, "topic": "a"}),
    (
        "[Topic Deletion Manager 2] Halted deletion of topics a due to offline replicas",
        "del.halted",
        {"broker": 2, "topic": "a", "text": "offline replicas"},
    ),
    ("[Topic Deletion Manager 2] Deletion of topic a successfully completed", "del.done", {"broker": 2, "topic": "a"}),
    (
        "[Controller id=2] Successfully updated assignment of partition a-b.c-3 to ReplicaAssignment(replicas=3,2,1, "
        "addingReplicas=3, removingReplicas=1)",
        "reassign.set",
        {"broker": 2, **POSITION, "replicas": (3, 2, 1), "brokers": (3,), "text": "1"},
    ),
    (
        "[Controller id=2] ISR for partition a-b.c-3 updated to [2,1] and zkVersion updated to [7]",
        "isrctl.updated",
        {"broker": 2, **POSITION, "brokers": (2, 1), "version": 7},
    ),
    (
        "[Controller id=2] ISR for partition a-b.c-3 updated to LeaderAndIsr(leader=2, leaderEpoch=5, isrWithBrokerEpoch="
        "List(BrokerState(brokerId=2, brokerEpoch=-1), BrokerState(brokerId=1, brokerEpoch=-1)), "
        "leaderRecoveryState=RECOVERED, partitionEpoch=7).",
        "isrctl.updated",
        {"broker": 2, **POSITION, "leader": 2, "leader_epoch": 5, "brokers": (2, 1), "version": 7, "text": "RECOVERED"},
    ),
]
STATE_CHANGES = [
    (
        "[Controller id=1 epoch=9] Changed partition a-b.c-3 from NewPartition to OnlinePartition with state "
        "LeaderAndIsr(leader=2, leaderEpoch=5, isr=List(2, 1), zkVersion=7)",
        "part.online",
        {"broker": 1, "epoch": 9, **POSITION, "leader": 2, "leader_epoch": 5, "brokers": (2, 1), "version": 7},
    ),
    (
        "[Controller id=1 epoch=9] Changed partition a-b.c-3 from OfflinePartition to OnlinePartition with state "
        "LeaderAndIsr(leader=2, leaderEpoch=5, isrWithBrokerEpoch=List(BrokerState(brokerId=2, brokerEpoch=-1)), "
        "leaderRecoveryState=RECOVERING, partitionEpoch=7)",
        "part.online",
        {
            "broker": 1,
            "epoch": 9,
            **POSITION,
            "leader": 2,
            "leader_epoch": 5,
            "brokers": (2,),
            "version": 7,
            "text": "RECOVERING",
        },
    ),
    (
        "[Controller id=3 epoch=5] Controller 3 epoch 5 failed to change state for partition a-b.c-3 from OnlinePartition "
        "to OnlinePartition" + TRACE,
        "part.failed",
        {"broker": 3, "epoch": 5, **POSITION},
    ),
    (
        "[Controller id=1 epoch=1] Partition a-b.c-3 state changed to (Leader:2,ISR:2,1,LeaderRecoveryState:RECOVERED,"
        "LeaderEpoch:5,ZkVersion:7,ControllerEpoch:1) after removing replica 4 from the ISR as part of transition to "
        "OfflineReplica",
        "part.isr_cut",
        {
            "broker": 1,
            "epoch": 1,
            **POSITION,
            "leader": 2,
            "leader_epoch": 5,
            "brokers": (2, 1),
            "version": 7,
            "other": 4,
            "text": "RECOVERED",
        },
    ),
    (
        f"[Controller id=1 epoch=1] Sending become-leader LeaderAndIsr request LeaderAndIsrPartitionState({STATE}zkVersion=7, "
        f"{TAIL}) to broker 2 for partition a-b.c-3",
        "lai.sent",
        {"broker": 1, "epoch": 1, **PLACED, "other": 2},
    ),
    (
        f"[Controller id=1 epoch=1] Sending become-follower LeaderAndIsr request LeaderAndIsrPartitionState({STATE}"
        f"partitionEpoch=7, {TAIL}, leaderRecoveryState=0) to broker 4 for partition a-b.c-3",
        "lai.sent",
        {"broker": 1, "epoch": 1, **PLACED, "other": 4},
    ),
    (
        f"[Controller id=1 epoch=1] Sending UpdateMetadata request UpdateMetadataPartitionState({STATE}zkVersion=7, "
        "replicas=[1, 2], offlineReplicas=[]) to brokers HashSet(2) for partition a-b.c-3",
        "um.sent",
        {"broker": 1, "epoch": 1, **PLACED},
    ),
    (
        "[Controller id=2 epoch=4] Received response {error_code=0} for request LEADER_AND_ISR with correlation id 3 sent to "
        "broker h:9092 (id: 4 rack: null)",
        "resp",
        {"broker": 2, "epoch": 4, "number": 3, "other": 4},
    ),
    (
        f"[Broker id=2] Received LeaderAndIsr request LeaderAndIsrPartitionState({STATE}partitionEpoch=7, {TAIL}) correlation "
        "id 2 from controller 1 epoch 1",
        "lai.recv",
        {"broker": 2, "epoch": 1, **PLACED, "number": 2, "other": 1},
    ),
    (
        "[Broker id=1] Completed LeaderAndIsr request correlationId 6 from controller 3 epoch 8 for the become-leader "
        "transition for partition a-b.c-3",
        "lai.done",
        {"broker": 1, "number": 6, "other": 3, "epoch": 8},
    ),
    (
        f"[Broker id=3] Cached leader info UpdateMetadataPartitionState({STATE}zkVersion=7, replicas=[1, 2], "
        "offlineReplicas=[]) for partition a-b.c-3 in response to UpdateMetadata request sent by controller 3",
        "um.cached",
        {"broker": 3, "epoch": 1, **PLACED},
    ),
    (
        "[Broker id=1] Leader a-b.c-3 with topic id Some(rpKV) starts at leader epoch 5 from offset 40 with partition epoch "
        "7, high watermark 0, ISR [2,1], adding replicas [] and removing replicas [] . Previous leader None and previous "
        "leader epoch was -1.",
        "lead.start",
        {"broker": 1, **POSITION, "leader_epoch": 5, "number": 40, "version": 7, "brokers": (2, 1)},
    ),
    (
        "[Broker id=1] Leader a-b.c-3 starts at leader epoch 5 from offset 40 with high watermark 0 ISR [2,1] addingReplicas "
        "[] removingReplicas []. Previous leader epoch was -1.",
        "lead.start",
        {"broker": 1, **POSITION, "leader_epoch": 5, "number": 40, "brokers": (2, 1)},
    ),
    (
        "[Broker id=1] Follower a-b.c-3 starts at leader epoch 5 from offset 0 with partition epoch 7 and high watermark 0. "
        "Current leader is 3. Previous leader Some(3) and previous leader epoch was 0.",
        "follow.start",
        {"broker": 1, **POSITION, "leader_epoch": 5, "version": 7, "leader": 3},
    ),
    (
        "[Broker id=1] Handling LeaderAndIsr request correlationId 6 from controller 1 epoch 1 starting the become-follower "
        "transition for partition a-b.c-3 with leader 3",
        "follow.start",
        {"broker": 1, **POSITION},
    ),
    (
        "[Broker id=1] Received update metadata request with correlation id 12 from an old controller 2 with epoch 2. Latest "
        "known controller epoch is 3",
        "stale.controller",
        {"broker": 1, "text": "update metadata", "other": 2},
    ),
    (
        "[Controller id=2 epoch=4] Mark replicas a-1,b-2 on broker 3 as offline",
        "dir.offline",
        {"broker": 2, "epoch": 4, "text": "a-1,b-2", "other": 3},
    ),
]
SERVER = [
    (
        "[Partition a-b.c-3 broker=1] a-b.c-3 starts at leader epoch 5 from offset 40 with high watermark 0. Previous leader "
        "epoch was 0.",
        "lead.start",
        {"broker": 1, **POSITION, "leader_epoch": 5, "number": 40},
    ),
    (
        "[Partition a-b.c-3 broker=1] Shrinking ISR from 1,2,3 to 1,3. Leader: (highWatermark: 4, endOffset: 428). Out of "
        "sync replicas: (brokerId: 2, endOffset: 404, lastCaughtUpTimeMs: 17).",
        "isr.shrink",
        {
            "broker": 1,
            **POSITION,
            "replicas": (1, 2, 3),
            "brokers": (1, 3),
            "number": 428,
            "text": "(brokerId: 2, endOffset: 404, lastCaughtUpTimeMs: 17)",
        },
    ),
    (
        "[Partition a-b.c-3 broker=1] ISR updated to [1,2] and zkVersion updated to [7]",
        "isr.updated",
        {"broker": 1, **POSITION, "brokers": (1, 2), "version": 7},
    ),
    (
        "[Partition a-b.c-3 broker=1] ISR updated to 1,2 and version updated to [7]",
        "isr.updated",
        {"broker": 1, **POSITION, "brokers": (1, 2), "version": 7},
    ),
    (
        "[Partition a-b.c-3 broker=1] ISR updated to 1 (under-min-isr) and version updated to 7",
        "isr.updated",
        {"broker": 1, **POSITION, "brokers": (1,), "version": 7, "text": "(under-min-isr) "},
    ),
    (
        "[Partition a-b.c-3 broker=1] Cached zkVersion 8 not equal to that in zookeeper, skip updating ISR",
        "isr.stale",
        {"broker": 1, **POSITION},
    ),
    (
        "[Partition a-b.c-3 broker=1] Failed to alter partition to PendingExpandIsr(newInSyncReplicaId=2)",
        "isr.rejected",
        {"broker": 1, **POSITION},
    ),
    (
        "[ReplicaManager broker=2] Error processing append operation on partition a-b.c-3 (kafka.server.ReplicaManager)\n"
        "org.apache.kafka.common.errors.NotEnoughReplicasException: The size of the current ISR Set(2) is insufficient to "
        "satisfy the min.isr requirement of 2 for partition a-b.c-3",
        "append.refused",
        {"broker": 2, **POSITION, "brokers": (2,), "number": 2},
    ),
    (
        "Client session timed out, have not heard from server in 4671ms for sessionid 0x1",
        "zk.timeout",
        {"number": 4671},
    ),
    ("[ZooKeeperClient Kafka server] Session expired.", "zk.expired", {}),
    ("Unable to reconnect to ZooKeeper service, session 0x100007576250006 has expired", "zk.expired", {}),
    ("Kafka startTimeMs: 1794779795956", "srv.zone", {"number": 1794779795956}),
    ("Kafka version: 2.5.1", "version", {"text": "2.5.1"}),
    ("starting (kafka.server.KafkaServer)", "srv.start", {}),
    ("[KafkaServer id=1] started (kafka.server.KafkaServer)", "srv.started", {"broker": 1}),
    ("Terminating process due to signal SIGTERM", "srv.stop", {"text": "SIGTERM"}),
    ("[KafkaServer id=1] shutting down (kafka.server.KafkaServer)", "srv.stop", {"broker": 1}),
    ("[KafkaServer id=1] shut down completed", "srv.stopped", {"broker": 1}),
    ("[KafkaServer id=1] Starting controlled shutdown", "cs.start", {"broker": 1}),
    (
        "Created log for partition a-b.c-3 in /d/a-b.c-3 with properties {compression.type -> producer, "
        "min.insync.replicas -> 2, x -> y}",
        "min.isr",
        {**POSITION, "number": 2},
    ),
    (
        "Created log for partition a-b.c-3 in /d/a-b.c-3 with properties {min.insync.replicas=2}",
        "min.isr",
        {**POSITION, "number": 2},
    ),
    (
        "Creating topic a with configuration {min.insync.replicas=2} and initial partition assignment HashMap(0 -> "
        "ArrayBuffer(2))",
        "min.isr",
        {"topic": "a", "number": 2},
    ),
    (
        "[Controller id=2, targetBrokerId=3] Connection to node 3 (/127.0.0.1:9) could not be established. Node may not be "
        "available.",
        "net.lost",
        {"broker": 2, "other": 3},
    ),
    (
        "[ReplicaFetcher replicaId=4, leaderId=3, fetcherId=0] Node 3 disconnected.",
        "net.lost",
        {"broker": 4, "other": 3},
    ),
    (
        "[ReplicaFetcher replicaId=4, leaderId=3, fetcherId=0] Cancelled in-flight FETCH request with correlation id 82 due "
        "to node 3 being disconnected (elapsed",
        "net.lost",
        {"broker": 4, "other": 3},
    ),
    (
        "[ReplicaFetcher replicaId=4, leaderId=3, fetcherId=0] Error sending fetch request (sessionId=1, epoch=INITIAL) to "
        "node 3: {}." + TRACE,
        "net.lost",
        {"broker": 4, "other": 3},
    ),
    ("[ReplicaManager broker=2] Stopping serving replicas in dir /d", "dir.failed", {"broker": 2, "text": "/d"}),
    ("Shutdown broker because all log dirs in /d, /e have failed", "dir.halt", {"text": "/d, /e"}),
    (
        "KafkaConfig values: \n\tbroker.id = 4\n\tbroker.rack = null\n\tmin.insync.replicas = 2\n\treplica.lag.time.max.ms = 30\n"
        " (kafka.server.KafkaConfig)",
        "config",
        {"text": "broker.id=4,min.insync.replicas=2,replica.lag.time.max.ms=30"},
    ),
]
KLAMM = [
    ("leader 2 cannot be reached: [Errno 111] Connection refused (klamm.broker.fetcher)", "net.lost", {"other": 2}),
    ("klamm 0.1.0, Python 3.11.7, process 4110 (klamm.server.run_broker)", "srv.start", {}),
    ("settings: broker.id=1, min.insync.replicas=2, x=y (klamm.server.run_broker)", "config",
     {"text": "broker.id=1,min.insync.replicas=2"}),
    ("broker 1 of cluster Smcrrk, ZooKeeper 127.0.0.1:38063 (klamm.server.broker_server)", "srv.started", {}),
    ("stopping: controlled shutdown (klamm.server.run_broker)", "srv.stop", {}),
    ("[SocketServer listenerType=ZK_BROKER, nodeId=2] Stopping socket server request processors (kafka.network.SocketServer)", "srv.deaf", {}),
    ("session 0x100000f1b71000a: expired: SessionExpired: the server says so (klamm.zookeeper.client)", "zk.expired", {}),
    ("ended session 0x100000f1b71000a, which an earlier process of this broker left behind "
     "(klamm.server.session_file)", "session.ended", {}),
]  # fmt: skip
EXAMPLES = [*CONTROLLER, *STATE_CHANGES, *SERVER, *KLAMM]


def entry(message: str, level: str = "INFO") -> str:
    return f"[2026-11-15 21:56:37,546] {level} {message}"


@pytest.mark.parametrize(
    ("message", "kind", "fields"), EXAMPLES, ids=[f"{kind}: {text[:60]}" for text, kind, _ in EXAMPLES]
)
def test_an_entry_says(message: str, kind: str, fields: dict[str, object]) -> None:
    broker = fields.get("broker")
    expected = Record(T, broker, kind)._replace(**fields)  # type: ignore[arg-type]
    assert parse(entry(message)) == expected
    assert parse(entry(message + " (some.logger)")) is not None


def test_every_rule_has_an_example() -> None:
    tried = dict.fromkeys(RULES, False)
    for message, kind, _ in EXAMPLES:
        start = message.find("] ") + 2 if message.startswith("[") else 0
        for rule in tried:
            if rule.kind == kind and re.compile(rule.pattern).match(message, start):
                tried[rule] = True
    assert [rule for rule, found in tried.items() if not found] == []


@pytest.mark.parametrize(
    "message",
    [
        "[Log partition=orders-0, dir=/data/b1] Truncating to offset 4 (kafka.log.Log)",
        "[Controller id=1 epoch=1] Changed state of replica 2 for partition a-0 from NewReplica to OnlineReplica",
        "[ReplicaFetcherManager on broker 1] Removed fetcher for partitions Set(a-0) (kafka.server.ReplicaFetcherManager)",
        "[Controller id=1] Initializing controller context (kafka.controller.KafkaController)",
        "[KafkaServer id=2] null (kafka.utils.CoreUtils$)",
        "[Broker id=1] Cached leader info UpdateMetadataPartitionState(topicName='a', partitionIndex=1, controllerEpoch=2, "
        "leader=-2, leaderEpoch=3, isr=[1], zkVersion=4, replicas=[1], offlineReplicas=[]) for partition a-1",
    ],
)
def test_what_says_nothing_gives_nothing(message: str) -> None:
    assert parse(entry(message)) is None


def test_what_is_not_understood_is_told_by_its_shape() -> None:
    record = parse(
        entry("[Controller id=7] A new sentence about broker 12 of Kafka 9 (kafka.controller.KafkaController)")
    )
    shape = "A new sentence about broker N of Kafka N (kafka.controller.KafkaController)"
    assert record == Record(T, 7, UNKNOWN, text=shape)


def test_a_line_without_time_is_no_entry() -> None:
    assert parse("\tat kafka.controller.RequestSendThread.doWork(ControllerChannelManager.scala:242)") is None
    assert parse("") is None


def test_a_stack_trace_stays_with_its_entry() -> None:
    one, two = entry("first (a.b)"), entry("second (a.b)\njava.io.IOException: x\n\tat a.b")
    assert split(f"half of an entry\n{one}\n{two}\n{one}") == [one, two, one]
    assert split("") == []


def test_records_that_differ_only_in_time_are_one() -> None:
    refused = Record(5_000, 1, "net.lost", other=2)
    folded: dict[tuple[object, ...], Record] = {}
    fold(folded, [refused._replace(t=5_900), refused, refused._replace(t=5_901)])
    fold(folded, [refused._replace(t=6_001), Record(5_000, 1, "ctl.resigned"), Record(5_001, 1, "ctl.resigned")])
    assert sorted(folded.values()) == [
        Record(5_000, 1, "ctl.resigned"),
        refused._replace(times=3),
        Record(5_001, 1, "ctl.resigned"),
        refused._replace(t=6_001),
    ]


RESIGNED = "INFO [Controller id=1] Resigned (kafka.controller.KafkaController)"


@pytest.mark.parametrize(
    "header",
    [
        "[2026-11-15 21:56:37,546]",
        "[2026-11-15T21:56:37.546]",
        "[2026-11-15T21:56:37.546Z]",
        "[2026-11-15T23:56:37.546+02:00]",
        "[2026-11-15T23:56:37.546123+0200]",
    ],
)
def test_times_of_other_layouts(header: str) -> None:
    assert parse(f"{header} {RESIGNED}") == Record(1_794_779_797_546, 1, "ctl.resigned")


def test_klamm_writes_the_level_warning() -> None:
    entry = "[2026-11-15 21:56:37,546] WARNING leader 2 cannot be reached: timed out (klamm.broker.fetcher)"
    assert parse(entry) == Record(1_794_779_797_546, None, "net.lost", other=2)


def test_a_layout_that_names_the_thread() -> None:
    threaded = RESIGNED.replace("INFO", "INFO  [controller-event-thread]")
    assert parse(f"[2026-11-15 21:56:37,546] {threaded}") == Record(1_794_779_797_546, 1, "ctl.resigned")


@pytest.mark.parametrize(
    "header", ["[2026-13-15 21:56:37,546]", "[2026-02-30 21:56:37,546]", "[2026-11-15 21:56]", "[20 apples]"]
)
def test_an_entry_without_a_possible_time_is_not_understood(header: str) -> None:
    found = parse(f"{header} {RESIGNED}")
    assert found is not None
    assert (found.t, found.kind) == (0, UNKNOWN)


def test_a_number_that_fits_no_table_does_no_harm() -> None:
    for digits in (19, 5000):
        found = parse(f"[2026-11-15 21:56:37,546] INFO [Controller id=1] Shutting down broker {'9' * digits} (k)")
        assert found is not None
        assert (found.other or 0) < 2**63


@pytest.mark.parametrize(
    "event",
    [
        {"time_ms": "soon"},
        {"time_ms": 10**17},
        {"time_ms": 1.5},
        {"broker": None},
        {"controller_epoch": [1]},
        {"cause": None, "kind": "state-change", "role": "broker"},
        {"cause": {}},
        {"event": []},
        {"event": "loop-held", "duration_ms": 1e400},
        {"event": "broker-change", "cause": 7},
    ],
)
def test_an_event_of_wrong_types_is_not_understood(event: dict[str, object]) -> None:
    good = {"kind": "decision", "time_ms": 1000, "broker": 2, "controller_epoch": 3, "event": "controller-elected"}
    assert parse_event(json.dumps({**good, "cause": "x"}).encode()) == Record(1000, 2, "ctl.elected", 3, text="x")
    found = parse_event(json.dumps({**good, "cause": "x", **event}).encode())
    assert found is not None
    assert found.kind == UNKNOWN
