"""Finds the znode that an unexpected failure concerns, so that the controller can set it aside (design D14).

Guarding every partition in advance would cost more than the elections. Rules and questions about partitions are pure,
and the context is dropped after a failure anyway. So work that failed for many partitions is repeated for each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TypeVar

from klamm.controller.context.controller_context import ControllerContext, PartitionIndex
from klamm.zookeeper.znodes import topic as topic_znode

T = TypeVar("T")


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
    except ZNodeFault:
        raise
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


def for_all(
    view: ControllerContext, partitions: Sequence[PartitionIndex], act: Callable[[Sequence[PartitionIndex]], T]
) -> T:
    """Call `act` for these partitions. If it fails, it is repeated for one partition after another, to name the topic
    of the first that fails. So it may only compute, or change what is dropped with the term."""
    try:
        return act(partitions)
    except Exception:
        find_fault(view, partitions, lambda partition: act((partition,)))
        raise
