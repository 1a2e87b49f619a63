"""The look before Spark starts: is there anything to ingest at all?

A run by cron often finds nothing new. Then neither Spark nor a commit is needed. Whatever is unusual counts as work, so
that the full start tells it.
"""

from __future__ import annotations

from klamm.pipelines.anchors import compare_log
from klamm.pipelines.delta_log import DeltaLog
from klamm.pipelines.ingest_options import IngestOptions, TopicReport
from klamm.pipelines.kafka_topic import KafkaTopics
from klamm.pipelines.lake_directory import LocalDirectory
from klamm.pipelines.lake_state import LakeError, app_id


def idle_report(lake: LocalDirectory, topic: str, kafka: KafkaTopics, options: IngestOptions) -> TopicReport | None:
    """None if there is work, or something to refuse."""
    log = DeltaLog(lake.child(topic))
    try:
        state = log.state()
        if state is None or state.app != app_id(options.name, topic) or not state.ends:
            return None
        stable = kafka.stable_bounds(topic)
        if any(log_end != state.ends.get(partition, 0) for partition, (_, log_end) in stable.items()):
            return None
        if any(end > 0 and partition not in state.anchors for partition, end in state.ends.items()):
            return None
        if log.foreign_changes() or compare_log(state, kafka.log_facts(topic, state)):
            return None
        waiting = sum(bounds.end - stable[p].end for p, bounds in kafka.log_bounds(topic).items() if p in stable)
    except LakeError:
        return None
    return TopicReport(topic, state.epoch, state.incarnation, waiting=max(0, waiting), ends=state.ends)
