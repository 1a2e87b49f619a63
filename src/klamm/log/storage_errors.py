"""Which errors of the file system condemn a directory, and which only refuse the request that met them.

A full disk and a lack of descriptors pass: nothing is broken, and the next try may succeed. Everything else means that
the files can no longer be trusted, and the whole directory goes offline.
"""

from __future__ import annotations

import errno
from typing import Final

_PASSING: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE})


class SyncFailed(OSError):
    """An fsync failed. Whatever its reason, the kernel may have dropped what was to be written: this does not pass."""


def is_passing(error: OSError) -> bool:
    return error.errno in _PASSING and not isinstance(error, SyncFailed)
