"""Events that ask for leader elections."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from klamm.controller.context.controller_context import PartitionIndex
from klamm.controller.decisions import leader_elections
from klamm.controller.decisions.faults import concerning_topic
from klamm.controller.decisions.steps import WriteNodes, only
from klamm.controller.events import ElectLeaders
from klamm.controller.handlers.services import TermServices
from klamm.model.elections import UncleanElection
from klamm.model.errors import ErrorCode, KafkaError, ZNodeError
from klamm.model.ids import BrokerId, TopicPartition
from klamm.model.ports import Delete
from klamm.zookeeper.znodes import preferred_replica_election


class LeaderElectionEvents:
    """Belongs to one term."""

    def __init__(self, services: TermServices) -> None:
        self._percentage = services.config.leader_imbalance_per_broker_percentage
        self._context = services.context
        self._reader = services.reader
        self._recorder = services.recorder
        self._runner = services.runner

    async def on_call(self, event: ElectLeaders) -> None:
        """Without a list, partitions that need no election are left out of the answer."""
        kind = "unclean" if event.unclean is UncleanElection.ALLOWED else "preferred"
        named = leader_elections.all_names(self._context) if event.partitions is None else event.partitions
        results = await self._elect(named, event.unclean, f"{kind} leader election by request")
        if event.partitions is None:
            results = {name: result for name, result in results.items() if not _is_not_needed(result)}
        event.answer(results)

    async def on_znode(self) -> None:
        path = preferred_replica_election.PATH
        (node,) = await self._reader.watched([path])
        if node is None:
            return
        cause = "preferred leader election by znode"
        try:
            names = preferred_replica_election.decode(path, node.data)
        except ZNodeError as error:
            self._recorder.znode_skipped(error)
            return
        await self._elect(names, UncleanElection.FORBIDDEN, cause)
        await self._runner.run(only(WriteNodes([Delete(path)])), cause)

    async def on_imbalance(self) -> None:
        view, cause = self._context, "automatic preferred leader election"
        if not view.counts().preferred_replica_imbalance:
            return
        for broker in sorted(view.live):
            unbalanced = leader_elections.to_give_back(view, broker, self._percentage)
            if unbalanced:
                await self._run(unbalanced, UncleanElection.FORBIDDEN, cause)
            await asyncio.sleep(0)

    # --- internals ---

    async def _elect(
        self, names: Iterable[TopicPartition], unclean: UncleanElection, cause: str
    ) -> dict[TopicPartition, BrokerId | KafkaError]:
        view = self._context
        results: dict[TopicPartition, BrokerId | KafkaError] = {}
        asked: dict[TopicPartition, PartitionIndex] = {}
        for name in sorted(set(names)):
            with concerning_topic(name.topic):
                refusal, partition = leader_elections.refusal(view, name, unclean), view.partition(*name)
            if refusal is not None or partition is None:
                results[name] = refusal or KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            else:
                asked[name] = partition
        if asked:
            await self._run(list(asked.values()), unclean, cause)
        for name, partition in asked.items():
            results[name] = leader_elections.result(view, partition, unclean)
        return results

    async def _run(self, partitions: list[PartitionIndex], unclean: UncleanElection, cause: str) -> None:
        await self._runner.run(leader_elections.elect(self._context, partitions, unclean), cause)
        elected = sum(leader_elections.is_well_led(self._context, i, unclean) for i in partitions)
        counts = {"partitions": len(partitions), "elected": elected}
        self._recorder.decision("leaders-elected", cause, counts=counts)


def _is_not_needed(result: BrokerId | KafkaError) -> bool:
    return isinstance(result, KafkaError) and result.code is ErrorCode.ELECTION_NOT_NEEDED
