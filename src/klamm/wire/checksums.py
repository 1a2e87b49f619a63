"""CRC-32C, from the extension module of the package crc32c alone.

The package's own import also brings its command line and the metadata of packages: 60 modules and 3.6 MB that a broker
never uses. In a cluster of three in a test that is a tenth of its memory. If the package is built otherwise one day, it
is imported as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from typing import Any, Final

from klamm.model.ports import Buffer

_PACKAGE: Final = "crc32c"
_EXTENSION: Final = "_crc32c"


def _extension() -> Any:
    package = PathFinder.find_spec(_PACKAGE)
    spec = None if package is None else PathFinder.find_spec(_EXTENSION, package.submodule_search_locations)
    if spec is None or spec.loader is None:
        import crc32c

        return crc32c
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


crc32c: Final[Callable[[Buffer], int]] = _extension().crc32c
