"""Events about topics marked for deletion in /admin/delete_topics."""

from __future__ import annotations

from klamm.controller.decisions import deletion
from klamm.controller.handlers.services import TermServices
from klamm.zookeeper.znodes import delete_topics
from klamm.zookeeper.znodes import topic as topic_znode


class DeletionEvents:
    """Belongs to one term."""

    def __init__(self, services: TermServices) -> None:
        self._enabled = services.config.delete_topic_enable
        self._context = services.context
        self._reader = services.reader
        self._runner = services.runner
        self._unseen: set[str] = set()
        """Marked topics that exist, but not for this controller."""

    def waiting(self) -> tuple[tuple[str, str], ...]:
        """Topics being deleted and what each waits for, as text."""
        view = self._context
        waits = {t: deletion.what_is_left(view, t, retry=False).waits_for for t in view.deleting}
        waits |= dict.fromkeys(self._unseen, "its znode, which is in quarantine or was not read yet")
        return tuple(sorted(waits.items()))

    async def queue_marked(self) -> list[str]:
        """Returns the children of /admin/delete_topics. Those that may be deleted are queued, which at once stops their
        elections."""
        marked = await self._reader.names_if_permitted(delete_topics.PARENT)
        for topic in deletion.topics_to_queue(self._context, marked, enabled=self._enabled):
            self._context.start_deleting(topic)
        return marked

    async def on_topic_deletion(self) -> None:
        marked = await self.queue_marked()
        await self._run(marked, f"deletion of topics {marked[:5]}")

    async def on_topics_added(self) -> None:
        """A marker may have been seen before its topic."""
        if not self._unseen.isdisjoint(self._context.topics):
            await self.on_topic_deletion()

    async def take_over(self, marked: list[str], cause: str) -> None:
        """Called after a fail-over."""
        await self._run(marked, cause, retry=True)

    async def _run(self, marked: list[str], cause: str, *, retry: bool = False) -> None:
        """A marker is erased only if ZooKeeper has no such topic: this controller may not know a topic yet, or have it
        in quarantine."""
        strange = [topic for topic in marked if topic not in self._context.topics]
        nodes = await self._reader.present([topic_znode.path(topic) for topic in strange])
        self._unseen = {topic for topic, is_there in zip(strange, nodes, strict=True) if is_there}
        unknown = set(strange) - self._unseen
        decision = deletion.on_topic_deletion(self._context, marked, unknown, enabled=self._enabled, retry=retry)
        await self._runner.run(decision, cause)

    async def retry(self, cause: str) -> None:
        await self._runner.run(deletion.resume_deletions(self._context, retry=True), cause)
