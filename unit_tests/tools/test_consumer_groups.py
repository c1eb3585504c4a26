"""Tests of `consumer-groups`: its flags, its CSV, its tables, and the new offsets of a reset."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import click
import pytest

from pybroker.client.admin.admin import Admin
from pybroker.client.admin.group_offsets import CommittedOffset, GroupOffsets
from pybroker.client.admin.groups import GroupDescription, GroupListing, GroupMember
from pybroker.client.admin.lag import PartitionLag
from pybroker.client.errors import ResponseError
from pybroker.client.metadata import Node, PartitionInfo, TopicInfo
from pybroker.client.offset_lookup import EARLIEST, LATEST, OffsetAnswer
from pybroker.errors import ErrorCode
from pybroker.model import NO_TOPIC_ID, TopicPartition
from pybroker.tools import _group_tables as tables
from pybroker.tools._cli import Failure
from pybroker.tools._group_reset import (
    Reset,
    Resetter,
    csv_text,
    parse_datetime,
    parse_duration,
    parse_plans,
    parse_topics,
)
from pybroker.wire.consumer_protocol import Assignment, encode_assignment

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("1970-01-01T00:00:00.000", 0),
        ("1970-01-01T00:00:01.250Z", 1_250),
        ("2026-02-28T12:30:00.001+01:30", 1_772_276_400_001),
        ("2026-02-28T12:30:00.001+0130", 1_772_276_400_001),
        ("1969-12-31T23:59:59.999-00", -1),
    ],
)
def test_moments(text: str, milliseconds: int) -> None:
    assert parse_datetime(text) == milliseconds


@pytest.mark.parametrize(
    "text",
    [
        "2026-01-01",
        "2026-01-01T00:00:00",
        "2026-02-30T00:00:00.000",
        "2026-01-01T24:00:00.000",
        "now T",
        "2026-01-01T00:00:00.000 ",
    ],
)
def test_a_malformed_time_is_refused(text: str) -> None:
    with pytest.raises(Failure, match=r"Error parsing timestamp|Unparseable date"):
        parse_datetime(text)


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("P1D", 86_400_000),
        ("PT1H2M3.5S", 3_723_500),
        ("P2DT3H", 183_600_000),
        ("-PT10S", -10_000),
        ("PT-10S", -10_000),
        ("PT-0.25S", -250),
        ("pt0s", 0),
        ("P-1DT1H", -82_800_000),
    ],
)
def test_durations(text: str, milliseconds: int) -> None:
    assert parse_duration(text) == milliseconds


@pytest.mark.parametrize("text", ["", "P", "PT", "1D", "P1H", "PT1D", "P1DT", "P1Y", "PT1.1H"])
def test_a_malformed_duration_is_refused(text: str) -> None:
    with pytest.raises(Failure, match="Text cannot be parsed to a Duration"):
        parse_duration(text)


def test_topics_and_partitions() -> None:
    assert parse_topics(["a", "b:1,0,1", "c:2,", "b:3"]) == {"a": None, "b": [1, 0, 1, 3], "c": [2]}
    assert parse_topics(["a:1", "a"]) == {"a": None}
    assert parse_topics(["a", "a:1"]) == {"a": None}
    for word, says in (
        ("a:1:2", "Invalid topic arg 'a:1:2', expected topic name and partitions"),
        ("a:", "Invalid topic arg 'a:', expected"),
        ("a:x", "Invalid partition 'x' specified in topic arg 'a:x''"),
        ("a:1,,2", "Invalid partition ''"),
        ("a: 1", "Invalid partition ' 1'"),
    ):
        with pytest.raises(click.UsageError) as caught:
            parse_topics([word])
        assert caught.value.message.startswith(says)


def test_csv_is_written_and_read(tmp_path: Path) -> None:
    plans = {
        "g": {A0: 5, TopicPartition("x" * 25, 3): 7},
        'odd "group", yes': {B0: 0},
    }
    text = csv_text(plans, with_group=True)
    assert text.splitlines() == [
        "g,a,0,5",
        f'g,"{"x" * 25}",3,7',
        '"odd ""group"", yes",b,0,0',
    ]
    path = tmp_path / "plan.csv"
    path.write_text(text)
    assert parse_plans(str(path), ("g", "h")) == plans
    assert parse_plans(str(path), ("g",)) == plans
    path.write_text(csv_text({"g": plans["g"]}, with_group=False))
    assert parse_plans(str(path), ("g",)) == {"g": plans["g"]}
    for groups in ((), ("g", "h")):
        with pytest.raises(Failure, match="line 1: expected group,topic,partition,offset, found"):
            parse_plans(str(path), groups)


@pytest.mark.parametrize("second", ["", "a,0", "a,x,1", "a,0,", "g,a,0,5", "a,0,1,2,3"])
def test_a_malformed_csv_line_is_refused(tmp_path: Path, second: str) -> None:
    path = tmp_path / "plan.csv"
    path.write_text(f"a,0,1\n{second}\na,1,1\n")
    with pytest.raises(Failure, match=r"plan\.csv, line 2: expected"):
        parse_plans(str(path), ("g",))


class FakeAdmin(Admin):
    """An admin client of partitions with the offsets 10 to 20. The last record has the timestamp
    1000. The committed offset of a-0 is 15, that of b-0 is 20."""

    def __init__(self) -> None:
        pass

    async def committed_offsets(
        self, groups: Mapping[str, Iterable[TopicPartition] | None], **_: Any
    ) -> dict[str, GroupOffsets]:
        offsets = {A0: CommittedOffset(15), B0: CommittedOffset(20)}
        return {group: GroupOffsets(group, offsets) for group in groups}

    async def describe_topics(self, names: Iterable[str]) -> dict[str, TopicInfo]:
        found = {}
        for name in names:
            error = ErrorCode.NONE if name in "ab" else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            parts = {
                number: PartitionInfo(
                    TopicPartition(name, number), ErrorCode.NONE, 1, 1, (1,), (1,), ()
                )
                for number in range(2 if name == "a" else 1)
            }
            found[name] = TopicInfo(name, error, NO_TOPIC_ID, False, parts)
        return found

    async def list_offsets(
        self, moments: Mapping[TopicPartition, int], **_: Any
    ) -> dict[TopicPartition, OffsetAnswer]:
        def answer(moment: int) -> OffsetAnswer:
            fixed = {EARLIEST: 10, LATEST: 20}
            offset = fixed.get(moment, 19 if moment <= 1_000 else -1)
            return OffsetAnswer(offset, -1, -1)

        return {key: answer(moment) for key, moment in moments.items()}


@pytest.mark.parametrize(
    ("reset", "plan"),
    [
        (Reset(to_earliest=True, topics=("a",)), {A0: 10, A1: 10}),
        (Reset(to_latest=True, topics=("a:1", "b")), {A1: 20, B0: 20}),
        (Reset(to_current=True, topics=("a",)), {A0: 15, A1: 20}),
        (Reset(to_current=True, all_topics=True), {A0: 15, B0: 20}),
        (Reset(to_offset=12, topics=("a",)), {A0: 12, A1: 12}),
        (Reset(to_offset=0, topics=("a:0",)), {A0: 10}),
        (Reset(shift_by=3, all_topics=True), {A0: 18, B0: 20}),
        (Reset(shift_by=-100, all_topics=True), {A0: 10, B0: 10}),
        (Reset(to_timestamp=7, all_topics=True), {A0: 19, B0: 19}),
        (Reset(to_timestamp=1_001, all_topics=True), {A0: 20, B0: 20}),
        (Reset(from_file={"g": {B0: 11, A1: 99}}), {A1: 20, B0: 11}),
        (Reset(from_file={"h": {B0: 11}}), {}),
    ],
)
async def test_plans(reset: Reset, plan: dict[TopicPartition, int]) -> None:
    found = await Resetter(FakeAdmin(), reset, 1_000).plan("g")
    assert list(found.items()) == list(plan.items())


async def test_impossible_resets_are_refused() -> None:
    for reset, says in (
        (
            Reset(to_latest=True, topics=("c",)),
            "topic c cannot be described: This broker does not host",
        ),
        (Reset(to_latest=True, topics=("a:2",)), "topic a has no partition 2; it has 2"),
    ):
        with pytest.raises(Failure, match=says):
            await Resetter(FakeAdmin(), reset, 1_000).plan("g")
    with pytest.raises(click.UsageError, match="no current committed offset"):
        await Resetter(FakeAdmin(), Reset(shift_by=1, topics=("a:1",)), 1_000).plan("g")


def member(name: str, *partitions: TopicPartition, instance: str | None = None) -> GroupMember:
    assignment = encode_assignment(Assignment(partitions))
    return GroupMember(name, instance, "client", "/127.0.0.1", b"", assignment)


def test_the_table_of_offsets() -> None:
    group = GroupDescription("g", "Stable", members=(member("m1", B0), member("m2", A1, A0)))
    lag = PartitionLag(3, 0, 8, 9, 6, 5, 60, 1.25)
    gone = PartitionLag(4, error=ResponseError(ErrorCode.LEADER_NOT_AVAILABLE))
    extra = TopicPartition("c", 0)
    rows = tables.offset_rows(
        group,
        {A0: CommittedOffset(3), extra: CommittedOffset(4)},
        {A0: lag, A1: lag, B0: lag, extra: gone},
    )
    lines = [line.split() for line in tables.offset_lines("g", rows, details=False)]
    assert lines[1:] == [
        ["g", "a", "0", "3", "9", "6", "m2", "/127.0.0.1", "client"],
        ["g", "a", "1", "-", "9", "-", "m2", "/127.0.0.1", "client"],
        ["g", "b", "0", "-", "9", "-", "m1", "/127.0.0.1", "client"],
        ["g", "c", "0", "4", "-", "-", "-", "-", "-"],
    ]
    assert tables.offset_lines("g", rows, details=True)[1].split()[5:9] == ["6", "8", "60", "1.250"]
    document = tables.offset_document(group, rows[3])
    assert document["logEndOffset"] is None and document["error"] is not None


def test_static_members_have_an_instance_column() -> None:
    group = GroupDescription("g", "Stable", members=(member("m1"), member("m2", B0, A1, A0)))
    lines = tables.member_lines(group, verbose=True, shown=True)
    assert [line.split(maxsplit=5) for line in lines] == [
        ["GROUP", "CONSUMER-ID", "HOST", "CLIENT-ID", "#PARTITIONS", "ASSIGNMENT"],
        ["g", "m1", "/127.0.0.1", "client", "0", "-"],
        ["g", "m2", "/127.0.0.1", "client", "3", "(0), (0,1)"],
    ]
    group = GroupDescription("g", "Stable", members=(member("m1", instance="i"),))
    assert "GROUP-INSTANCE-ID" in tables.member_lines(group, verbose=False, shown=True)[0]
    assert tables.active_member_lines(group) == [
        "  still in group 'g': m1 (instance i), client client, host /127.0.0.1"
    ]


def test_the_table_of_states() -> None:
    group = GroupDescription("g", "Stable", "consumer", "range", (), Node(3, "broker", 9092))
    assert tables.state_lines(group)[1].split() == [
        "g",
        "broker:9092",
        "(3)",
        "range",
        "Stable",
        "0",
    ]


def test_the_list_of_groups() -> None:
    groups = [GroupListing("g" * 20, "consumer", "Empty"), GroupListing("h", "", "")]
    lines = tables.group_list(groups, types=True, states=True)
    assert [line.split() for line in lines] == [
        ["GROUP", "TYPE", "STATE"],
        ["g" * 20, "Unknown", "Empty"],
        ["h", "Unknown", "Unknown"],
    ]
    assert lines[1].index("Unknown") == 31


@pytest.mark.parametrize(
    ("state", "says", "shown"),
    [
        ("Stable", "", True),
        ("Empty", "Consumer group 'g' has no active members.", True),
        ("CompletingRebalance", "Warning: Consumer group 'g' is rebalancing.", True),
        ("Dead", "Error: Consumer group 'g' does not exist.", False),
    ],
)
def test_each_group_state_has_its_message(
    state: str, says: str, shown: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tables.show_state(GroupDescription("g", state), 1) is shown
    told = capsys.readouterr()
    assert (told.out + told.err).strip() == says
    assert not tables.show_state(GroupDescription("g", state), 0)
