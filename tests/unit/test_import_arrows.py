"""The architecture that one sees from the folders: which package may import which (docs/architecture.md)."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "klamm"

FOUNDATION = {"model", "wire", "telemetry", "security", "net", "log", "zookeeper", "controller", "broker"}

MAY_IMPORT: dict[str, set[str]] = {
    "model": set(),
    "wire": {"model"},
    "telemetry": {"model"},
    "security": {"model"},
    "net": {"model", "wire", "telemetry"},
    "log": {"model", "wire"},
    "zookeeper": {"model", "telemetry"},
    "controller": {"model", "wire", "net", "zookeeper", "telemetry"},
    "broker": {"model", "wire", "net", "log", "zookeeper", "telemetry", "security", "admin"},
    "server": FOUNDATION,
    "admin": {"model", "zookeeper.znodes"},
    "cli": {"model", "wire", "net", "admin"},
    "pipelines": {"model", "admin"},
}
LAZILY: dict[str, set[str]] = {
    "cli": {"server", "zookeeper", "telemetry", "pipelines", "simulation", "bench"},
}
"""What a command may import inside a function: `up` and `broker` start servers, the others stay light clients."""


def imports_of(module: Path) -> list[tuple[str, bool]]:
    """Every `klamm.x.y` that a module imports, and whether it does so at its top level."""
    tree = ast.parse(module.read_text())
    top_level = {id(node) for node in tree.body}
    for node in tree.body:
        if isinstance(node, ast.If):  # `if TYPE_CHECKING:` counts as top level too: an arrow is an arrow
            top_level.update(id(inner) for inner in node.body)
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(alias.name, id(node) in top_level) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found.append((node.module, id(node) in top_level))
    return [(name.removeprefix("klamm."), top) for name, top in found if name.startswith("klamm.")]


def allowed(name: str, packages: set[str]) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


@pytest.mark.parametrize("package", sorted(MAY_IMPORT))
def test_a_package_imports_only_what_its_arrow_allows(package: str) -> None:
    wrong = []
    for module in sorted((SOURCE / package).rglob("*.py")):
        for name, top in imports_of(module):
            permitted = MAY_IMPORT[package] | {package} | (set() if top else LAZILY.get(package, set()))
            if not allowed(name, permitted):
                wrong.append(f"{module.relative_to(SOURCE)} imports klamm.{name}")
    assert not wrong


def test_every_package_has_its_arrow() -> None:
    packages = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    assert packages - set(MAY_IMPORT) == {"testing", "simulation", "bench"}, "these three may import all; nobody them"
