"""Write `pybroker/client/keywords.py`: the options of the clients as types of keyword arguments,
made from the table in `pybroker/client/options.py`. Editors complete them, and type checkers find
wrong names and values. `make docs` runs this module; a test compares the file with `render()`."""

from __future__ import annotations

import dataclasses
import textwrap
from pathlib import Path
from typing import Final

from pybroker.client.options import (
    ALIASES,
    AdminOptions,
    ClientOptions,
    ConsumerOptions,
    ProducerOptions,
)

PATH: Final = Path(__file__).parents[1] / "pybroker" / "client" / "keywords.py"
HEAD: Final = '''\
"""The keyword arguments of the clients. `make docs` makes this file from the table in
`options.py`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypedDict
'''
POSITIONAL: Final = ("bootstrap_servers",)
"""The options that are positional arguments of the clients."""
KINDS: Final[tuple[type[ClientOptions], ...]] = (
    ClientOptions,
    AdminOptions,
    ProducerOptions,
    ConsumerOptions,
)
WIDTH: Final = 96


def render() -> str:
    """Return the text of the file."""
    values = {
        row.metadata["kind"].alias: row.metadata["kind"].annotation
        for kind in KINDS
        for row in dataclasses.fields(kind)
        if row.metadata["kind"].alias
    }
    aliases = [f"{alias} = {values[alias]}\n" for alias in sorted(values)]
    return "".join((HEAD, "\n", *aliases, *map(_class, KINDS)))


def _class(kind: type[ClientOptions]) -> str:
    is_base = kind is ClientOptions
    inherited = () if is_base else [row.name for row in dataclasses.fields(ClientOptions)]
    parent = "TypedDict" if is_base else _name(ClientOptions)
    lines = [
        "\n",
        f"class {_name(kind)}({parent}, total=False):",
        f'    """The keyword arguments of {_client(kind)}, with Kafka\'s names and defaults."""',
    ]
    aliases = {plain: alias for alias, plain in ALIASES.items()}
    for row in dataclasses.fields(kind):
        if row.name in inherited or row.name in POSITIONAL:
            continue
        meaning = str(row.metadata["meaning"])
        default = "" if row.default in (None, "") else f" Default: {_shown(row.default)}."
        text = _docstring(f"{meaning}.{default}")
        values = row.metadata["kind"]
        for name in filter(None, (row.name, aliases.get(row.name))):
            lines += ["", f"    {name}: {values.alias or values.annotation}", text]
    return "\n".join(lines) + "\n"


def _name(kind: type[ClientOptions]) -> str:
    return kind.__name__.replace("Options", "Keywords")


def _client(kind: type[ClientOptions]) -> str:
    return "all clients" if kind is ClientOptions else f"`{kind.__name__.removesuffix('Options')}`"


def _shown(value: object) -> str:
    return ", ".join(value) if isinstance(value, tuple) else str(value)


def _docstring(text: str) -> str:
    first, _, rest = text.partition(" ")
    name = "_" in first
    wrapped = textwrap.wrap(f'"""{first if name else first.capitalize()} {rest}"""', WIDTH)
    return textwrap.indent("\n".join(wrapped), "    ")


if __name__ == "__main__":
    PATH.write_text(render())
