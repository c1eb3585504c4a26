"""The effects of a decision: the inputs of one step of a group, and the actions that follow.

A decision changes the group and collects here the actions outside it: answers, records to store,
log lines. The coordinator carries them out after the decision, in this order: store, then answer.
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
    """The leader's assignment. Members are answered when it is committed."""

    record: RecordedGroup


@dataclass(frozen=True, slots=True)
class StoreReplacement:
    """A static member that returned under a new member id. It is answered when that is committed.
    `before` is the member before the change, `leader` the leader's id before it; `may_skip` as in
    `Join`."""

    record: RecordedGroup
    member_id: str
    before: Member
    leader: str
    may_skip: bool


@dataclass(frozen=True, slots=True)
class StoreEmpty:
    """The group without members, after it has lost its last one. No request waits for this."""

    record: RecordedGroup


Store = StoreAssignment | StoreReplacement | StoreEmpty


@dataclass(slots=True)
class Effects:
    """The inputs and the effects of one step. `now` in seconds of the monotonic clock, `wall_ms` in
    ms since 1970. `new_id` makes a member id from its prefix."""

    now: float
    wall_ms: int
    config: BrokerConfig
    new_id: Callable[[str], str]
    answers: list[tuple[Ticket, Joined | Synced]] = field(default_factory=list)
    stores: list[Store] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Lines for the broker's log."""
    rebalances: int = 0
    """Generations that got an assignment from their leader."""
    has_new_members: bool = False
    """A member is gone, or has another id or another assignment: the mirror in ZooKeeper has to
    follow."""

    def answer(self, ticket: Ticket, answer: Joined | Synced) -> None:
        self.answers.append((ticket, answer))

    def note(self, group: Group, what: str, **facts: object) -> None:
        words = [f"group_{what}", f"group={group.group_id}"]
        words += (f"{name}={value}" for name, value in facts.items())
        self.notes.append(" ".join(words))
