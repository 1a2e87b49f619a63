"""The cluster as a client sees it: brokers, controller, leaders, coordinators, and a request to each of them.

Whatever a request finds out of date (a leader or coordinator that moved, a connection that broke) is looked up again
and the request repeated, until the timeout. Then one line says what failed, where, and why.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple, TypeVar

from klamm.client.addresses import Address
from klamm.client.errors import ClientError, NoBroker, passes, reason
from klamm.client.link import BrokerLink
from klamm.model.errors import ErrorCode, KafkaError
from klamm.model.ports import Clock, Network
from klamm.net.clock import SystemClock
from klamm.net.network import AsyncioNetwork
from klamm.wire.apis import APIS, ApiKey
from klamm.wire.errors import error_of
from klamm.wire.messages import Message, request_class

T = TypeVar("T")
DEFAULT_TIMEOUT: Final = 15.0
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0
FIND_COORDINATOR_NEWEST: Final = 3
"""Later versions ask for several at once."""
GROUP, TRANSACTION = 0, 1


class BrokerAddress(NamedTuple):
    id: int
    address: Address
    rack: str | None


class ClusterClient:
    def __init__(
        self,
        bootstrap: Sequence[Address],
        *,
        network: Network | None = None,
        clock: Clock | None = None,
        client_id: str = "klamm",
        timeout: float = DEFAULT_TIMEOUT,
    ) -> None:
        self._bootstrap = list(bootstrap)
        self._network = network or AsyncioNetwork()
        self._clock = clock or SystemClock()
        self._client_id = client_id
        self.timeout = timeout
        self._links: dict[Address, BrokerLink] = {}
        self._connecting: defaultdict[Address, asyncio.Lock] = defaultdict(asyncio.Lock)
        self.cluster_id: str | None = None
        self.controller_id = -1
        self.brokers: dict[int, BrokerAddress] = {}
        self._leaders: dict[tuple[str, int], int] = {}

    @asynccontextmanager
    async def running(self) -> AsyncIterator[ClusterClient]:
        """Raises NoBroker at once if no address answers, instead of repeating: the address is probably wrong."""
        try:
            await self.metadata([])
            yield self
        finally:
            for link in self._links.values():
                await link.close()

    # --- requests by destination

    async def ask_any(self, key: ApiKey, request: Any, newest: int | None = None) -> Any:
        async def attempt() -> Any:
            link = await self._any_link()
            return await link.ask(key, request, self.timeout, newest)

        return await self.repeating(APIS[key].name, attempt)

    async def ask_broker(self, broker: int, key: ApiKey, request: Any, newest: int | None = None) -> Any:
        async def attempt() -> Any:
            link = await self.link_to(broker)
            return await link.ask(key, request, self.timeout, newest)

        return await self.repeating(f"{APIS[key].name} to broker {broker}", attempt)

    async def ask_controller(self, key: ApiKey, request: Any, newest: int | None = None) -> Any:
        async def attempt() -> Any:
            if self.controller_id not in self.brokers:
                await self.metadata([])
            if self.controller_id not in self.brokers:
                raise KafkaError(ErrorCode.NOT_CONTROLLER, "the cluster has no controller at the moment")
            link = await self.link_to(self.controller_id)
            answer = await link.ask(key, request, self.timeout, newest)
            if ErrorCode.NOT_CONTROLLER in set(codes_in(answer)):
                broker, self.controller_id = self.controller_id, -1
                raise KafkaError(ErrorCode.NOT_CONTROLLER, f"broker {broker} is not the controller any more")
            return answer

        return await self.repeating(f"{APIS[key].name} to the controller", attempt)

    async def ask_coordinator(
        self, name: str, key: ApiKey, request: Any, kind: int = GROUP, newest: int | None = None
    ) -> Any:
        """To the coordinator of a group, or of a transactional id (`kind` TRANSACTION)."""
        moved = (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE)

        async def attempt() -> Any:
            link = await self.link_to(await self._coordinator(name, kind))
            answer = await link.ask(key, request, self.timeout, newest)
            for code in codes_in(answer):
                if code in moved:
                    raise KafkaError(error_of(code))
            return answer

        return await self.repeating(f"{APIS[key].name} to the coordinator of {name}", attempt)

    async def _coordinator(self, name: str, kind: int) -> int:
        request = request_class(ApiKey.FIND_COORDINATOR)(key=name, key_type=kind)
        link = await self._any_link()
        answer = await link.ask(ApiKey.FIND_COORDINATOR, request, self.timeout, FIND_COORDINATOR_NEWEST)
        if answer.error_code:
            raise KafkaError(error_of(answer.error_code), answer.error_message or None)
        found = BrokerAddress(answer.node_id, Address(answer.host, answer.port), None)
        self.brokers.setdefault(answer.node_id, found)
        return int(answer.node_id)

    async def repeating(self, what: str, attempt: Callable[[], Awaitable[T]]) -> T:
        """Repeat while it fails for a reason that may pass. Raises KafkaError or ClientError."""
        deadline = self._clock.monotonic() + self.timeout
        pause = FIRST_PAUSE
        while True:
            try:
                return await attempt()
            except (KafkaError, OSError, NoBroker) as error:
                if not passes(error):
                    raise
                if self._clock.monotonic() + pause > deadline:
                    if isinstance(error, OSError):
                        raise ClientError(f"{what} failed: {reason(error)}") from error
                    raise
                self._leaders.clear()
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    # --- metadata

    async def metadata(self, topics: Collection[str] | None) -> Any:
        """The answer to Metadata about these topics, or all (None). It never creates a topic."""
        cls = request_class(ApiKey.METADATA)
        wanted = None if topics is None else [cls.MetadataRequestTopic(name=name) for name in topics]
        link = await self._any_link()
        answer = await link.ask(
            ApiKey.METADATA, cls(topics=wanted, allow_auto_topic_creation=False), self.timeout, newest=9
        )
        self.cluster_id, self.controller_id = answer.cluster_id, answer.controller_id
        self.brokers = {b.node_id: BrokerAddress(b.node_id, Address(b.host, b.port), b.rack) for b in answer.brokers}
        for topic in answer.topics:
            for entry in topic.partitions:
                self._leaders[topic.name, entry.partition_index] = entry.leader_id
        return answer

    async def leader_of(self, topic: str, partition: int) -> int:
        """Raises KafkaError if there is none at the moment, so call it inside `repeating`."""
        if (topic, partition) not in self._leaders:
            (entry,) = (await self.metadata([topic])).topics
            if entry.error_code:
                raise KafkaError(error_of(entry.error_code), f"topic {topic}")
        leader = self._leaders.get((topic, partition))
        if leader is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic}-{partition}")
        if leader < 0:
            del self._leaders[topic, partition]
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"{topic}-{partition} has no leader")
        return leader

    def forget_leaders(self) -> None:
        self._leaders.clear()

    # --- links

    async def link_to(self, broker: int) -> BrokerLink:
        if broker not in self.brokers:
            await self.metadata([])
        if broker not in self.brokers:
            raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, f"broker {broker} is not in the cluster")
        address = self.brokers[broker].address
        try:
            return await self._link(address)
        except OSError as error:
            raise ConnectionError(f"broker {broker} at {address}: {reason(error)}") from error

    async def _any_link(self) -> BrokerLink:
        for link in self._links.values():
            if link.is_open:
                return link
        failures: dict[Address, str] = {}
        for address in (*(broker.address for broker in self.brokers.values()), *self._bootstrap):
            if address not in failures:
                try:
                    return await self._link(address)
                except OSError as error:
                    failures[address] = reason(error)
        told = ", ".join(f"{address} ({why})" for address, why in failures.items())
        raise NoBroker(f"no broker answers at {told}: is the cluster running, and is the address right?")

    async def _link(self, address: Address) -> BrokerLink:
        async with self._connecting[address]:
            link = self._links.get(address)
            if link is None or not link.is_open:
                link = BrokerLink(self._network, self._clock, address, self._client_id)
                await link.connect(self.timeout)
                self._links[address] = link
            return link


def codes_in(message: Message) -> Iterator[int]:
    """Every error code in an answer, whatever its structure."""
    for field in message.struct.all_fields:
        if field.name.endswith("error_code"):
            yield getattr(message, field.name)
        elif field.struct is not None:
            for entry in getattr(message, field.name) or ():
                yield from codes_in(entry)
