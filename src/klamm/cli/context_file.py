"""The contexts of the command: clusters by name, so that addresses are written once. A JSON file of the user.

An address comes from the option, else from its environment variable, else from the context (`--context`,
KLAMM_CONTEXT, or the one in use), else it is that of a cluster on this machine.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final, NamedTuple

import orjson

from klamm.model.errors import KlammError

PLAINTEXT: Final = "PLAINTEXT"


class ContextError(KlammError):
    """The file or the name is wrong; the message says what to do."""


class Context(NamedTuple):
    bootstrap_server: str
    zookeeper: str = ""
    security_protocol: str = PLAINTEXT


class Contexts(NamedTuple):
    used: str = ""
    """Empty if none is in use."""
    by_name: dict[str, Context] = {}  # noqa: RUF012 - replaced, never changed


def path() -> Path:
    home = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(home) / "klamm" / "contexts.json"


def read() -> Contexts:
    """Raises ContextError if the file cannot be read."""
    file = path()
    try:
        document = orjson.loads(file.read_bytes())
        by_name = {str(name): Context(**values) for name, values in document["contexts"].items()}
        return Contexts(str(document["used"]), by_name)
    except FileNotFoundError:
        return Contexts()
    except OSError as error:
        raise ContextError(f"cannot read {file}: {error.strerror}") from None
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise ContextError(f"{file} is not a file of contexts ({error}): correct it or remove it") from None


def write(contexts: Contexts) -> None:
    """Replace the file at once, so that a crash leaves the old one."""
    file = path()
    document: dict[str, Any] = {
        "used": contexts.used,
        "contexts": {name: context._asdict() for name, context in sorted(contexts.by_name.items())},
    }
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        new = file.with_suffix(".new")
        new.write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2) + b"\n")
        new.replace(file)
    except OSError as error:
        raise ContextError(f"cannot write {file}: {error.strerror}") from None


def chosen(name: str) -> Context | None:
    """The context of this name, or the one in use; None without either. Raises ContextError."""
    contexts = read()
    wanted = name or contexts.used
    if not wanted:
        return None
    found = contexts.by_name.get(wanted)
    if found is None:
        known = ", ".join(sorted(contexts.by_name)) or "none"
        raise ContextError(f"there is no context {wanted} in {path()} (known: {known})")
    check_security(found.security_protocol)
    return found


def check_security(protocol: str) -> None:
    """Raises ContextError. An encrypted cluster must not be asked in plain text because a setting was ignored."""
    if protocol != PLAINTEXT:
        raise ContextError(f"security protocol {protocol} is not supported yet: klamm's client speaks {PLAINTEXT} only")
