"""klamm broker: read the properties file and run one broker in the foreground."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from pathlib import Path

from klamm.model.errors import ConfigError


def start(file: str, overrides: Sequence[str], *, json_log: bool = False, log_file: str | None = None) -> None:
    """Run the broker until it stops; then exit. Raises ConfigError if the configuration is wrong."""
    properties = _properties(Path(file), overrides)
    gc.disable()  # imported modules stay; searching them for garbage takes a tenth of the start
    from klamm.server.run_broker import run_broker

    gc.freeze()
    gc.enable()
    run_broker(properties, json_log=json_log, log_file=log_file)


def _properties(path: Path, overrides: Sequence[str]) -> dict[str, str]:
    from klamm.model.settings import parse_properties

    try:
        properties = parse_properties(path.read_text())
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    for entry in overrides:
        key, equals, value = entry.partition("=")
        if not equals:
            raise ConfigError(f"--override {entry!r} is not key=value")
        properties[key.strip()] = value.strip()
    return properties
