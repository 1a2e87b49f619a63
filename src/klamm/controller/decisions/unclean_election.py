"""Which topics allow an unclean election, and so prefer losing acknowledged records to having no leader.

The value is looked up in Kafka's order: the topic's override, this broker's dynamic value, the cluster's dynamic
default, the file. It is read only for topics that cannot elect cleanly. Data loss requires an explicit yes: a value
that cannot be read counts as no.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from klamm.model.config import TopicConfig, topic_config
from klamm.model.elections import UncleanElection
from klamm.model.errors import ConfigError, KafkaError, ZNodeError
from klamm.model.ids import BrokerId
from klamm.model.ports import Node
from klamm.zookeeper.znodes import config

KEY: Final = "unclean.leader.election.enable"


def config_paths(me: BrokerId, topics: Iterable[str]) -> list[str]:
    """What to read, weakest first: the cluster's configuration, this broker's, then each topic's."""
    brokers = [config.path(config.BROKERS, entity) for entity in (config.DEFAULT_ENTITY, str(me))]
    return brokers + [config.topic_path(topic) for topic in topics]


def allowed(
    defaults: TopicConfig, paths: Sequence[str], nodes: Sequence[Node | None]
) -> tuple[dict[str, UncleanElection], list[ZNodeError]]:
    """The answers, by the path of the topic's configuration, and the configurations that could not be used."""
    problems: list[ZNodeError] = []
    by_path: dict[str, UncleanElection] = {}
    for path, node in zip(paths, nodes, strict=True):
        is_topic = path.startswith(config.topic_path(""))
        found: TopicConfig | None = None
        try:
            overrides = config.decode(path, node.data if node else None)
            if not is_topic:  # of a broker's keys, only this one matters here
                overrides = {key: value for key, value in overrides.items() if key == KEY}
            found = topic_config(defaults, overrides)
        except ZNodeError as error:
            problems.append(error)
        except (ConfigError, KafkaError) as error:
            problems.append(ZNodeError(path, str(error)))
        if is_topic:
            by_path[path] = UncleanElection(found is not None and found.unclean_leader_election_enable)
        else:
            defaults = found or defaults
    return by_path, problems
