"""kafka-python's schemas without its clients, which the package would otherwise import.

The clients are half of a broker's imports, and a broker uses none of them. So in a broker's process, and only there,
the package is registered without running its own code. The code runs when a client is imported after all.
"""

from __future__ import annotations

import importlib.util
import sys
from typing import Any


def without_clients() -> None:
    """Call it before anything imports `kafka`. If that is too late, or kafka-python is missing, nothing happens."""
    spec = importlib.util.find_spec("kafka") if "kafka" not in sys.modules else None
    if spec is None or spec.loader is None:
        return
    package, loader = importlib.util.module_from_spec(spec), spec.loader

    def complete(name: str) -> Any:
        del package.__dict__["__getattr__"]
        loader.exec_module(package)
        return getattr(package, name)

    package.__dict__["__getattr__"] = complete
    sys.modules["kafka"] = package
