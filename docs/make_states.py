"""Write the tables of states into the pages. The diagrams of the controller's states and of the
health of replicas are in `replication_rules.rst`. The states of groups and their answers are in
`groups.rst`, and those of transactional ids in `transactions.rst`. `make docs` runs this module; a
test compares the pages with `render()`."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final, TypeVar

from pybroker.coordinator.controller import partitions, replicas
from pybroker.coordinator.groups import states
from pybroker.coordinator.transactions import states as transaction_states
from pybroker.storage import replica_health
from pybroker.storage.replica_health import Event, Health

BEGIN: Final = ".. To change the diagrams, change LEGAL_MOVES and run ``make docs``.\n"
END: Final = ".. The diagrams end here.\n"
BEGIN_HEALTH: Final = (
    ".. To change the diagram, change LEGAL_MOVES of replica_health.py and run ``make docs``.\n"
)
END_HEALTH: Final = ".. The diagram ends here.\n"
CONTROLLER: Final = "replication_rules.rst"
HEALTH: Final = "health in replication_rules.rst"
GROUPS: Final = "groups.rst"
TRANSACTIONS: Final = "transactions.rst"
StatusT = TypeVar("StatusT", bound=enum.Enum)
RequestT = TypeVar("RequestT", bound=enum.Enum)


def targets(moves: Mapping[StatusT, frozenset[StatusT]]) -> dict[str, list[str]]:
    """Each state with its possible next states, in the order of the table."""
    return {
        source.value: [target.value for target in moves if source in moves[target]]
        for source in type(next(iter(moves)))
    }


def events(moves: Mapping[Event, Mapping[Health, Health]]) -> dict[str, list[str]]:
    """Each health with its possible next ones and their events, in the order of the table."""
    width = max(len(each.value) for each in Health)
    return {
        source.value: [
            f"{after[source].value:{width}} : {event.value}"
            for event, after in moves.items()
            if source in after
        ]
        for source in Health
    }


def answers(
    of: Mapping[StatusT, Mapping[RequestT, str]],
) -> dict[enum.Enum, Mapping[enum.Enum, str]]:
    """The same table, with keys of any enum."""
    return {
        state: {request: answer for request, answer in row.items()}  # noqa: C416
        for state, row in of.items()
    }


TABLES: Final[Mapping[str, Mapping[str, dict[str, list[str]]]]] = MappingProxyType(
    {
        CONTROLLER: {
            "A partition": targets(partitions.LEGAL_MOVES),
            "A replica of a topic that is being deleted": targets(replicas.LEGAL_MOVES),
        },
        HEALTH: {"A replica": events(replica_health.LEGAL_MOVES)},
        GROUPS: {"A group": targets(states.LEGAL_MOVES)},
        TRANSACTIONS: {"A transactional id": targets(transaction_states.LEGAL_MOVES)},
    }
)
"""Part of a page -> title -> diagram."""
ANSWERS: Final[Mapping[str, Mapping[enum.Enum, Mapping[enum.Enum, str]]]] = MappingProxyType(
    {GROUPS: answers(states.ANSWERS), TRANSACTIONS: answers(transaction_states.ANSWERS)}
)
"""Page -> state -> request -> the answer."""


def page_of(name: str) -> Path:
    return Path(__file__).parent / name.rpartition(" ")[2]


def _marks(name: str) -> tuple[str, str]:
    return (BEGIN_HEALTH, END_HEALTH) if name == HEALTH else (BEGIN, END)


def render(name: str) -> str:
    """The part of the page from the first to the last mark, inclusive."""
    diagrams = "\n".join(
        f"{title}::\n\n{_diagram(moves)}\n" for title, moves in TABLES[name].items()
    )
    listed = f"\n{_answers(ANSWERS[name])}" if name in ANSWERS else ""
    begin, end = _marks(name)
    return f"{begin}\n{diagrams}{listed}\n{end}"


def _diagram(moves: Mapping[str, list[str]]) -> str:
    width = max(map(len, moves))
    return "\n".join(
        f"    {source if place == 0 else '':{width}} {'-->' if place == 0 else '   '} {target}"
        for source, reached in moves.items()
        for place, target in enumerate(reached)
    )


def _answers(table: Mapping[enum.Enum, Mapping[enum.Enum, str]]) -> str:
    """The answers in each state."""
    lines: list[str] = []
    for state, answers in table.items():
        lines += ["", f"**{state.value}**", ""]
        lines += (f"- {asked.value}: {answer}." for asked, answer in answers.items())
    return "\n".join(lines[1:]) + "\n"


def main() -> None:
    for name in TABLES:
        text = page_of(name).read_text(encoding="utf-8")
        begin, end = _marks(name)
        before, rest = text.split(begin)
        after = rest.split(end)[1]
        page_of(name).write_text(before + render(name) + after, encoding="utf-8")


if __name__ == "__main__":
    main()
