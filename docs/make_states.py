"""Writes the diagrams of the controller's statuses into `replication.rst`, from the tables by which
the controller moves. Run by `make docs`; a test compares the page with `render()`."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from pathlib import Path
from typing import Final, TypeVar

from pybroker.coordinator.controller import partitions, replicas

PAGE: Final = Path(__file__).parent / "replication.rst"
BEGIN: Final = ".. The diagrams are made by ``make docs`` from LEGAL_MOVES; change that.\n"
END: Final = ".. The diagrams end here.\n"
StatusT = TypeVar("StatusT", bound=enum.Enum)


def targets(moves: Mapping[StatusT, frozenset[StatusT]]) -> dict[str, list[str]]:
    """Each status with those to which it may go, in the order of the table."""
    return {
        source.value: [target.value for target in moves if source in moves[target]]
        for source in type(next(iter(moves)))
    }


TABLES: Final = {
    "A partition": targets(partitions.LEGAL_MOVES),
    "A replica of a topic that is being deleted": targets(replicas.LEGAL_MOVES),
}


def render() -> str:
    """The part of the page between the marks, with them."""
    diagrams = (f"{title}::\n\n{_diagram(moves)}\n" for title, moves in TABLES.items())
    return BEGIN + "\n" + "\n".join(diagrams) + "\n" + END


def _diagram(moves: Mapping[str, list[str]]) -> str:
    width = max(map(len, moves))
    return "\n".join(
        f"    {source if place == 0 else '':{width}} {'-->' if place == 0 else '   '} {target}"
        for source, reached in moves.items()
        for place, target in enumerate(reached)
    )


def main() -> None:
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    PAGE.write_text(before + render() + after, encoding="utf-8")


if __name__ == "__main__":
    main()
