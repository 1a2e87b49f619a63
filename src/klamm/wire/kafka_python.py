"""kafka-python's schemas without its clients, which the package imports whoever asks for what.

They are half of a broker's imports, and a broker uses none of them. So in its process, and only there, the package is
put into place as it is found, its own code not run; should somebody ask it for a client after all, it is run then.
"""

from __future__ import annotations

import importlib.util
import sys
from typing import Any


def without_clients() -> None:
    """Before anything imports `kafka`; too late, and where it is not installed, nothing happens."""
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
