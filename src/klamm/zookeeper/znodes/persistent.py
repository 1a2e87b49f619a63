"""The persistent paths that every broker creates at its start if they are missing (Kafka: ZkData.PersistentZkPaths)."""

from __future__ import annotations

from typing import Final

from klamm.zookeeper.znodes import (
    broker_id,
    config,
    config_change,
    delete_topics,
    isr_change,
    log_dir_event,
    producer_id_block,
    topic,
)

CONSUMERS: Final = "/consumers"

PERSISTENT_PATHS: Final = (
    CONSUMERS,
    broker_id.PARENT,
    topic.PARENT,
    config_change.PARENT,
    delete_topics.PARENT,
    broker_id.SEQUENCE_PATH,
    isr_change.PARENT,
    producer_id_block.PATH,
    log_dir_event.PARENT,
    *(config.type_path(entity_type) for entity_type in config.TYPES),
)
