"""The source text of a generated Python function, and its compilation. The text comes from
declarations in this package, never from received data."""

from __future__ import annotations

from typing import Any


class Source:
    """Builds the source text of one function, line by line, and compiles it. `names` are the global
    variables of the function: name -> value."""

    def __init__(self, **names: object) -> None:
        self._lines: list[str] = []
        self._depth = 0
        self._counter = 0
        self._namespace: dict[str, Any] = dict(names)

    def line(self, text: str) -> None:
        """Add a line to the text, with the present indentation."""
        self._lines.append("    " * self._depth + text)

    def indent(self) -> None:
        """Increase the indentation: the next lines belong to the block of the last statement."""
        self._depth += 1

    def dedent(self) -> None:
        """Decrease the indentation: the next lines come after the innermost block."""
        self._depth -= 1

    def variable(self, stem: str) -> str:
        """Return an unused variable name that begins with `stem`."""
        self._counter += 1
        return f"{stem}{self._counter}"

    def constant(self, value: object) -> str:
        """Return an expression for `value` in the generated code: a literal, or the name of a new
        variable that holds `value`."""
        if value is None or isinstance(value, bool | int | float | str | bytes):
            return repr(value)
        name = self.variable("K")
        self._namespace[name] = value
        return name

    def function(self, name: str) -> Any:
        """Compile the text, and return the function `name` that it defines."""
        code = compile("\n".join(self._lines), f"<wire {name}>", "exec")
        exec(code, self._namespace)  # noqa: S102  (the text was generated above)
        return self._namespace[name]
