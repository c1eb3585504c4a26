"""Tests of Kafka's own tools of three releases of the ZooKeeper era on a cluster of three brokers:
they show the same as our tools, and the brokers carry out their requests.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration_tests.apache import session_at
from integration_tests.apache_tools import OurTools, Ran, assert_same
from integration_tests.conftest import or_skip
from integration_tests.maven import OLD_KAFKA
from integration_tests.old_tools import OldTools
from pybroker.testing.cluster import Cluster
from unit_tests.patience import wait_until

pytestmark = pytest.mark.ours

ELECTIONS = ["deprecation of the old election tool", "order of elected partitions"]
OLDER = ["descriptions of older releases"]
OPTION = ["--config", "min.insync.replicas=2"]
"""A topic option with the brokers' value, so that tools that query brokers and tools that read
ZooKeeper show the same.
"""
TOOL = "preferred-replica-election"
ELECTION = "/admin/preferred_replica_election"
"""The node by which the tool requests an election."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    # A broker that stops ends its session itself, and a slow one must keep its leaderships.
    config = {"auto.leader.rebalance.enable": "false", "zookeeper.session.timeout.ms": "18000"}
    with Cluster(data=tmp_path_factory.mktemp("cluster"), config=config) as cluster:
        yield cluster


@pytest.fixture(scope="module", params=OLD_KAFKA)
def old(cluster: Cluster, request: pytest.FixtureRequest) -> OldTools:
    return or_skip(lambda: OldTools(str(request.param), cluster.zookeeper))


@pytest.fixture(scope="module")
def ours(cluster: Cluster) -> OurTools:
    return OurTools(cluster.bootstrap)


def ok(ran: Ran) -> list[str]:
    assert ran.code == 0, ran
    return ran.lines


def test_the_old_tool_creates_changes_and_deletes_a_topic(
    cluster: Cluster, old: OldTools, ours: OurTools, topic: str
) -> None:
    size = ["--partitions", "3", "--replication-factor", "3"]
    ok(old("topics", "--create", "--topic", topic, *size, *OPTION))
    cluster.wait_until_in_sync(topic)
    words = ["--describe", "--topic", topic]
    assert_same(old("topics", *words), ours("topics", *words), allow=OLDER)
    growing = old("topics", "--alter", "--topic", topic, "--partitions", "5")
    assert "Adding partitions succeeded!" in ok(growing)
    wait_until(lambda: len(ok(ours("topics", *words))) == 6, what="five partitions")
    cluster.wait_until_in_sync(topic)
    assert_same(old("topics", *words), ours("topics", *words), allow=OLDER)
    assert topic in ok(old("topics", "--list"))
    deleting = old("topics", "--delete", "--topic", topic)
    assert f"Topic {topic} is marked for deletion." in ok(deleting)
    wait_until(lambda: topic not in ok(ours("topics", "--list")), what="the deletion")
    assert topic not in ok(old("topics", "--list"))


def test_the_old_tool_shows_topics_of_our_tool(
    cluster: Cluster, old: OldTools, ours: OurTools, topic: str
) -> None:
    words = ["--create", "--topic", topic, "--replica-assignment", "1:2,3:1"]
    ok(ours("topics", *words, *OPTION))
    cluster.wait_until_in_sync(topic)
    words = ["--describe", "--topic", topic]
    shown = old("topics", *words)
    assert len(ok(shown)) == 3
    assert_same(shown, ours("topics", *words), allow=OLDER)


def displaced(cluster: Cluster, ours: OurTools, topic: str) -> None:
    """Make broker 1 the preferred replica of all three partitions of the topic, in sync, but not
    their leader.
    """
    assignment = "1:2:3,1:3:2,1:2:3"
    ok(ours("topics", "--create", "--topic", topic, "--replica-assignment", assignment))
    cluster.wait_until_in_sync(topic)
    cluster.terminate(1)
    cluster.restart(1)
    cluster.wait_until_in_sync()
    assert 1 not in leaders(cluster, topic)


def leaders(cluster: Cluster, topic: str) -> list[int]:
    states = [cluster.partition(topic, number) for number in range(3)]
    return [-1 if state is None else state.leader for state in states]


def elect(cluster: Cluster, tools: OldTools, *words: str) -> Ran:
    """Run Kafka's tool and wait for the controller, which finishes later. Until then the next
    election would be refused.
    """
    ran = tools(TOOL, *words)
    with session_at(cluster.zookeeper) as client:
        wait_until(lambda: not client.exists(ELECTION), what="the controller's answer")
    return ran


def asking(folder: Path, *partitions: tuple[str, int]) -> str:
    path = folder / "partitions.json"
    rows = [{"topic": name, "partition": number} for name, number in partitions]
    path.write_text(json.dumps({"partitions": rows}))
    return str(path)


def test_the_old_tool_elects_preferred_replicas(
    cluster: Cluster, old: OldTools, ours: OurTools, topic: str, tmp_path: Path
) -> None:
    displaced(cluster, ours, topic)
    ok(elect(cluster, old, "--path-to-json-file", asking(tmp_path, (topic, 1))))
    wait_until(lambda: leaders(cluster, topic)[1] == 1, what="the election of one")
    assert leaders(cluster, topic).count(1) == 1
    ok(elect(cluster, old))
    wait_until(lambda: leaders(cluster, topic) == [1, 1, 1], what="the election of all")
    ok(ours("topics", "--delete", "--topic", topic))


@pytest.fixture(scope="module")
def newest(cluster: Cluster) -> OldTools:
    """Return the tools of the newest release with --zookeeper."""
    return or_skip(lambda: OldTools("2.8.2", cluster.zookeeper))


def test_our_election_tool_prints_the_same(
    cluster: Cluster, newest: OldTools, ours: OurTools, topic: str, tmp_path: Path
) -> None:
    ok(ours("topics", "--create", "--topic", topic, "--partitions", "7"))
    named = asking(tmp_path, (topic, 1), (topic, 0), ("nosuch", 3), (topic, 77))
    for words in ([], ["--path-to-json-file", named]):
        theirs = elect(cluster, newest, *words)
        mine = ours(TOOL, "--zookeeper", cluster.zookeeper, *words)
        assert_same(theirs, mine, allow=ELECTIONS, in_any_order=True)
    by_broker = ["--bootstrap-server", cluster.bootstrap, "--path-to-json-file", named]
    assert_same(
        newest(TOOL, *by_broker),
        ours(TOOL, *by_broker),
        says="2 preferred replica(s) could not be elected",
        allow=[*ELECTIONS, "errors of elections", "leaders that were elected before"],
    )


def test_our_election_tool_reports_the_same_errors(
    cluster: Cluster, newest: OldTools, ours: OurTools, tmp_path: Path
) -> None:
    path = tmp_path / "partitions.json"
    for content, says in (
        ("", "Preferred replica election data is empty"),
        ("{}", "Preferred replica election data is empty"),
        ('{"partitions": 1}', "Expected JSON array, received 1"),
        ('{"partitions": [{"topic": "a"}]}', "No such field exists: `partition`"),
        (
            json.dumps({"partitions": [{"topic": "a", "partition": 0}] * 2}),
            "Preferred replica election data contains duplicate partitions: a-0",
        ),
    ):
        path.write_text(content)
        words = ["--zookeeper", cluster.zookeeper, "--path-to-json-file", str(path)]
        assert_same(newest(TOOL, *words), ours(TOOL, *words), says=says)


def test_an_election_that_did_not_happen(
    cluster: Cluster, newest: OldTools, ours: OurTools, topic: str
) -> None:
    displaced(cluster, ours, topic)
    cluster.terminate(1)
    assert elect(cluster, newest).code == 0
    mine = ours(TOOL, "--zookeeper", cluster.zookeeper)
    told = [line for line in mine.lines if line.startswith("Error completing")]
    assert len([line for line in told if f"partition: {topic}-" in line]) == 3
    assert all("replica 1 is not running" in line for line in told)
    assert mine.code == 1
    cluster.restart(1)
    cluster.wait_until_in_sync()
    assert ours(TOOL, "--zookeeper", cluster.zookeeper).code == 0
    assert leaders(cluster, topic) == [1, 1, 1]
