"""One step of a group: what is given to a decision, and what follows from it.

Decisions change the group and write down here what is to be done outside: whom to answer, what to
store. The coordinator does it when the decision is made, in this order: store, then answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from pybroker.config.broker_config import BrokerConfig
from pybroker.coordinator.groups.calls import Joined, Synced, Ticket
from pybroker.coordinator.groups.group import Group
from pybroker.coordinator.groups.member import Member
from pybroker.coordinator.groups.records import RecordedGroup


@dataclass(frozen=True, slots=True)
class StoreAssignment:
    """The leader's assignment: members are answered when it is committed."""

    record: RecordedGroup


@dataclass(frozen=True, slots=True)
class StoreReplacement:
    """A static member that came back under another id: it is answered when that is committed.
    `before` is the member as it was, `leader` the leader's id of then; `may_skip` as in `Join`."""

    record: RecordedGroup
    member_id: str
    before: Member
    leader: str
    may_skip: bool


@dataclass(frozen=True, slots=True)
class StoreEmpty:
    """The group has lost its last member. Nobody waits for that."""

    record: RecordedGroup


Store = StoreAssignment | StoreReplacement | StoreEmpty


@dataclass(slots=True)
class Effects:
    """`now` in seconds of the monotonic clock, `wall_ms` in ms since 1970. `new_id` makes an id
    from what it shall begin with."""

    now: float
    wall_ms: int
    config: BrokerConfig
    new_id: Callable[[str], str]
    answers: list[tuple[Ticket, Joined | Synced]] = field(default_factory=list)
    stores: list[Store] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What the log of the broker should say."""
    rebalances: int = 0
    """Generations that got an assignment from their leader."""
    has_new_members: bool = False
    """Somebody is gone, or has another id or another assignment: mirrors have to hear of it."""

    def answer(self, ticket: Ticket, answer: Joined | Synced) -> None:
        self.answers.append((ticket, answer))

    def note(self, group: Group, what: str, **facts: object) -> None:
        words = [f"group {what}", f"group={group.group_id}"]
        words += (f"{name}={value}" for name, value in facts.items())
        self.notes.append(" ".join(words))
