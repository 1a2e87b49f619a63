"""No setting is accepted and silently ignored: each declared key is read somewhere, or its declaration says that it has
no effect, and then setting it is answered with a warning."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

from klamm.model.config import TOPIC_DEFAULTS_FROM_BROKER, BrokerConfig, BrokerThrottles, TopicConfig
from klamm.model.setting_texts import SETTINGS, reason_not_supported
from klamm.model.settings import settings_of

SOURCE = Path(__file__).parents[3] / "src" / "klamm"
HOLDERS = ("config", "defaults", "found", "throttles", "now", "self")
"""Names of a configuration in the source: `self._config`, `log.config`, `defaults`, `now` after a change. `self` counts
only in the module of the declaration, where properties read the fields."""


@cache
def fields_read() -> frozenset[str]:
    """Every `<configuration>.<field>` in the source."""
    found = set()
    for module in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(module.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                holder = ast.unparse(node.value).rpartition(".")[2].lstrip("_")
                if holder in HOLDERS and (holder != "self" or module.name == "config.py"):
                    found.add(node.attr)
    return frozenset(found)


def is_read(cls: type, name: str) -> bool:
    """A broker's setting is also read if a topic's setting that defaults to it is."""
    if cls is TopicConfig:
        return name in fields_read()
    topic_fields = [topic for topic, broker in TOPIC_DEFAULTS_FROM_BROKER.items() if broker == name]
    return any(field in fields_read() for field in (name, *topic_fields))


@pytest.mark.parametrize("cls", [BrokerConfig, BrokerThrottles, TopicConfig])
def test_every_setting_is_read_or_declared_without_effect(cls: type) -> None:
    wrong = []
    for key, (name, setting) in settings_of(cls).items():
        if is_read(cls, name) and setting.no_effect:
            wrong.append(f"{key} is read, but declared without effect")
        elif not is_read(cls, name) and not setting.no_effect:
            wrong.append(f"{key} is accepted, and nothing reads it")
    assert not wrong


@pytest.mark.parametrize("cls", [BrokerConfig, BrokerThrottles, TopicConfig])
def test_every_setting_has_a_text(cls: type) -> None:
    missing = [key for key in settings_of(cls) if key not in SETTINGS]
    assert not missing, "add a sentence to src/klamm/model/setting_texts.py"


def test_no_setting_is_called_unsupported() -> None:
    declared = {key for cls in (BrokerConfig, BrokerThrottles, TopicConfig) for key in settings_of(cls)}
    assert not {key for key in declared if reason_not_supported(key)}, "these are supported now"
