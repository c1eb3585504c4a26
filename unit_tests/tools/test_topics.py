"""Tests of `topics`: it prints the lines of Kafka's tool."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable
from typing import Any

import click
import pytest

from pybroker.client.admin.admin import Admin
from pybroker.client.admin.cluster import ClusterDescription
from pybroker.client.admin.configs import (
    ConfigDescription,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
)
from pybroker.client.admin.topics import NewPartitions, NewTopic, TopicResult
from pybroker.client.errors import ResponseError, UnsupportedByBroker
from pybroker.client.metadata import Node, PartitionInfo, TopicInfo
from pybroker.config.without_effect import sentence
from pybroker.errors import ErrorCode
from pybroker.model import NO_TOPIC_ID, TopicPartition
from pybroker.tools._cli import Failure
from pybroker.tools._topic_lines import Described, Reports
from pybroker.tools.topics import parse_args, perform

ID = uuid.UUID(bytes=bytes(range(16)))
SWITCHES = [
    "create",
    "list_",
    "alter",
    "describe",
    "delete",
    "if_exists",
    "if_not_exists",
    "exclude_internal",
    "under_replicated_partitions",
    "unavailable_partitions",
    "under_min_isr_partitions",
    "at_min_isr_partitions",
    "topics_with_overrides",
]
TEXTS = [
    "topic",
    "topic_id",
    "partitions",
    "replication_factor",
    "replica_assignment",
    "partition_size_limit_per_response",
]
WARNING_START = "WARNING: Due to limitations in metric names"


def topic(
    name: str, *partitions: tuple[int, list[int], list[int]], number_from: int = 0
) -> TopicInfo:
    """Return a topic; each partition is (leader, replicas, isr)."""
    return TopicInfo(
        name,
        ErrorCode.NONE,
        uuid.UUID(int=number_from) if number_from else ID,
        name.startswith("__"),
        {
            number: PartitionInfo(
                TopicPartition(name, number),
                ErrorCode.NONE,
                leader,
                3,
                tuple(replicas),
                tuple(isr),
                (),
            )
            for number, (leader, replicas, isr) in enumerate(partitions)
        },
    )


class FakeAdmin(Admin):
    """An admin client that stores topics and records the requests."""

    def __init__(self, *topics: TopicInfo, configs: bool = True) -> None:
        self.topics = {item.name: item for item in topics}
        self.created: list[NewTopic] = []
        self.deleted: list[str] = []
        self.grown: list[NewPartitions] = []
        self._configs = configs

    async def list_topics(self) -> list[TopicInfo]:
        return [self.topics[name] for name in sorted(self.topics)]

    async def create_topics(self, topics: Iterable[NewTopic], **_: Any) -> list[TopicResult]:
        self.created = list(topics)
        taken = ResponseError(ErrorCode.TOPIC_ALREADY_EXISTS, "Topic 'a' already exists.")
        return [
            TopicResult(item.name, taken if item.name in self.topics else None, ID)
            for item in self.created
        ]

    async def create_partitions(
        self, topics: Iterable[NewPartitions], **_: Any
    ) -> list[TopicResult]:
        self.grown = list(topics)
        return [TopicResult(item.topic, None) for item in self.grown]

    async def describe_cluster(self, **_: Any) -> ClusterDescription:
        return ClusterDescription("c", None, (Node(1, "h", 1), Node(2, "h", 2)))

    async def delete_topics(self, names: Iterable[str], **_: Any) -> list[TopicResult]:
        self.deleted = list(names)
        return [TopicResult(name, None) for name in self.deleted]

    async def describe_configs(
        self, resources: Iterable[ConfigResource], **_: Any
    ) -> dict[ConfigResource, ConfigDescription]:
        if not self._configs:
            error = UnsupportedByBroker("too old")
            return {item: ConfigDescription(item, error=error) for item in resources}
        entries = (
            ConfigEntry("retention.ms", "5", ConfigSource.DYNAMIC_TOPIC_CONFIG),
            ConfigEntry("x", "y", ConfigSource.DEFAULT_CONFIG),
        )
        return {item: ConfigDescription(item, entries) for item in resources}


def cluster(**options: bool) -> FakeAdmin:
    return FakeAdmin(
        topic("a", (1, [1, 2], [1, 2]), (-1, [2, 1], [])),
        topic("ab", (1, [1], [1]), number_from=7),
        topic("__consumer_offsets", (1, [1], [1]), number_from=8),
        **options,
    )


async def call(admin: FakeAdmin, **flags: Any) -> None:
    given = {
        **dict.fromkeys(TEXTS),
        **dict.fromkeys(SWITCHES, False),
        "bootstrap_server": "here",
        "config": (),
        "delete_config": (),
        "output_format": "text",
        **flags,
    }
    await perform(admin, parse_args(given))


async def printed(capsys: pytest.CaptureFixture[str], admin: FakeAdmin, **flags: Any) -> list[str]:
    await call(admin, **flags)
    return capsys.readouterr().out.splitlines()


ID_TEXT = "AAECAwQFBgcICQoLDA0ODw"
OTHER_ID = "AAECAwQFBgcICQoLDA0ODg"
HEADER_A = (
    "Topic: a\tTopicId: AAECAwQFBgcICQoLDA0ODw\tPartitionCount: 2\tReplicationFactor: 2\t"
    "Configs: retention.ms=5"
)
ELR = "\tElr: N/A\tLastKnownElr: N/A"
A0 = "\tTopic: a\tPartition: 0\tLeader: 1\tReplicas: 1,2\tIsr: 1,2" + ELR
A1 = "\tTopic: a\tPartition: 1\tLeader: none\tReplicas: 2,1\tIsr: " + ELR
AB0 = "\tTopic: ab\tPartition: 0\tLeader: 1\tReplicas: 1\tIsr: 1" + ELR


@pytest.mark.parametrize(
    ("flags", "lines"),
    [
        ({"create": True, "topic": "new"}, ["Created topic new."]),
        ({"create": True, "topic": "a", "if_not_exists": True}, []),
        ({"list_": True}, ["__consumer_offsets", "a", "ab"]),
        ({"list_": True, "exclude_internal": True}, ["a", "ab"]),
        ({"list_": True, "topic": "a.*"}, ["a", "ab"]),
        ({"list_": True, "topic": "ab,a"}, ["a", "ab"]),
        ({"list_": True, "topic": "nosuch"}, [""]),
        ({"alter": True, "topic": "a", "partitions": 3}, []),
        ({"alter": True, "topic": "nosuch", "partitions": 3, "if_exists": True}, []),
        ({"describe": True, "topic_id": ID_TEXT}, [HEADER_A, A0, A1]),
        (
            {"describe": True, "topic_id": "AAAAAAAAAAAAAAAAAAAAAA", "topic": "a"},
            [HEADER_A, A0, A1],
        ),
        ({"describe": True, "topic_id": OTHER_ID, "if_exists": True}, []),
        ({"describe": True, "under_min_isr_partitions": True}, [A1]),
        ({"describe": True, "at_min_isr_partitions": True, "exclude_internal": True}, [AB0]),
        (
            {"describe": True, "topic": "a", "topics_with_overrides": True},
            [HEADER_A],
        ),
        ({"describe": True, "topic": "a"}, [HEADER_A, A0, A1]),
        ({"describe": True, "topic": "nosuch", "if_exists": True}, []),
        ({"describe": True, "under_replicated_partitions": True}, [A1]),
        ({"describe": True, "unavailable_partitions": True}, [A1]),
        ({"delete": True, "topic": "a"}, []),
        ({"delete": True, "topic": "nosuch", "if_exists": True}, []),
    ],
)
async def test_output(
    capsys: pytest.CaptureFixture[str], flags: dict[str, Any], lines: list[str]
) -> None:
    assert await printed(capsys, cluster(), **flags) == lines


async def test_topic_names_with_dots_give_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    first, second = await printed(capsys, cluster(), create=True, topic="a.b")
    assert first.startswith(WARNING_START)
    assert second == "Created topic a.b."


async def test_describe_works_without_configs_and_topic_ids(
    capsys: pytest.CaptureFixture[str],
) -> None:
    admin = cluster(configs=False)
    admin.topics["ab"] = TopicInfo("ab", ErrorCode.NONE, NO_TOPIC_ID, False, {})
    lines = await printed(capsys, admin, describe=True, topic="ab")
    assert lines == ["Topic: ab\tPartitionCount: 0\tReplicationFactor: 0\tConfigs: "]


async def test_each_action_sends_its_request() -> None:
    admin = cluster()
    await call(admin, create=True, topic="n", partitions=3, replication_factor=2, config=("k=v=w",))
    assert admin.created == [NewTopic("n", 3, 2, configs={"k": "v=w"})]
    await call(admin, create=True, topic="n", replica_assignment="1:2,2:1")
    assert admin.created == [NewTopic("n", assignments={0: [1, 2], 1: [2, 1]})]
    await call(admin, alter=True, topic="a,ab", partitions=5)
    assert admin.grown == [NewPartitions("a", 5), NewPartitions("ab", 5)]
    await call(admin, alter=True, topic="a", partitions=3, replica_assignment="1:2,2:1,1:2")
    assert admin.grown == [NewPartitions("a", 3, [[1, 2]])]
    await call(admin, delete=True, topic="a|ab")
    assert admin.deleted == ["a", "ab"]


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        ({"create": True, "topic": "a"}, "Topic 'a' already exists."),
        ({"describe": True, "topic": "no"}, "Topic 'no' does not exist as expected"),
        (
            {"describe": True, "topic_id": OTHER_ID},
            f"TopicId '{OTHER_ID}' does not exist as expected",
        ),
        ({"describe": True, "topic_id": "x"}, "'x' is not a base64url UUID"),
        ({"alter": True, "topic": "no", "partitions": 1}, "Topic 'no' does not exist as expected"),
        ({"delete": True, "topic": "no"}, "Topic 'no' does not exist as expected"),
        ({"list_": True, "topic": "("}, "invalid regex"),
        ({"create": True, "topic": "n", "partitions": 0}, "partitions must be greater than 0"),
        (
            {"create": True, "topic": "n", "replication_factor": 0},
            "The replication factor must be between 1 and 32767 inclusive",
        ),
        ({"create": True, "topic": "n", "config": ("k",)}, 'in the format "key=val"'),
        (
            {"create": True, "topic": "n", "replica_assignment": "1:1"},
            "may not contain duplicate entries: 1",
        ),
        (
            {"create": True, "topic": "n", "replica_assignment": "1:2,1"},
            "Partition 1 has different replication factor",
        ),
        ({"create": True, "topic": "n", "replica_assignment": "1:x"}, "Invalid replica assignment"),
    ],
)
async def test_failures(flags: dict[str, Any], text: str) -> None:
    with pytest.raises((Failure, ResponseError)) as caught:
        await call(cluster(), **flags)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (
            {},
            "Command must include exactly one action: --list, --describe, --create, --alter or"
            " --delete",
        ),
        ({"list_": True, "create": True, "topic": "a"}, "exactly one action"),
        ({"create": True}, 'Missing required argument "[topic]"'),
        ({"list_": True, "partitions": 1}, '"[partitions]" can\'t be used with option "[list]"'),
        ({"create": True, "topic": "a", "if_exists": True}, '"[if-exists]" can\'t be used with'),
        (
            {"create": True, "topic": "a", "replica_assignment": "1", "partitions": 1},
            'Option "[replica-assignment]" can\'t be used with option "[partitions]"',
        ),
        ({"list_": True, "bootstrap_server": None}, "--bootstrap-server must be specified"),
        ({"alter": True, "partitions": 2}, 'Missing required argument "[topic]"'),
        ({"alter": True, "topic": "a"}, 'Missing required argument "[partitions]"'),
        (
            {"alter": True, "topic": "a", "partitions": 2, "config": ("a=b",)},
            'Option combination "[bootstrap-server],[config]" can\'t be used with option "[alter]"'
            " (the kafka-configs CLI supports",
        ),
        (
            {"describe": True, "delete_config": ("a",)},
            'Option "[delete-config]" can\'t be used with option "[bootstrap-server]"',
        ),
        (
            {"describe": True, "at_min_isr_partitions": True, "topics_with_overrides": True},
            '"[at-min-isr-partitions]" can\'t be used with option "[topics-with-overrides]"',
        ),
        ({"describe": True, "if_exists": True}, "--topic or --topic-id is required to describe"),
        (
            {"alter": True, "topic": "a", "partitions": 2, "replication_factor": 1},
            'Option "[replication-factor]" can\'t be used with option "[alter]"',
        ),
        ({"list_": True, "at_min_isr_partitions": True}, 'with option "[list]"'),
    ],
)
async def test_wrong_usage(flags: dict[str, Any], text: str) -> None:
    with pytest.raises(click.UsageError) as caught:
        await call(cluster(), **flags)
    assert text in caught.value.message


async def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = await printed(capsys, cluster(), describe=True, topic="a", output_format="json")
    (document,) = json.loads(line)
    assert document["configs"] == {"retention.ms": "5"}
    assert [row["leader"] for row in document["partitions"]] == [1, None]
    (line,) = await printed(capsys, cluster(), list_=True, topic="a", output_format="json")
    assert json.loads(line) == ["a"]


@pytest.mark.parametrize(
    ("flag", "shown"),
    [
        ("under_replicated_partitions", {"a": [1]}),
        ("unavailable_partitions", {"a": [1]}),
        ("under_min_isr_partitions", {"a": [1]}),
        ("at_min_isr_partitions", {"ab": [0], "__consumer_offsets": [0]}),
        ("topics_with_overrides", {"a": [], "ab": [], "__consumer_offsets": []}),
    ],
)
async def test_json_and_text_output_list_the_same_topics(
    capsys: pytest.CaptureFixture[str], flag: str, shown: dict[str, list[int]]
) -> None:
    flags = {"describe": True, flag: True}
    (line,) = await printed(capsys, cluster(), output_format="json", **flags)
    found = {
        row["topic"]: [item["partition"] for item in row["partitions"]] for row in json.loads(line)
    }
    assert found == shown
    text = "\n".join(await printed(capsys, cluster(), **flags))
    named = {name for name in ("a", "ab", "__consumer_offsets") if f"Topic: {name}\t" in text}
    assert named == set(shown)


def test_topics_with_overrides_excludes_topics_without_own_options() -> None:
    plain = Described(topic("a", (1, [1], [1])), (), {1})
    assert not plain.is_shown(Reports(overrides=True))
    assert plain.is_shown(Reports())


async def test_an_option_without_effect_is_set_with_a_warning(
    capsys: pytest.CaptureFixture[str],
) -> None:
    admin = cluster()
    config = ("message.format.version=2.8", "retention.ms=5", "preallocate=true")
    await call(admin, create=True, topic="new", config=config)
    printed = capsys.readouterr()
    assert printed.out == "Created topic new.\n"
    assert printed.err == "".join(
        f"WARN {sentence('new', option)}\n" for option in ("message.format.version", "preallocate")
    )
    assert admin.created[0].configs["preallocate"] == "true"
    with pytest.raises(ResponseError):
        await call(admin, create=True, topic="a", config=config)
    assert capsys.readouterr().err == ""
