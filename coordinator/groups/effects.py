"""The inputs and the effects of one decision about a group.

After a decision the coordinator stores the records first, and then sends the answers.
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
    """The action to store the assignment that the group's leader has sent. Members get their
    answers when the in-sync replicas have `record`."""

    record: RecordedGroup


@dataclass(frozen=True, slots=True)
class StoreReplacement:
    """The action to store the new member id of a restarted static member. The member gets its
    answer when the in-sync replicas have the record.

    `old_leader`: the member id of the group's leader before the change.
    """

    record: RecordedGroup
    member_id: str
    old_member: Member
    old_leader: str
    may_skip: bool


@dataclass(frozen=True, slots=True)
class StoreEmpty:
    """The action to store a group that has lost its last member. No request waits for the
    record."""

    record: RecordedGroup


Store = StoreAssignment | StoreReplacement | StoreEmpty


@dataclass(slots=True)
class Effects:
    """One step of a group coordinator. The inputs are `now` (seconds of the monotonic clock),
    `wall_ms` (ms since 1970), `config` and `new_id(prefix)`. The other attributes are the
    results."""

    now: float
    wall_ms: int
    config: BrokerConfig
    new_id: Callable[[str], str]
    answers: list[tuple[Ticket, Joined | Synced]] = field(default_factory=list)
    stores: list[Store] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Lines for the broker's log."""
    rebalances: int = 0
    """The number of generations that got an assignment from their leader."""
    has_new_members: bool = False
    """Whether a member is gone, or has another id or assignment. If so, the mirror in ZooKeeper has
    to be written."""

    def answer(self, ticket: Ticket, answer: Joined | Synced) -> None:
        self.answers.append((ticket, answer))

    def note(self, group: Group, what: str, **facts: object) -> None:
        words = [f"group_{what}", f"group={group.group_id}"]
        words += (f"{name}={value}" for name, value in facts.items())
        self.notes.append(" ".join(words))
