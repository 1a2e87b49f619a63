"""Events about topics that are created, grow or disappear."""

from __future__ import annotations

from klamm.controller.context.controller_context import PartitionIndex
from klamm.controller.decisions import deletion, reassignment, topics
from klamm.controller.decisions.faults import concerning_topic
from klamm.controller.decisions.steps import ForgetTopics, WriteAssignments, only
from klamm.controller.events import TopicDeletion, ZkPartitionReassignment
from klamm.controller.handlers.services import TermServices
from klamm.zookeeper.znodes import topic as topic_znode


class TopicEvents:
    """Belongs to one term."""

    def __init__(self, services: TermServices) -> None:
        self._enqueue = services.enqueue
        self._clock = services.clock
        self._context = services.context
        self._reader = services.reader
        self._recorder = services.recorder
        self._runner = services.runner

    async def on_topic_change(self) -> None:
        started = self._clock.monotonic()
        context = self._context
        names = await self._reader.names(topic_znode.PARENT)
        new = [name for name in names if name not in context.topics]
        gone = sorted(context.topics.keys() - set(names))
        assignments = await self._reader.assignments(new)
        if gone:
            await self._runner.run(only(ForgetTopics(gone)), f"topics {gone[:5]} are gone from ZooKeeper")
            self._enqueue(TopicDeletion())  # a marker may have outlived its topic,
            self._enqueue(ZkPartitionReassignment())  # and so may a request to reassign it
        created: list[PartitionIndex] = []
        for topic, assignment in assignments.items():
            with concerning_topic(topic):
                context.add_topic(topic, assignment.topic_id)
                created += context.add_partitions(topic, assignment.partitions)
        if created:
            cause = f"topic creation {list(assignments)[:5]}"
            await self._runner.run(topics.create_partitions(context, created), cause)
            counts = {"topics": len(assignments), "partitions": len(created)}
            self._recorder.decision("topic-created", cause, started=started, counts=counts)

    async def on_partition_modifications(self, topic: str) -> None:
        started = self._clock.monotonic()
        context = self._context
        found = (await self._reader.assignments([topic])).get(topic)
        if found is None:
            return
        context.add_topic(topic, found.topic_id)
        known = context.topics[topic]
        completed = reassignment.completed_unwritten(context, topic, found.partitions)
        if completed:
            await self._runner.run(only(WriteAssignments(completed)), f"znode of topic {topic} repaired")
        added = {number: a for number, a in found.partitions.items() if number not in known}
        if not added:
            return
        if topic in context.deleting and known:
            await self._runner.run(topics.restore_assignment(context, topic), f"topic {topic} is being deleted")
            return
        cause = f"growth of topic {topic}"
        created = context.add_partitions(topic, added)
        await self._runner.run(topics.create_partitions(context, created), cause)
        if topic in context.deleting:  # the deletion waited for the znode to be repaired
            await self._runner.run(deletion.resume_deletions(context), cause)
        self._recorder.decision("topic-grown", cause, started=started, counts={"partitions": len(created)})
