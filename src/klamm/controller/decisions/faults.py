"""Unexpected failures that concern one znode, so that the controller can set this znode aside and go on (design D14).

Marking every partition beforehand would cost more than the elections. Rules and questions about partitions are pure, so
after a failure they are simply asked again, partition by partition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager

from klamm.controller.context.controller_context import ControllerContext, PartitionIndex
from klamm.zookeeper.znodes import topic as topic_znode


class ZNodeFault(Exception):
    """Handling one znode failed unexpectedly; `__cause__` says how."""

    def __init__(self, path: str) -> None:
        super().__init__(f"handling {path} failed")
        self.path = path


@contextmanager
def concerning(path: str) -> Iterator[None]:
    """Whatever the block raises concerns this znode."""
    try:
        yield
    except Exception as error:
        raise ZNodeFault(path) from error


def concerning_topic(topic: str) -> AbstractContextManager[None]:
    return concerning(topic_znode.path(topic))


def find_fault(
    view: ControllerContext, partitions: Iterable[PartitionIndex], ask: Callable[[PartitionIndex], object]
) -> None:
    """Call after `ask` failed for some of these partitions: raises a ZNodeFault that names the topic of the first."""
    for partition in partitions:
        with concerning_topic(view.topic_of(partition)):
            ask(partition)
