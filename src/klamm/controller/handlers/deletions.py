"""Events about topics marked for deletion in /admin/delete_topics."""

from __future__ import annotations

from klamm.controller.decisions import deletion
from klamm.controller.handlers.services import TermServices
from klamm.zookeeper.znodes import delete_topics


class DeletionEvents:
    """Belongs to one term."""

    def __init__(self, services: TermServices) -> None:
        self._enabled = services.config.delete_topic_enable
        self._context = services.context
        self._reader = services.reader
        self._runner = services.runner

    def waiting(self) -> tuple[tuple[str, str], ...]:
        """Topics being deleted and what each waits for, as text."""
        view = self._context
        return tuple((t, deletion.what_is_left(view, t, retry=False).waits_for) for t in sorted(view.deleting))

    async def queue_marked(self) -> list[str]:
        """Returns the children of /admin/delete_topics. Those that may be deleted are queued, which at once stops their
        elections."""
        marked = await self._reader.names(delete_topics.PARENT)
        for topic in deletion.topics_to_queue(self._context, marked, enabled=self._enabled):
            self._context.start_deleting(topic)
        return marked

    async def on_topic_deletion(self) -> None:
        marked = await self.queue_marked()
        decision = deletion.on_topic_deletion(self._context, marked, enabled=self._enabled)
        await self._runner.run(decision, f"deletion of topics {marked[:5]}")

    async def take_over(self, marked: list[str], cause: str) -> None:
        """Called after a fail-over."""
        decision = deletion.on_topic_deletion(self._context, marked, enabled=self._enabled, retry=True)
        await self._runner.run(decision, cause)

    async def retry(self, cause: str) -> None:
        await self._runner.run(deletion.resume_deletions(self._context, retry=True), cause)
