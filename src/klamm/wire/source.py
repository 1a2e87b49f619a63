"""What the compilers of readers and writers share: the text of a function as it grows, and the names that it uses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Source:
    """A function in the making. `constant` gives an object a name that the function can use."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._depth = 0
        self._constants: dict[str, Any] = {}
        self._names: dict[Any, str] = {}
        self._made = 0

    def line(self, text: str) -> None:
        self._lines.append("    " * self._depth + text)

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        self.line(head)
        self._depth += 1
        yield
        self._depth -= 1

    def name(self, stem: str) -> str:
        """A variable that nothing else uses."""
        self._made += 1
        return f"{stem}{self._made}"

    def constant(self, stem: str, key: Any, value: Any) -> str:
        """The name of the constant with this key. The first value given for a key counts."""
        if (stem, key) not in self._names:
            name = self._names[stem, key] = self.name(stem)
            self._constants[name] = value
        return self._names[stem, key]

    def compiled(self, function: str, title: str, **constants: Any) -> Any:
        made = {**self._constants, **constants}
        exec(compile("\n".join(self._lines), f"<{title}>", "exec"), made)
        return made[function]
