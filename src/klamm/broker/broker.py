"""One broker without its listeners: composes replicas, metadata and handlers, and starts them in order.

`server` passes in the outside world (ports, configuration, the controller's API) and puts listeners in front of
`handle`. It also registers the broker and reports the epoch of each registration to `registered`; the broker then
refuses requests for an earlier epoch.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from klamm.broker.appends import Appends
from klamm.broker.config_changes import ConfigChanges
from klamm.broker.controlled_shutdown import ControlledShutdownClient
from klamm.broker.controller_api import ControllerApi
from klamm.broker.dynamic_configs import DynamicConfigs
from klamm.broker.handlers.dispatch import Dispatcher
from klamm.broker.handlers.services import Services
from klamm.broker.leader_endpoint import RemoteLeader
from klamm.broker.metadata_cache import MetadataCache
from klamm.broker.metrics import register_cleaner_metrics, register_metrics
from klamm.broker.producer_ids import ProducerIds
from klamm.broker.reads import Reads
from klamm.broker.replica_manager import ReplicaManager
from klamm.broker.topic_configs import TopicConfigs
from klamm.broker.topics import TopicAdmin
from klamm.log.log_manager import LogManager
from klamm.model.config import BrokerConfig, topic_defaults
from klamm.model.ids import BrokerEpoch, BrokerId
from klamm.model.ports import EventSink, Ports, ZooKeeper
from klamm.security.authorizer import Authorizer
from klamm.security.quotas import Quotas
from klamm.telemetry.metrics import MetricsRegistry
from klamm.zookeeper.znodes import topic


class BrokerNode:
    def __init__(
        self,
        *,
        broker_id: BrokerId,
        cluster_id: str,
        config: BrokerConfig,
        ports: Ports,
        zk: ZooKeeper,
        logs: LogManager,
        events: EventSink,
        metrics: MetricsRegistry,
        authorizer: Authorizer,
        quotas: Quotas,
        controller: ControllerApi,
    ) -> None:
        self.id = broker_id
        self.config = config
        self._ports = ports
        self._zk = zk
        self._logs = logs
        defaults = topic_defaults(config)
        self.metadata = MetadataCache()
        self._configs = TopicConfigs(zk, ports.clock, defaults, config.request_timeout_ms / 1000)
        self.replicas = ReplicaManager(
            broker_id,
            config,
            clock=ports.clock,
            zk=zk,
            logs=logs,
            metadata=self.metadata,
            configs=self._configs,
            events=events,
            endpoint=self._leader_endpoint,
        )
        self._dynamic_configs = DynamicConfigs(
            broker_id, zk, self._configs, logs, self.replicas.leader_quota, self.replicas.follower_quota
        )
        self._shutdown = ControlledShutdownClient(broker_id, config, ports, self.metadata)
        appends, reads = Appends(self.replicas), Reads(self.replicas)
        self.handle = Dispatcher(
            Services(
                cluster_id=cluster_id,
                config=config,
                metadata=self.metadata,
                replicas=self.replicas,
                appends=appends,
                reads=reads,
                topics=TopicAdmin(
                    zk,
                    ports.random,
                    defaults,
                    partitions_default=config.num_partitions,
                    replication_factor_default=config.default_replication_factor,
                    partitions_max=config.max_partitions_per_topic,
                ),
                producer_ids=ProducerIds(zk, broker_id),
                controller=controller,
                authorizer=authorizer,
            ),
            quotas,
        )
        """The handler for every listener."""
        register_metrics(metrics, self.replicas, appends, reads, self.handle.requests)
        if config.log_cleaner_enable:
            register_cleaner_metrics(metrics, logs)

    def _leader_endpoint(self, leader: BrokerId) -> RemoteLeader:
        listener = self.config.inter_broker_listener
        return RemoteLeader(
            leader, self.id, self.config, self._ports, lambda broker: self.metadata.endpoint(broker, listener)
        )

    async def load_logs(self) -> None:
        """Open every log with its topic's configuration. Call it before the listeners bind: recovery may take long."""
        topics = await self._zk.children(topic.PARENT)
        configs = await self._configs.read(topics)
        await self._logs.load(lambda name: configs.get(name, self._configs.defaults))

    def registered(self, epoch: BrokerEpoch) -> None:
        """Called at each registration, including those after an expired session."""
        self.replicas.broker_epoch = epoch

    @asynccontextmanager
    async def running(self) -> AsyncIterator[BrokerNode]:
        """Start after the logs are loaded. On exit, fetchers and timers stop and the high watermarks are on disk; the
        owner of the log manager closes it."""
        await self._dynamic_configs.apply_rates()
        changed = ConfigChanges(self._zk, self._ports.clock, self._dynamic_configs.apply)
        async with self.replicas.running(), asyncio.TaskGroup() as tasks:
            changes = tasks.create_task(changed.run(), name="config-changes")
            try:
                yield self
            finally:
                changes.cancel()

    async def controlled_shutdown(self) -> bool:
        """Hand leaderships over before `running` ends. The broker still obeys orders, but fetches nothing new."""
        self.replicas.is_shutting_down = True
        if not self.config.controlled_shutdown_enable:
            return False
        return await self._shutdown.run(self.replicas.broker_epoch)
