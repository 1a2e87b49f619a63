"""Events that ask for leader elections: read what they need, decide (`balance`), run, answer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from klamm.controller.context.controller_context import ControllerContext, PartitionIndex
from klamm.controller.decisions import leader_elections
from klamm.controller.decisions.steps import WriteNodes
from klamm.controller.events import ElectLeaders
from klamm.controller.execution.loading import Reader
from klamm.controller.execution.runner import StepRunner
from klamm.controller.recorder import Recorder
from klamm.model.errors import ErrorCode, KafkaError, ZNodeError
from klamm.model.ids import BrokerId, ControllerEpoch, TopicPartition
from klamm.model.ports import Delete
from klamm.zookeeper.znodes import preferred_replica_election


class Elections:
    """Of one term."""

    def __init__(
        self,
        context: ControllerContext,
        controller_epoch: ControllerEpoch,
        reader: Reader,
        runner: StepRunner,
        recorder: Recorder,
    ) -> None:
        self._context = context
        self._epoch = controller_epoch
        self._reader = reader
        self._runner = runner
        self._recorder = recorder

    async def on_call(self, event: ElectLeaders) -> None:
        """Without a list, partitions that need no election are left out of the answer."""
        cause = f"{'unclean' if event.unclean else 'preferred'} leader election by request"
        named = leader_elections.asked(self._context) if event.partitions is None else event.partitions
        results = await self._elect(named, cause, unclean=event.unclean)
        if event.partitions is None:
            results = {name: result for name, result in results.items() if not _is_not_needed(result)}
        if not event.reply.done():
            event.reply.set_result(results)

    async def on_znode(self) -> None:
        path = preferred_replica_election.PATH
        (node,) = await self._reader.watched([path])
        if node is None:
            return
        cause = "preferred leader election by znode"
        try:
            await self._elect(preferred_replica_election.decode(path, node.data), cause, unclean=False)
        except ZNodeError as error:
            self._recorder.znode_skipped(error)
            return
        await self._runner.run(iter([WriteNodes(cause=cause, ops=[Delete(path)])]))

    async def on_imbalance(self, percentage: int) -> None:
        view, cause = self._context, "automatic preferred leader election"
        if not view.counts().preferred_replica_imbalance:
            return
        for broker in sorted(view.live):
            unbalanced = leader_elections.to_give_back(view, broker, percentage)
            if unbalanced:
                await self._run(unbalanced, cause, unclean=False)
            await asyncio.sleep(0)

    # --- inside ---

    async def _elect(
        self, names: Iterable[TopicPartition], cause: str, *, unclean: bool
    ) -> dict[TopicPartition, BrokerId | KafkaError]:
        view = self._context
        results: dict[TopicPartition, BrokerId | KafkaError] = {}
        asked: dict[TopicPartition, PartitionIndex] = {}
        for name in sorted(set(names)):
            refusal, partition = leader_elections.refusal(view, name, unclean=unclean), view.partition(*name)
            if refusal is not None or partition is None:
                results[name] = refusal or KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            else:
                asked[name] = partition
        if asked:
            await self._run(list(asked.values()), cause, unclean=unclean)
        for name, partition in asked.items():
            results[name] = leader_elections.outcome(view, partition, unclean=unclean)
        return results

    async def _run(self, partitions: list[PartitionIndex], cause: str, *, unclean: bool) -> None:
        await self._runner.run(leader_elections.elect(self._context, self._epoch, partitions, cause, unclean=unclean))
        elected = sum(leader_elections.is_fine(self._context, i, unclean=unclean) for i in partitions)
        counts = {"partitions": len(partitions), "elected": elected}
        self._recorder.decision("leaders-elected", cause, counts=counts)


def _is_not_needed(result: BrokerId | KafkaError) -> bool:
    return isinstance(result, KafkaError) and result.code is ErrorCode.ELECTION_NOT_NEEDED
