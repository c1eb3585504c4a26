"""The text of a Python function that the compilers write, and its compilation.

The text comes from declarations in this package only, never from input.
"""

from __future__ import annotations

from typing import Any


class Source:
    """Lines with indentation, names for constants, and fresh variable names."""

    def __init__(self, **names: object) -> None:
        self._lines: list[str] = []
        self._depth = 0
        self._counter = 0
        self._namespace: dict[str, Any] = dict(names)

    def line(self, text: str) -> None:
        """Add one statement at the current depth."""
        self._lines.append("    " * self._depth + text)

    def indent(self) -> None:
        """Begin a block of the last statement."""
        self._depth += 1

    def dedent(self) -> None:
        """End the innermost block."""
        self._depth -= 1

    def variable(self, stem: str) -> str:
        """Return an unused name."""
        self._counter += 1
        return f"{stem}{self._counter}"

    def constant(self, value: object) -> str:
        """Return an expression for `value`: a literal if there is one, else a name bound to it."""
        if value is None or isinstance(value, bool | int | float | str | bytes):
            return repr(value)
        name = self.variable("K")
        self._namespace[name] = value
        return name

    def function(self, name: str) -> Any:
        """Compile the text and return the function `name` that it defines."""
        code = compile("\n".join(self._lines), f"<wire {name}>", "exec")
        exec(code, self._namespace)  # noqa: S102  (our own source, made above)
        return self._namespace[name]
