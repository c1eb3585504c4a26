"""Tests of `get-offsets`: its patterns and its output."""

from __future__ import annotations

import pytest

from pybroker.client.errors import ResponseError
from pybroker.client.offset_lookup import OffsetAnswer
from pybroker.errors import ErrorCode
from pybroker.model import TopicPartition
from pybroker.tools._cli import Failure
from pybroker.tools.get_offsets import (
    choose,
    parse_moment,
    parse_topic_and_partitions,
    parse_topic_partitions,
    show,
)
from unit_tests.tools.test_topics import topic

ONE = (1, [1], [1])
TOPICS = [topic("a", *[ONE] * 4), topic("ab", ONE), topic("__consumer_offsets", ONE)]


def names(found: list[TopicPartition]) -> str:
    return " ".join(str(item) for item in found)


@pytest.mark.parametrize(
    ("text", "number"),
    [("latest", -1), ("-1", -1), ("earliest", -2), ("-2", -2), ("max-timestamp", -3), ("77", 77)],
)
def test_moments(text: str, number: int) -> None:
    assert parse_moment(text) == number


@pytest.mark.parametrize("text", ["soon", "-6", "", "1.5"])
def test_a_malformed_time_is_refused(text: str) -> None:
    with pytest.raises(Failure, match="Malformed time argument"):
        parse_moment(text)


@pytest.mark.parametrize(
    ("pattern", "chosen"),
    [
        ("a:1", "a-1"),
        ("a:1-3", "a-1 a-2"),
        ("a:2-", "a-2 a-3"),
        ("a:-2", "a-0 a-1"),
        ("a", "a-0 a-1 a-2 a-3"),
        ("a.:0", "ab-0"),
        (":0", "__consumer_offsets-0 a-0 ab-0"),
        ("a:3,ab", "a-3 ab-0"),
    ],
)
def test_topic_partitions(pattern: str, chosen: str) -> None:
    assert names(choose(TOPICS, parse_topic_partitions(pattern), True)) == chosen


@pytest.mark.parametrize(
    ("by_topic", "partitions", "with_internal", "chosen"),
    [
        ("a", None, True, "a-0 a-1 a-2 a-3"),
        ("a.*", "0", True, "a-0 ab-0"),
        (None, "0, 3", False, "a-0 a-3 ab-0"),
        (None, "0", True, "__consumer_offsets-0 a-0 ab-0"),
    ],
)
def test_topic_and_partitions(
    by_topic: str | None, partitions: str | None, with_internal: bool, chosen: str
) -> None:
    wanted = parse_topic_and_partitions(by_topic, partitions)
    assert names(choose(TOPICS, wanted, with_internal)) == chosen


def test_malformed_patterns_and_patterns_without_match_are_refused() -> None:
    with pytest.raises(Failure, match="Could not match any topic-partitions"):
        choose(TOPICS, parse_topic_and_partitions("nosuch", None), True)
    with pytest.raises(Failure, match="numeric partition ids"):
        parse_topic_and_partitions(None, "x")
    with pytest.raises(Failure, match="Invalid rule specification: a:b"):
        parse_topic_partitions("a:b")
    with pytest.raises(Failure, match="invalid regex"):
        parse_topic_and_partitions("(", None)


def test_lines(capsys: pytest.CaptureFixture[str]) -> None:
    gone = OffsetAnswer(-1, -1, -1, ResponseError(ErrorCode.LEADER_NOT_AVAILABLE))
    answers = {
        TopicPartition("a", 0): OffsetAnswer(7, -1, 0),
        TopicPartition("a", 1): OffsetAnswer(-1, -1, -1),
        TopicPartition("a", 2): gone,
    }
    assert show(answers, as_json=False) == 0
    written = capsys.readouterr()
    assert written.out == "a:0:7\n"
    assert "Skip getting offsets for topic-partition a-2 due to error" in written.err
    show(answers, as_json=True)
    assert capsys.readouterr().out == '{"topic": "a", "partition": 0, "offset": 7}\n'
