"""What the handlers of one term share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from klamm.controller.context.controller_context import ControllerContext
from klamm.controller.events import ControllerEvent
from klamm.controller.execution.loading import ZNodeReader
from klamm.controller.execution.runner import StepRunner
from klamm.controller.recorder import Recorder
from klamm.model.config import BrokerConfig
from klamm.model.ports import Clock


@dataclass(frozen=True, slots=True, kw_only=True)
class TermServices:
    config: BrokerConfig
    clock: Clock
    context: ControllerContext
    reader: ZNodeReader
    runner: StepRunner
    recorder: Recorder
    enqueue: Callable[[ControllerEvent], None]
