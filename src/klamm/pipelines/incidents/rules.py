"""What the entries of Kafka's state-change.log, controller.log and server.log say: one rule per shape, 2.5 to 3.9.

A rule applies to entries whose message begins with its word. The names of its groups are fields of `Record`. The rules
do not ask for the version: each accepts the forms of all versions, because a cluster in the middle of an upgrade writes
several. `{TP}` stands for a partition and `{STATE}` for the state in a request of the controller.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

TP: Final = r"(?P<topic>[A-Za-z0-9._-]+)-(?P<partition>\d+)"
STATE: Final = (
    r"topicName='(?P<topic>[^']*)', partitionIndex=(?P<partition>\d+), controllerEpoch=(?P<epoch>-?\d+), "
    r"leader=(?P<leader>-?\d+), leaderEpoch=(?P<leader_epoch>-?\d+), isr=\[(?P<brokers>[\d, ]*)\], "
    r"(?:zkVersion|partitionEpoch)=(?P<version>-?\d+), replicas=\[(?P<replicas>[\d, ]*)\]"
)
LEADER_AND_ISR: Final = (
    r"LeaderAndIsr\(leader=(?P<leader>-?\d+), leaderEpoch=(?P<leader_epoch>-?\d+), "
    r"isr(?:WithBrokerEpoch)?=List\((?P<brokers>.*?)\), (?:leaderRecoveryState=(?P<text>\w+), )?"
    r"(?:zkVersion|partitionEpoch)=(?P<version>-?\d+)\)"
)
NODE: Final = r"\S+ \(id: (?P<other>-?\d+) rack: [^)]*\)"

NUMBER: Final = r"\d{1,18}"
"""Longer numbers fit no table, and a line that holds one is damaged."""


class Rule(NamedTuple):
    kind: str
    word: str
    pattern: str


_CONTROLLER = (
    Rule(
        "ctl.elected", "<number>", r"\d+ successfully elected as the controller\. Epoch incremented to (?P<epoch>\d+)"
    ),
    Rule("ctl.live", "Currently", r"Currently active brokers in the cluster: \w+\((?P<brokers>[\d, ]*)\)"),
    Rule("ctl.ready", "Ready", r"Ready to serve as the new controller with epoch (?P<epoch>\d+)"),
    Rule("ctl.resigning", "Resigning", r"Resigning"),
    Rule("ctl.resigned", "Resigned", r"Resigned"),
    Rule("ctl.moved", "Controller", r"Controller moved to another broker when processing (?P<text>\S+)"),
    Rule("ctl.error", "Error", r"Error while electing or becoming controller on broker (?P<other>\d+)"),
    Rule(
        "brokers.changed",
        "Newly",
        r"Newly added brokers: (?P<text>[\d,]*), deleted brokers: (?P<brokers>[\d,]*), "
        r"bounced brokers: (?P<bounced>[\d,]*), all live brokers: (?P<replicas>[\d,]*)",
    ),
    Rule("cs.asked", "Shutting", r"Shutting down broker (?P<other>\d+)"),
    Rule("net.lost", "Controller", rf"Controller \d+'s connection to broker {NODE} was unsuccessful"),
    Rule("net.lost", "Controller", rf"Controller \d+ epoch \d+ fails to send request .*to broker {NODE}"),
    Rule("topics.new", "New", r"New topics: \[\w+\((?P<text>.+?)\)\], deleted topics"),
    Rule("del.asked", "Starting", r"Starting topic deletion for topics (?P<text>\S+)"),
    Rule("del.started", "Deletion", r"Deletion of topic (?P<topic>\S+) \(re\)started"),
    Rule("del.halted", "Halted", r"Halted deletion of topics (?P<topic>\S+) due to (?P<text>.*?)(?: \(kafka\.|$)"),
    Rule("del.done", "Deletion", r"Deletion of topic (?P<topic>\S+) successfully completed"),
    Rule(
        "reassign.set",
        "Successfully",
        rf"Successfully updated assignment of partition {TP} to ReplicaAssignment\(replicas=(?P<replicas>[\d,]*), "
        r"addingReplicas=(?P<brokers>[\d,]*), removingReplicas=(?P<text>[\d,]*)\)",
    ),
    Rule(
        "isrctl.updated",
        "ISR",
        rf"ISR for partition {TP} updated to \[(?P<brokers>[\d,]*)\] and zkVersion updated to \[(?P<version>\d+)\]",
    ),
    Rule("isrctl.updated", "ISR", rf"ISR for partition {TP} updated to {LEADER_AND_ISR}"),
)
_STATE_CHANGES = (
    Rule("part.online", "Changed", rf"Changed partition {TP} from \w+ to \w+ with state {LEADER_AND_ISR}"),
    Rule(
        "part.failed", "Controller", rf"Controller \d+ epoch (?P<epoch>\d+) failed to change state for partition {TP}"
    ),
    Rule(
        "part.isr_cut",
        "Partition",
        rf"Partition {TP} state changed to \(Leader:(?P<leader>-?\d+),ISR:(?P<brokers>[\d,]*),"
        r"(?:LeaderRecoveryState:(?P<text>\w+),)?LeaderEpoch:(?P<leader_epoch>\d+),(?:ZkVersion:(?P<version>\d+),)?"
        r"ControllerEpoch:(?P<epoch>\d+)\) after removing replica (?P<other>\d+)",
    ),
    Rule(
        "lai.sent",
        "Sending",
        rf"Sending become-\w+ LeaderAndIsr request LeaderAndIsrPartitionState\({STATE}.*\) to broker (?P<other>\d+)",
    ),
    Rule("um.sent", "Sending", rf"Sending UpdateMetadata request UpdateMetadataPartitionState\({STATE}"),
    Rule(
        "resp",
        "Received",
        r"Received response .* for request LEADER_AND_ISR with correlation id (?P<number>\d+) "
        rf"sent to broker {NODE}",
    ),
    Rule(
        "lai.recv",
        "Received",
        rf"Received LeaderAndIsr request LeaderAndIsrPartitionState\({STATE}.*\) correlation id (?P<number>\d+) "
        r"from controller (?P<other>\d+)",
    ),
    Rule(
        "lai.done",
        "Completed",
        r"Completed LeaderAndIsr request correlationId (?P<number>\d+) from controller (?P<other>\d+) "
        r"epoch (?P<epoch>\d+)",
    ),
    Rule("um.cached", "Cached", rf"Cached leader info UpdateMetadataPartitionState\({STATE}"),
    Rule(
        "lead.start",
        "Leader",
        rf"Leader {TP}(?: with topic id \S+)? starts at leader epoch (?P<leader_epoch>\d+) "
        r"from offset (?P<number>-?\d+) with (?:partition epoch (?P<version>\d+), )?high watermark -?\d+,? "
        r"ISR \[(?P<brokers>[\d,]*)\]",
    ),
    Rule(
        "follow.start",
        "Follower",
        rf"Follower {TP} starts at leader epoch (?P<leader_epoch>\d+) from offset -?\d+ "
        r"with (?:partition epoch (?P<version>\d+) and )?high watermark -?\d+\."
        r"(?: Current leader is (?P<leader>-?\d+)\.)?",
    ),
    Rule(
        "follow.start",
        "Handling",
        r"Handling LeaderAndIsr request correlationId \d+ from controller \d+ epoch \d+ "
        rf"starting the become-follower transition for partition {TP}",
    ),
    Rule(
        "stale.controller",
        "Received",
        r"Received (?P<text>update metadata|stop replica|LeaderAndIsr) request .*from an old controller (?P<other>\d+)",
    ),
    Rule("dir.offline", "Mark", r"Mark replicas (?P<text>.*) on broker (?P<other>\d+) as offline"),
)
_PARTITIONS = (
    Rule(
        "lead.start",
        "<partition>",
        rf"{TP} starts at leader epoch (?P<leader_epoch>\d+) from offset (?P<number>-?\d+) with high watermark",
    ),
    Rule(
        "isr.shrink",
        "Shrinking",
        r"Shrinking ISR from (?P<replicas>[\d,]*) to (?P<brokers>[\d,]*)\. "
        r"Leader: \(highWatermark: -?\d+, endOffset: (?P<number>-?\d+)\)\. Out of sync replicas: (?P<text>.*)\.",
    ),
    Rule(
        "isr.updated",
        "ISR",
        r"ISR updated to \[?(?P<brokers>[\d,]*)\]? +(?P<text>\(under-min-isr\) )?"
        r"and (?:zkVersion|version) updated to \[?(?P<version>\d+)",
    ),
    Rule("isr.stale", "Cached", r"Cached zkVersion \d+ not equal to that in zookeeper"),
    Rule("isr.rejected", "Failed", r"Failed to (?:alter partition|update ISR) to Pending"),
)
_SERVER = (
    Rule(
        "append.refused",
        "Error",
        rf"Error processing append operation on partition {TP}(?s:.*?)NotEnoughReplicas(?s:.*?)"
        r"ISR \w+\((?P<brokers>[\d, ]*)\)(?s:.*?)min\.isr requirement of (?P<number>\d+)",
    ),
    Rule("zk.timeout", "Client", r"Client session timed out, have not heard from server in (?P<number>\d{1,9})ms"),
    Rule("zk.expired", "Session", r"Session expired\."),
    Rule("zk.expired", "Unable", r"Unable to reconnect to ZooKeeper service, session 0x[0-9a-f]+ has expired"),
    Rule("srv.zone", "Kafka", r"Kafka startTimeMs: (?P<number>\d+)"),
    Rule("version", "Kafka", r"Kafka version: (?P<text>\S+)"),
    Rule("srv.start", "starting", r"starting \(kafka\.server\.KafkaServer\)"),
    Rule("srv.started", "started", r"started \(kafka\.server\.KafkaServer\)"),
    Rule("srv.stop", "Terminating", r"Terminating process due to signal (?P<text>\w+)"),
    Rule("srv.stop", "shutting", r"shutting down \(kafka\.server\.KafkaServer\)"),
    Rule("srv.stopped", "shut", r"shut down completed"),
    Rule("srv.deaf", "Stopping", r"Stopping socket server request processors"),
    Rule("cs.start", "Starting", r"Starting controlled shutdown"),
    Rule(
        "min.isr",
        "Created",
        rf"Created log for partition {TP} in .* with properties \{{.*min\.insync\.replicas(?: -> |=)(?P<number>\d+)",
    ),
    Rule(
        "min.isr",
        "Creating",
        r"Creating topic (?P<topic>\S+) with configuration \{.*min\.insync\.replicas=(?P<number>\d+)",
    ),
    Rule("net.lost", "Connection", r"Connection to node (?P<other>-?\d+) \(\S+\) could not be established"),
    Rule("net.lost", "Node", r"Node (?P<other>-?\d+) disconnected"),
    Rule("net.lost", "Cancelled", r"Cancelled in-flight \w+ request .* due to node (?P<other>\d+) being disconnected"),
    Rule("net.lost", "Error", r"Error sending fetch request \(sessionId=\S+ epoch=\S+ to node (?P<other>\d+)"),
    Rule("dir.failed", "Stopping", r"Stopping serving (?:replicas|logs) in dir (?P<text>\S+)"),
    Rule("dir.halt", "Shutdown", r"Shutdown broker because all log dirs in (?P<text>.*) have failed"),
    Rule("config", "KafkaConfig", r"KafkaConfig values:(?P<settings>(?s:.*))"),
)
_KLAMM = (
    Rule("net.lost", "leader", r"leader (?P<other>\d+) cannot be reached: "),
    Rule("srv.start", "klamm", r"klamm \S+, Python "),
    Rule("zk.expired", "session", r"session 0x[0-9a-f]+: expired"),
    Rule("session.ended", "ended", r"ended session 0x[0-9a-f]+, which an earlier process of this broker left behind"),
    Rule("config", "settings:", r"settings:(?P<settings>.*)"),
    Rule("srv.started", "broker", r"broker \d+ of cluster "),
    Rule("srv.stop", "stopping:", r"stopping: controlled shutdown"),
)

RULES: Final = (*_CONTROLLER, *_STATE_CHANGES, *_PARTITIONS, *_SERVER, *_KLAMM)

SETTINGS: Final = re.compile(
    r"(?:^|[\s,])(broker\.id|zookeeper\.session\.timeout\.ms|replica\.lag\.time\.max\.ms|min\.insync\.replicas|"
    r"unclean\.leader\.election\.enable) ?= ?([^\s,]+)"
)
"""What a configuration dump says that the analysis uses."""

IGNORED_LOGGERS: Final = (
    *("kafka.log.", "kafka.coordinator.", "kafka.network.", "kafka.utils.", "kafka.common.", "kafka.security."),
    *("kafka.tools.", "kafka.admin.", "kafka.metrics.", "kafka.raft.", "kafka.zookeeper.", "kafka.zk.", "kafka.Kafka"),
    *("kafka.server.ReplicaFetcher", "kafka.server.ReplicaAlterLogDirs", "kafka.server.Delayed", "kafka.server.Client"),
    *("kafka.server.AddPartitions", "kafka.server.NodeToController", "kafka.server.BrokerToController"),
    *("kafka.server.FinalizedFeature", "kafka.server.BrokerTopicStats", "kafka.server.BrokerMetadata"),
    *("kafka.server.KafkaRequestHandler", "kafka.server.DefaultAlterPartition", "kafka.server.metadata."),
    *("kafka.server.ZkMetadataCache", "kafka.server.DynamicConfig", "kafka.server.LogDirFailureChannel"),
    *("org.apache.zookeeper.", "org.apache.kafka.", "org.eclipse.jetty", "org.reflections", "com.yammer", "klamm."),
)
"""Loggers that say nothing about leaders, ISRs and controllers except what the rules read."""

IGNORED_STARTS: Final = (
    # state-change.log
    *("Add ", "Changed state of replica", "Changed partition ", "Completed StopReplica", "Deleted partition"),
    *("Finished ", "Handling LeaderAndIsr", "Handling StopReplica", "Handling stop replica", "Ignoring LeaderAndIsr"),
    *("Received LeaderAndIsrRequest", "Received StopReplica", "Received response", "Sending LeaderAndIsr"),
    *(
        "Sending StopReplica",
        "Sending UpdateMetadata request to",
        "Sent LeaderAndIsr",
        "Skipped the ",
        "Started fetcher",
    ),
    *("Stopped fetchers", "Truncated logs"),
    # controller.log: the steps of a failover
    *(
        "Creating FeatureZNode",
        "Current list of topics",
        "Currently shutting",
        "Deleting isr change",
        "Deleting log dir",
    ),
    *(
        "Fetching topic deletions",
        "Initialized broker epochs",
        "Initializing ",
        "List of topics",
        "Registering handlers",
    ),
    *("Sending update metadata", "Started partition state machine", "Started replica state machine"),
    *("Stopped partition state machine", "Stopped replica state machine", "Triggering "),
    # controller.log: the rest
    *("Acquired new producerId", "All leaders =", "All shutting down brokers", "Broker failure callback", "Broker "),
    *("Controller ", "Dead Replicas", "Delete topic callback", "Delete topics listener", "Deletion successfully"),
    *("Failed to update ISR", "Handling deletion", "Ignoring AlterPartition", "Leader ", "Live brokers", "New broker"),
    *("New partition", "New topic", "No more partitions", "Partitions that completed", "Partitions undergoing"),
    *(
        "Read current producerId",
        "Register BrokerModifications",
        "Removed ",
        "Removing partitions",
        "Resuming preferred",
        "Retrying deletion",
    ),
    *("Sending MetadataRequest", "Skipping preferred", "Some replicas", "Starting replica leader", "Target replicas"),
    *(
        "The stop replica request",
        "The topic partition",
        "Starting the controller",
        "There is no producerId",
        "Unregister BrokerModifications",
        "Updated ",
        "Updating ",
    ),
    *("Waiting for any successful", "Handling log directory failure", "Processing automatic preferred"),
    *("Leader imbalance", "Topics not in preferred", "Scheduling"),
    # server.log
    *("Cluster ID", "Connecting to zookeeper", "Controlled shutdown ", "Error processing append", "End processing"),
    *("Error from controller",),
    *(
        "Expanding ISR",
        "Log loaded",
        "No checkpointed",
        "Proceeding to do",
        "Remaining partitions",
        "Retrying controlled",
    ),
    *("Rewriting ", "Start processing", "Stat of the created", "Unexpected error handling request", "null "),
    # threads of any component
    *("Shut down completely", "Shutdown complete", "Shutting down (", "Starting (", "Stopped (", "shutdownInitiated"),
)
"""How entries of the other loggers begin that need no rule."""


def starts_by_word(starts: Iterable[str]) -> Mapping[str, tuple[str, ...]]:
    """The beginnings to compare, by the first word of the message."""
    found: dict[str, list[str]] = {}
    for start in starts:
        found.setdefault(start.partition(" ")[0], []).append(start)
    return {word: tuple(starts) for word, starts in found.items()}
