"""Tests that `topics` and `delete-records` have the same effect and output as Apache's tools on the
same broker.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from integration_tests.apache_tools import Tools, assert_same
from integration_tests.broker import Broker

ID = r"TopicId: [\w-]{22}"


@pytest.fixture(scope="module")
def tools(jars: str, shared_broker: Broker) -> Iterator[Tools]:
    assert jars
    with Tools(shared_broker.bootstrap) as both:
        yield both


def both_ways(tools: Tools, *words: str, names: Sequence[str], says: str = "") -> None:
    """Run a command that changes a topic by Apache's tool and by ours, each on its own topic.
    `TOPIC` in `words` is replaced by the topic's name.
    """
    theirs = tools.apache("topics", *(word.replace("TOPIC", names[0]) for word in words))
    ours = tools.ours("topics", *(word.replace("TOPIC", names[1]) for word in words))
    assert_same(theirs, ours, says=says, mask=["|".join(names), ID])


def test_a_topic_is_created_changed_and_deleted(tools: Tools, topic: str) -> None:
    names = (f"{topic}-a", f"{topic}-b")
    for words, says in (
        (["--create", "--topic", "TOPIC", "--partitions", "2", "--config", "retention.ms=7"], ""),
        (["--create", "--topic", "TOPIC"], "already exists."),
        (["--create", "--topic", "TOPIC", "--if-not-exists"], ""),
        (["--describe", "--topic", "TOPIC"], ""),
        (["--alter", "--topic", "TOPIC", "--partitions", "3"], ""),
        (["--alter", "--topic", "TOPIC", "--partitions", "3"], "Topic already has 3 partitions."),
        (
            ["--alter", "--topic", "TOPIC", "--partitions", "1"],
            "Topic currently has 3 partitions, which is higher than the requested 1.",
        ),
        (["--describe", "--topic", "TOPIC"], ""),
        (["--delete", "--topic", "TOPIC"], ""),
        (["--delete", "--topic", "TOPIC"], "does not exist as expected"),
        (["--delete", "--topic", "TOPIC", "--if-exists"], ""),
        (["--create", "--topic", "TOPIC.x_y"], ""),
        (["--create", "--topic", "TOPIC_x_y"], "collides with existing topics: "),
    ):
        both_ways(tools, *words, names=names, says=says)


def test_assignments(tools: Tools, topic: str) -> None:
    names = (f"{topic}-a", f"{topic}-b")
    described = tools.ours("topics", "--create", "--topic", f"{topic}-x")
    assert described.code == 0
    (line,) = tools.ours("topics", "--describe", "--topic", f"{topic}-x").lines[1:]
    broker = line.split("Leader: ")[1].split("\t")[0]
    for words, says in (
        (["--create", "--topic", "TOPIC", "--replica-assignment", f"{broker},{broker}"], ""),
        (
            [
                "--alter",
                "--topic",
                "TOPIC",
                "--partitions",
                "3",
                "--replica-assignment",
                f"{broker},{broker},{broker}",
            ],
            "",
        ),
        (
            [
                "--alter",
                "--topic",
                "TOPIC",
                "--partitions",
                "4",
                "--replica-assignment",
                f"{broker},{broker},{broker}",
            ],
            "Increasing the number of partitions by 1 but 0 assignments provided.",
        ),
        (
            [
                "--alter",
                "--topic",
                "TOPIC",
                "--partitions",
                "4",
                "--replica-assignment",
                f"{broker},{broker},{broker},77",
            ],
            "Unknown broker(s) in replica assignment: 77.",
        ),
        (
            ["--create", "--topic", "TOPIC-y", "--replica-assignment", "1:1"],
            "Partition replica lists may not contain duplicate entries: 1",
        ),
        (
            ["--create", "--topic", "TOPIC-y", "--replica-assignment", "1:2,1"],
            "Partition 1 has different replication factor: [1]",
        ),
        (["--describe", "--topic", "TOPIC"], ""),
    ):
        both_ways(tools, *words, names=names, says=says)


def test_lists_and_descriptions(tools: Tools, topic: str) -> None:
    for name, *words in (
        ("one", "--partitions", "3"),
        ("two", "--config", "retention.ms=7", "--config", "cleanup.policy=compact,delete"),
        ("two-more", "--config", "min.insync.replicas=2"),
    ):
        assert tools.ours("topics", "--create", "--topic", f"{topic}-{name}", *words).code == 0
    described = tools.ours("topics", "--describe", "--topic", f"{topic}-one").lines[0]
    topic_id = described.split("TopicId: ")[1][:22]
    for words in (
        ["--list"],
        ["--list", "--exclude-internal"],
        ["--list", "--topic", f"{topic}-two.*"],
        ["--list", "--topic", f"'{topic}-one, {topic}-two'"],
        ["--list", "--topic", "no.*such"],
        ["--describe"],
        ["--describe", "--topic", f"{topic}-one", "--partition-size-limit-per-response", "1"],
        ["--describe", "--topic", f"{topic}-two|{topic}-one", "--exclude-internal"],
        ["--describe", "--topic-id", topic_id],
        ["--describe", "--topic-id", topic_id, "--topic", f"{topic}-two", "--if-exists"],
        ["--describe", "--topic", "nosuch", "--if-exists"],
        ["--describe", "--topics-with-overrides"],
        ["--describe", "--under-replicated-partitions"],
        ["--describe", "--unavailable-partitions"],
        ["--describe", "--under-min-isr-partitions"],
        ["--describe", "--at-min-isr-partitions", "--topic", f"{topic}-one"],
        ["--describe", "--at-min-isr-partitions", "--under-min-isr-partitions"],
    ):
        tools.same("topics", *words, allow=["order of descriptions"])


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            "--list --create --topic a",
            "Command must include exactly one action: --list, --describe, --create, --alter or"
            " --delete",
        ),
        ("--create", 'Missing required argument "[topic]"'),
        ("--delete", 'Missing required argument "[topic]"'),
        ("--alter --topic a", 'Missing required argument "[partitions]"'),
        (
            "--alter --topic a --partitions 2 --config a=b",
            'can\'t be used with option "[alter]" (the kafka-configs CLI supports altering topic'
            " configs with a --bootstrap-server option)",
        ),
        ("--describe --if-exists", "--topic or --topic-id is required to describe a topic"),
        ("--describe --topic nosuch", "does not exist as expected"),
        (
            "--describe --topic-id AAECAwQFBgcICQoLDA0ODg",
            "TopicId 'AAECAwQFBgcICQoLDA0ODg' does not exist as expected",
        ),
        ("--list --topic (", "( is an invalid regex."),
        ("--list --partitions 3", 'Option "[partitions]" can\'t be used with option "[list]"'),
        (
            "--create --topic a --replica-assignment 1 --partitions 3",
            'Option "[replica-assignment]" can\'t be used with option "[partitions]"',
        ),
        (
            "--describe --under-min-isr-partitions --topics-with-overrides",
            'Option "[under-min-isr-partitions]" can\'t be used with option'
            ' "[topics-with-overrides]"',
        ),
        (
            "--alter --topic a --delete-config b",
            'Missing required argument "[partitions]"',
        ),
        (
            "--alter --topic a --partitions 3 --delete-config b",
            'Option "[delete-config]" can\'t be used with option "[bootstrap-server]"',
        ),
        ("--create --topic a --partitions 0", "The partitions must be greater than 0"),
        (
            "--create --topic a --replication-factor 0",
            "The replication factor must be between 1 and 32767 inclusive",
        ),
        (
            "--create --topic a --replication-factor 2",
            "larger than available brokers: 1.",
        ),
        (
            "--create --topic a --config b",
            'Invalid topic config: all configs to be added must be in the format "key=val".',
        ),
        ("--create --topic a --config b=c", "Unknown topic config name: b"),
        ("--create --topic a/b", "Topic name is invalid"),
    ],
)
def test_complaints(tools: Tools, words: str, says: str) -> None:
    tools.same("topics", *words.split(), says=says)


def offsets_file(folder: Path, *rows: tuple[str, int, int], version: int = 1) -> str:
    """Write a file for delete-records, and return its path."""
    path = folder / "offsets.json"
    content = {
        "partitions": [
            {"topic": topic, "partition": partition, "offset": offset}
            for topic, partition, offset in rows
        ],
        "version": version,
    }
    path.write_text(json.dumps(content))
    return str(path)


def test_deleting_records(tools: Tools, topic: str, tmp_path: Path) -> None:
    assert tools.ours("topics", "--create", "--topic", topic, "--partitions", "3").code == 0
    compacted = f"{topic}-compacted"
    made = tools.ours(
        *("topics", "--create", "--topic", compacted, "--config", "cleanup.policy=compact")
    )
    assert made.code == 0
    sent = tools.ours("console-producer", "--topic", topic, stdin="a\nb\nc\nd\ne\nf\ng\nh\n")
    assert sent.code == 0
    for rows in (
        [(topic, 0, 0)],
        [(topic, 0, -1), (topic, 1, -1), (topic, 2, -1)],
        [(topic, 0, 0), (topic, 1, 0)],
        [],
    ):
        words = ["--offset-json-file", offsets_file(tmp_path, *rows)]
        tools.same("delete-records", *words, allow=["order of partitions"])
    assert tools.ours("get-offsets", "--topic", topic, "--time", "earliest").lines == (
        tools.ours("get-offsets", "--topic", topic, "--time", "latest").lines
    )
    words = ["--offset-json-file", offsets_file(tmp_path, (topic, 0, 99), (compacted, 0, 0))]
    tools.same("delete-records", *words, allow=["order of partitions", "errors of partitions"])


def test_delete_records_reports_invalid_input(tools: Tools, topic: str, tmp_path: Path) -> None:
    for content, says in (
        ("", "The input string is not a valid JSON"),
        ("{}", "Missing partitions field"),
        ('{"partitions": [], "version": 2}', "Not supported version field value 2"),
        ('{"partitions": [], "version": "1"}', 'Expected `Integer` value, received "1"'),
        ('{"partitions": [1]}', "Expected JSON object, received 1"),
        ('{"partitions": [{"topic": "a"}]}', "No such field exists: `partition`"),
        (
            json.dumps({"partitions": [{"topic": "a", "partition": 0, "offset": 1}] * 2}),
            "Offset json file contains duplicate topic partitions: a-0",
        ),
    ):
        path = tmp_path / "offsets.json"
        path.write_text(content)
        tools.same("delete-records", "--offset-json-file", str(path), says=says)
    tools.same("delete-records", "--offset-json-file", str(tmp_path / "nosuch"), says="nosuch")
    tools.same("delete-records", says='Missing required argument "[offset-json-file]"')
