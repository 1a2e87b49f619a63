"""kafka-python loads its schemas by a deprecated call at import; where warnings are errors, it is imported quietly."""

from __future__ import annotations

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka  # noqa: F401
