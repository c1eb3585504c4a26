"""The output of `consumer-groups --list` and `--describe`: the tables of Kafka's tool, and the
documents of --format json."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import click

from pybroker.client.admin.group_offsets import CommittedOffset
from pybroker.client.admin.groups import GroupDescription, GroupListing, GroupMember
from pybroker.client.admin.lag import PartitionLag
from pybroker.model import TopicPartition
from pybroker.tools._cli import Failure

MISSING = "-"
UNKNOWN = "Unknown"
REBALANCING = frozenset({"PreparingRebalance", "CompletingRebalance"})
GROUP_WIDTH = 15
LIST_MARGIN = 10
TOPIC_WIDTH = 15
MEMBER_WIDTH = 15
INSTANCE_WIDTH = 17
HOST_WIDTH = 15
CLIENT_WIDTH = 15
COORDINATOR_WIDTH = 25


@dataclass(frozen=True, slots=True)
class OffsetRow:
    """One partition of a group. Without a `committed` offset, only the log offsets
    `lag.start_offset` and `lag.end_offset` of `lag` are valid. `member` is None if the partition is
    not assigned."""

    partition: TopicPartition
    committed: int | None
    lag: PartitionLag
    member: GroupMember | None = None

    @property
    def end(self) -> int | None:
        return None if self.lag.error is not None else self.lag.end_offset

    @property
    def records(self) -> int | None:
        return None if self.committed is None else self.lag.records


def offset_rows(
    group: GroupDescription,
    committed: Mapping[TopicPartition, CommittedOffset],
    lags: Mapping[TopicPartition, PartitionLag],
) -> list[OffsetRow]:
    """Return the rows of a group: the partitions of each member, beginning with the member that has
    the most, then other partitions with a committed offset. Raises MalformedInput."""
    rows = []
    read: set[TopicPartition] = set()

    def add(partitions: Iterable[TopicPartition], member: GroupMember | None) -> None:
        for key in sorted(partitions):
            offset = committed.get(key)
            rows.append(OffsetRow(key, offset.offset if offset else None, lags[key], member))

    for member in sorted(group.members, key=lambda item: -len(item.partitions())):
        read.update(member.partitions())
        add(member.partitions(), member)
    add(committed.keys() - read, None)
    return rows


def group_list(groups: Sequence[GroupListing], *, types: bool, states: bool) -> list[str]:
    """Return the lines of `consumer-groups --list`. `types` adds the column TYPE, `states` the
    column STATE."""
    width = max((GROUP_WIDTH, *(len(group.group_id) for group in groups))) + LIST_MARGIN
    titles = ["GROUP", *(["TYPE"] if types else []), *(["STATE"] if states else [])]
    rows = [
        [
            group.group_id,
            *([UNKNOWN] if types else []),
            *([group.state or UNKNOWN] if states else []),
        ]
        for group in groups
    ]
    return [
        " ".join([f"{first:<{width}}", *(f"{word:<20}" for word in rest)])
        for first, *rest in [titles, *rows]
    ]


def show_state(group: GroupDescription, rows: int) -> bool:
    """Print the message for the group's state, if any. Return whether a table follows. Raises
    Failure for an unknown state."""
    name = group.group_id
    if group.state == "Dead":
        click.echo(f"\nError: Consumer group '{name}' does not exist.")
        return False
    if group.state == "Empty":
        click.echo(f"\nConsumer group '{name}' has no active members.", err=True)
    elif group.state in REBALANCING:
        click.echo(f"\nWarning: Consumer group '{name}' is rebalancing.", err=True)
    elif group.state != "Stable":
        raise Failure(f"Expected a valid consumer group state, but found '{group.state}'.")
    return rows > 0


def offset_lines(group: str, rows: Sequence[OffsetRow], *, details: bool) -> list[str]:
    """Return the table of `consumer-groups --describe --offsets`. `details` adds columns that
    Kafka's tool does not have."""
    titles = [
        *("GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG"),
        *(("LAST-STABLE-OFFSET", "LAG-BYTES", "LAG-SECONDS") if details else ()),
        *("CONSUMER-ID", "HOST", "CLIENT-ID"),
    ]
    table = [
        [
            *(group, row.partition.topic, str(row.partition.partition)),
            *(_number(row.committed), _number(row.end), _number(row.records)),
            *(_details(row) if details else ()),
            *_member_columns(row.member),
        ]
        for row in rows
    ]
    widths = [
        _width(GROUP_WIDTH, [group] if rows else []),
        _width(TOPIC_WIDTH, [row.partition.topic for row in rows]),
        *(10, 15, 15, 15),
        *((18, 15, 15) if details else ()),
        _width(MEMBER_WIDTH, [_member_columns(row.member)[0] for row in rows]),
        _width(HOST_WIDTH, [_member_columns(row.member)[1] for row in rows]),
    ]
    return [_line(words, widths) + words[-1] for words in [titles, *table]]


def member_lines(group: GroupDescription, *, verbose: bool, shown: bool) -> list[str]:
    """Return the table of `consumer-groups --describe --members`. `verbose` adds the column
    ASSIGNMENT. `shown`: whether the group has members to show (see `show_state`). If not, the
    columns have Kafka's default widths. Raises MalformedInput."""
    members = group.members
    with_instances = shown and any(member.group_instance_id for member in members)
    measured = members if shown else ()
    titles = ["GROUP", "CONSUMER-ID", "GROUP-INSTANCE-ID", "HOST", "CLIENT-ID", "#PARTITIONS"]
    table = [
        [
            group.group_id,
            member.member_id,
            member.group_instance_id or "",
            member.client_host,
            member.client_id,
            str(len(member.partitions())),
        ]
        for member in members
    ]
    widths = [
        _width(GROUP_WIDTH, [group.group_id] if measured else []),
        _width(MEMBER_WIDTH, [member.member_id for member in measured]),
        _width(INSTANCE_WIDTH, [member.group_instance_id or "" for member in measured]),
        _width(HOST_WIDTH, [member.client_host for member in measured]),
        _width(CLIENT_WIDTH, [member.client_id for member in measured]),
        15,
    ]
    last = ["ASSIGNMENT", *map(_assignment, members)] if verbose else [""] * (len(members) + 1)
    lines = []
    for words, assignment in zip([titles, *table], last, strict=True):
        chosen = list(zip(words, widths, strict=True))
        if not with_instances:
            del chosen[2]
        lines.append(_line([word for word, _ in chosen], [size for _, size in chosen]) + assignment)
    return lines


def state_lines(group: GroupDescription) -> list[str]:
    """Return the table of `consumer-groups --describe --state`."""
    coordinator = _coordinator(group)
    widths = [_width(COORDINATOR_WIDTH, [coordinator]), 25, 20, 15]
    rows = [
        ["GROUP", "COORDINATOR (ID)", "ASSIGNMENT-STRATEGY", "STATE", "#MEMBERS"],
        [group.group_id, coordinator, group.assignor, group.state, str(len(group.members))],
    ]
    return [_line(words, widths) + words[-1] for words in rows]


def active_member_lines(group: GroupDescription) -> list[str]:
    """Return one line for each member of the group. The lines explain why the coordinator has
    refused to delete or change the group."""
    return [
        f"  still in group '{group.group_id}': {member.member_id}"
        + (f" (instance {member.group_instance_id})" if member.group_instance_id else "")
        + f", client {member.client_id}, host {member.client_host}"
        for member in group.members
    ]


# --format json


def listing_document(group: GroupListing) -> dict[str, object]:
    return {
        "group": group.group_id,
        "protocolType": group.protocol_type,
        "state": group.state or None,
    }


def offset_document(group: GroupDescription, row: OffsetRow) -> dict[str, object]:
    lag = row.lag
    known = row.committed is not None
    asked = lag.error is None
    return {
        "group": group.group_id,
        "state": group.state,
        "topic": row.partition.topic,
        "partition": row.partition.partition,
        "currentOffset": row.committed,
        "logStartOffset": lag.start_offset if asked else None,
        "logEndOffset": lag.end_offset if asked else None,
        "lastStableOffset": lag.last_stable_offset if asked else None,
        "lag": row.records,
        "stableLag": lag.stable_records if known else None,
        "lagBytes": lag.bytes if known else None,
        "lagSeconds": lag.seconds if known else None,
        "consumerId": row.member.member_id if row.member else None,
        "groupInstanceId": row.member.group_instance_id if row.member else None,
        "host": row.member.client_host if row.member else None,
        "clientId": row.member.client_id if row.member else None,
        "error": None if asked else str(lag.error),
    }


def member_document(group: GroupDescription, member: GroupMember) -> dict[str, object]:
    topics: dict[str, list[int]] = {}
    for topic, number in sorted(member.partitions()):
        topics.setdefault(topic, []).append(number)
    return {
        "group": group.group_id,
        "state": group.state,
        "consumerId": member.member_id,
        "groupInstanceId": member.group_instance_id,
        "host": member.client_host,
        "clientId": member.client_id,
        "assignment": topics,
    }


def state_document(group: GroupDescription) -> dict[str, object]:
    node = group.coordinator
    return {
        "group": group.group_id,
        "coordinator": None
        if node is None
        else {"id": node.id, "host": node.host, "port": node.port},
        "assignmentStrategy": group.assignor,
        "state": group.state,
        "members": len(group.members),
    }


def _width(least: int, texts: Iterable[str]) -> int:
    return max((least, *map(len, texts)))


def _line(words: Sequence[str], widths: Sequence[int]) -> str:
    """Return the words as one line, each padded to its width and followed by a space. Words beyond
    the last width are left out."""
    return "".join(f"{word:<{width}} " for word, width in zip(words, widths, strict=False))


def _number(value: int | float | None) -> str:
    return MISSING if value is None else str(value)


def _details(row: OffsetRow) -> tuple[str, str, str]:
    known = row.committed is not None
    seconds = row.lag.seconds if known else None
    return (
        _number(row.lag.last_stable_offset if row.end is not None else None),
        _number(row.lag.bytes if known else None),
        MISSING if seconds is None else f"{seconds:.3f}",
    )


def _member_columns(member: GroupMember | None) -> tuple[str, str, str]:
    if member is None:
        return (MISSING, MISSING, MISSING)
    return (member.member_id, member.client_host, member.client_id)


def _coordinator(group: GroupDescription) -> str:
    node = group.coordinator
    return MISSING if node is None else f"{node.host}:{node.port}  ({node.id})"


def _assignment(member: GroupMember) -> str:
    topics: dict[str, list[str]] = {}
    for topic, number in member.partitions():
        topics.setdefault(topic, []).append(str(number))
    lists = sorted(f"({','.join(sorted(numbers))})" for numbers in topics.values())
    return ", ".join(lists) or MISSING
