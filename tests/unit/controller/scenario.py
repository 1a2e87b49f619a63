"""A controller in isolation: ZooKeeper in memory, stub brokers behind the network port, and their conversation.

`scenario.talk()` returns what happened since the last call as lines: ZooKeeper writes of the controller, then requests
per broker in the order in which they were received. Time does not pass; `settle` runs the loop until nothing happens.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from random import Random
from typing import Any

from klamm.controller.controller import Controller
from klamm.model.brokers import Broker, Endpoint
from klamm.model.config import read_broker_config
from klamm.model.ids import BrokerId
from klamm.model.ports import Buffer, Listening, ProtocolFactory
from klamm.telemetry.metrics import MetricsRegistry
from klamm.testing.zookeeper import InMemoryTree, InMemoryZooKeeper
from klamm.wire.apis import ApiKey
from klamm.wire.control.schema_requests import iter_partition_states, iter_stopped_replicas
from klamm.wire.messages import decode_request, encode_response, response_class
from klamm.wire.server_connection import parse_request
from klamm.zookeeper.znodes import broker_id
from klamm.zookeeper.znodes.persistent import PERSISTENT_PATHS

from .fakes import ManualClock, Sink

US = 9
PORT = 9000


class StubTransport(asyncio.Transport):
    def __init__(self, network: StubNetwork, broker: int, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self._network, self._broker, self._protocol = network, broker, protocol
        self._closed = False

    def writelines(self, chunks: Iterable[Buffer]) -> None:
        frame = b"".join(bytes(chunk) for chunk in chunks)
        answer = self._network.received(self._broker, memoryview(frame)[4:])
        if answer is not None:
            asyncio.get_running_loop().call_soon(self._deliver, answer)

    def write(self, data: Buffer) -> None:
        self.writelines([data])

    def _deliver(self, answer: bytes) -> None:
        if not self._closed:
            self._protocol.data_received(len(answer).to_bytes(4, "big") + answer)

    def abort(self) -> None:
        if not self._closed:
            self._closed = True
            asyncio.get_running_loop().call_soon(self._protocol.connection_lost, None)

    close = abort

    def is_closing(self) -> bool:
        return self._closed


class StubNetwork:
    """Brokers that answer every control request at once, unless `errors` or `silent` say otherwise."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.requests: list[tuple[int, ApiKey, Any]] = []
        self.silent: set[int] = set()
        self.errors: Callable[[int, ApiKey, str, int], int] = lambda broker, api, topic, partition: 0
        self.top_error = 0
        self.refused_metadata: set[int] = set()
        """Brokers that answer UpdateMetadata with an error."""
        self.unreachable: dict[int, OSError] = {}
        """What connecting to a broker raises."""
        self._transports: list[tuple[int, StubTransport]] = []

    async def connect(self, factory: ProtocolFactory, host: str, port: int) -> asyncio.Transport:
        await asyncio.sleep(0)
        broker = port - PORT
        if broker in self.unreachable:
            raise self.unreachable[broker]
        protocol = factory()
        assert isinstance(protocol, asyncio.Protocol)
        transport = StubTransport(self, broker, protocol)
        self._transports.append((broker, transport))
        protocol.connection_made(transport)
        return transport

    def cut_off(self, broker: int, error: OSError) -> None:
        """Break all connections to the broker; new ones fail with this error."""
        self.unreachable[broker] = error
        for owner, transport in self._transports:
            if owner == broker:
                transport.abort()

    async def listen(self, factory: ProtocolFactory, host: str, port: int) -> Listening:
        raise NotImplementedError

    def received(self, broker: int, frame: memoryview) -> bytes | None:
        request = parse_request(frame)
        key, version = request.header.api_key, request.header.api_version
        body = decode_request(key, version, bytes(request.body))
        self.requests.append((broker, key, body))
        self.lines.append(f"{broker} <- {_described(key, version, body)}")
        if broker in self.silent:
            return None
        head = request.header.correlation_id.to_bytes(4, "big") + b"\x00"
        return head + encode_response(self._answer(broker, key, version, body), version)

    def _answer(self, broker: int, key: ApiKey, version: int, body: Any) -> Any:
        if key is ApiKey.UPDATE_METADATA:
            error = self.top_error or -int(broker in self.refused_metadata)
            return response_class(ApiKey.UPDATE_METADATA)(error_code=error)
        if key is ApiKey.LEADER_AND_ISR:
            cls: Any = response_class(ApiKey.LEADER_AND_ISR)
            names = [(topic, s.partition_index) for topic, s in iter_partition_states(body)]
        else:
            cls = response_class(ApiKey.STOP_REPLICA)
            names = [tuple(name) for name, _, _ in iter_stopped_replicas(body)]
        if self.top_error:
            return cls(error_code=self.top_error, partition_errors=[])
        errors = [
            cls.PartitionError(topic_name=t, partition_index=p, error_code=self.errors(broker, key, t, p))
            for t, p in names
        ]
        return cls(error_code=0, partition_errors=errors)


def _described(key: ApiKey, version: int, body: Any) -> str:
    if key is ApiKey.STOP_REPLICA:
        stopped = [f"{n}{' delete' if d else ''} e{e}" for n, e, d in iter_stopped_replicas(body)]
        return f"StopReplica{version} {', '.join(map(str, stopped))}"
    states = []
    for topic, s in iter_partition_states(body):
        text = f"{topic}-{s.partition_index} leader {s.leader} e{s.leader_epoch} isr {list(s.isr)} v{s.zk_version}"
        if key is ApiKey.LEADER_AND_ISR:
            text += " new" if s.is_new else ""
        elif s.offline_replicas:
            text += f" offline {list(s.offline_replicas)}"
        states.append(text)
    name = "LeaderAndIsr" if key is ApiKey.LEADER_AND_ISR else "UpdateMetadata"
    suffix = "" if key is ApiKey.LEADER_AND_ISR else f" live {[b.id for b in body.live_brokers]}"
    return f"{name} {{{'; '.join(states)}}}{suffix}"


class Scenario:
    def __init__(self, tree: InMemoryTree | None = None, *, session_id: int = 1, **properties: str) -> None:
        self.zk = InMemoryZooKeeper(tree, session_id)
        self.network = StubNetwork()
        self.sink = Sink()
        self.metrics = MetricsRegistry()
        self.registrations = 0
        values = {
            "broker.id": str(US),
            "zookeeper.connect": "fake:1",
            "listeners": "PLAINTEXT://h:9009",
            "inter.broker.protocol.version": "2.5",
            **{key.replace("_", "."): value for key, value in properties.items()},
        }
        config, _ = read_broker_config(values)
        self.controller = Controller(
            config=config,
            clock=ManualClock(),
            network=self.network,
            random=Random(1),
            zk=self.zk,
            events=self.sink,
            metrics=self.metrics,
            register_broker=self._register,
        )
        self._writes = 0

    async def _register(self) -> None:
        self.registrations += 1

    @asynccontextmanager
    async def running(self, *brokers: int, epoch: int = 4) -> AsyncIterator[Scenario]:
        """Registers the brokers and our own, and is elected with epoch + 1. `talk` starts after the fail-over."""
        self.prepare(*brokers, epoch=epoch)
        async with self.controller.running():
            await self.settle()
            assert self.controller.is_active
            self.talk()
            yield self

    def prepare(self, *brokers: int, epoch: int = 4) -> None:
        for path in PERSISTENT_PATHS:
            self.zk.put(path)
        if "/controller_epoch" not in self.zk.tree.nodes:
            self.zk.put("/controller_epoch", str(epoch))
        for broker in (*brokers, US):
            self.start_broker(broker)

    def start_broker(self, broker: int, owner: int | None = None) -> None:
        document = broker_id.encode(Broker(BrokerId(broker), (Endpoint("PLAINTEXT", "h", PORT + broker),)), 0)
        self.zk.put(f"/brokers/ids/{broker}", document, owner=owner or 1000 + broker)

    def stop_broker(self, broker: int) -> None:
        self.zk.remove(f"/brokers/ids/{broker}")

    def create_topic(self, topic: str, *replicas: Sequence[int], config: dict[str, str] | None = None) -> None:
        document = {"version": 1, "config": config or {}}
        self.zk.put(f"/config/topics/{topic}", json.dumps(document))
        partitions = {str(n): list(r) for n, r in enumerate(replicas)}
        self.zk.put(f"/brokers/topics/{topic}", json.dumps({"version": 1, "partitions": partitions}))

    def put_state(
        self, topic: str, partition: int, leader: int, epoch: int, isr: Sequence[int], controller: int
    ) -> None:
        state = {
            "controller_epoch": controller,
            "leader": leader,
            "version": 1,
            "leader_epoch": epoch,
            "isr": list(isr),
        }
        self.zk.put(f"/brokers/topics/{topic}/partitions/{partition}/state", json.dumps(state))

    def state(self, topic: str, partition: int) -> tuple[int, int, list[int], int]:
        """Leader, leader epoch, ISR, znode version."""
        path = f"/brokers/topics/{topic}/partitions/{partition}/state"
        found = json.loads(self.zk.text(path))
        return found["leader"], found["leader_epoch"], found["isr"], self.zk.tree.nodes[path].version

    async def settle(self) -> None:
        quiet = 0
        seen: tuple[int, ...] = ()
        while quiet < 100:
            await asyncio.sleep(0)
            now = (len(self.zk.tree.writes), len(self.network.lines), len(self.sink.records), self.zk.tree.zxid)
            quiet = quiet + 1 if now == seen else 0
            seen = now

    def talk(self) -> list[str]:
        lines = [
            *self.zk.tree.writes[self._writes :],
            *sorted(self.network.lines, key=lambda line: int(line.split()[0])),
        ]
        self._writes = len(self.zk.tree.writes)
        self.network.lines.clear()
        return lines

    async def after(self, action: Callable[[], object]) -> list[str]:
        action()
        await self.settle()
        return self.talk()
