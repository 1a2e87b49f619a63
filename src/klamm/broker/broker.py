"""One broker without its listeners: composes replicas, metadata and handlers, and starts them in order.

`server` passes in the outside world (ports, configuration, the controller's API) and puts listeners in front of
`handle`. It also registers the broker and reports the epoch of each registration to `registered`; the broker then
refuses requests for an earlier epoch.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from klamm.broker.appends import Appends
from klamm.broker.broker_client import BrokerClient
from klamm.broker.config_admin import ConfigAdmin
from klamm.broker.config_changes import ConfigChanges
from klamm.broker.controlled_shutdown import ControlledShutdownClient
from klamm.broker.controller_api import ControllerApi
from klamm.broker.coordinators.groups.coordinator import GroupCoordinator
from klamm.broker.coordinators.groups.metrics import register_group_metrics
from klamm.broker.coordinators.groups.zookeeper_offsets import ZooKeeperOffsets
from klamm.broker.coordinators.internal_topic import InternalTopic, offsets_shape, transactions_shape
from klamm.broker.coordinators.transactions.composition import transaction_coordinator
from klamm.broker.coordinators.transactions.metrics import register_transaction_metrics
from klamm.broker.dynamic_configs import DynamicConfigs
from klamm.broker.fetch_sessions import FetchSessions
from klamm.broker.handlers.dispatch import Dispatcher
from klamm.broker.handlers.services import Services
from klamm.broker.leader_endpoint import RemoteLeader
from klamm.broker.metadata_cache import MetadataCache
from klamm.broker.metrics import register_cleaner_metrics, register_fetch_session_metrics, register_metrics
from klamm.broker.producer_ids import ProducerIds
from klamm.broker.quota_admin import QuotaAdmin
from klamm.broker.quota_configs import QuotaConfigs
from klamm.broker.reads import Reads
from klamm.broker.replica_manager import ReplicaManager
from klamm.broker.resting_partitions import RestingPartitions
from klamm.broker.topic_configs import TopicConfigs
from klamm.broker.topics import TopicAdmin
from klamm.log.log_manager import LogManager
from klamm.model.byte_budget import ByteBudget
from klamm.model.config import BrokerConfig, topic_defaults
from klamm.model.ids import BrokerEpoch, BrokerId
from klamm.model.ports import EventSink, Ports, ZooKeeper
from klamm.security.authorizer import Authorizer
from klamm.security.quotas import ClientQuotas
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
        quotas: ClientQuotas,
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
        self.dynamic_configs = DynamicConfigs(
            broker_id, config, zk, self._configs, logs, self.replicas.leader_quota, self.replicas.follower_quota
        )
        topics = TopicAdmin(
            zk,
            ports.random,
            self._configs,
            partitions_default=config.num_partitions,
            replication_factor_default=config.default_replication_factor,
            partitions_max=config.max_partitions_per_topic,
        )
        self._quota_configs = QuotaConfigs(zk, quotas, config)
        self._shutdown = ControlledShutdownClient(broker_id, config, ports, self.metadata)
        self.appends = appends = Appends(self.replicas)
        reads = Reads(self.replicas, ByteBudget(config.response_bytes_max))
        offsets_topic = InternalTopic(offsets_shape(config), self.metadata, topics)
        self.groups = GroupCoordinator(
            config,
            topic=offsets_topic,
            appends=appends,
            replicas=self.replicas,
            random=ports.random,
            pool=ports.disk.run,
        )
        producer_ids = ProducerIds(zk, broker_id)
        transactions_topic = InternalTopic(transactions_shape(config), self.metadata, topics)
        self.transactions, self._transaction_timers, self.markers = transaction_coordinator(
            self.replicas, appends, transactions_topic, producer_ids, self.groups.commits, self._marker_client, topics
        )
        fetch_sessions = FetchSessions(
            config.fetch_session_cache_slots, ports.clock, ports.random, partial(RestingPartitions, self.replicas)
        )
        self.handle = Dispatcher(
            Services(
                cluster_id=cluster_id,
                config=config,
                metadata=self.metadata,
                replicas=self.replicas,
                appends=appends,
                reads=reads,
                fetch_sessions=fetch_sessions,
                topics=topics,
                offsets_topic=offsets_topic,
                transactions_topic=transactions_topic,
                groups=self.groups,
                old_offsets=ZooKeeperOffsets(zk, config.offset_metadata_max_bytes),
                quotas=QuotaAdmin(zk, quotas),
                client_quotas=quotas,
                configs=ConfigAdmin(zk, self.dynamic_configs, self._configs),
                producer_ids=producer_ids,
                transactions=self.transactions,
                markers=self.markers,
                controller=controller,
                authorizer=authorizer,
                pool=ports.disk.run,
            ),
            quotas,
            ports.disk.run,
        )
        """The handler for every listener."""
        register_metrics(metrics, self.replicas, appends, reads, self.handle.requests)
        register_transaction_metrics(metrics, self.transactions)
        register_group_metrics(metrics, self.groups)
        register_fetch_session_metrics(metrics, fetch_sessions)
        if config.log_cleaner_enable:
            register_cleaner_metrics(metrics, logs)

    def _leader_endpoint(self, leader: BrokerId) -> RemoteLeader:
        listener = self.config.inter_broker_listener
        return RemoteLeader(
            leader, self.id, self.config, self._ports, lambda broker: self.metadata.endpoint(broker, listener)
        )

    def _marker_client(self, broker: BrokerId) -> BrokerClient:
        listener, timeout = self.config.inter_broker_listener, self.config.request_timeout_ms / 1000
        client_id = f"broker-{self.id}-txn-marker-sender"
        return BrokerClient(
            broker, client_id, timeout, self._ports, lambda other: self.metadata.endpoint(other, listener)
        )

    async def load_logs(self) -> None:
        """Open every log with its topic's configuration. Call it before the listeners bind: recovery may take long."""
        await self.dynamic_configs.load()
        await self._quota_configs.load()
        topics = await self._zk.children(topic.PARENT)
        configs = await self._configs.read(topics)
        await self._logs.load(lambda name: configs.get(name, self._configs.defaults))

    async def _apply_change(self, entity: str) -> None:
        await self.dynamic_configs.apply(entity)
        await self._quota_configs.apply(entity)

    def registered(self, epoch: BrokerEpoch) -> None:
        """Called at each registration, including those after an expired session."""
        self.replicas.broker_epoch = epoch

    @asynccontextmanager
    async def running(self) -> AsyncIterator[BrokerNode]:
        """Start after the logs are loaded. On exit, fetchers and timers stop and the high watermarks are on disk; the
        owner of the log manager closes it."""
        changed = ConfigChanges(self._zk, self._ports.clock, self._apply_change)
        async with self.replicas.running(), self.groups.running():
            self._transaction_timers.start()
            self.replicas.guard.start("timer", "config-changes", changed.run)
            yield self

    async def controlled_shutdown(self) -> bool:
        """Hand leaderships over before `running` ends. The broker still obeys orders, but fetches nothing new."""
        self.replicas.is_shutting_down = True
        if not self.config.controlled_shutdown_enable:
            return False
        return await self._shutdown.run(self.replicas.broker_epoch)
