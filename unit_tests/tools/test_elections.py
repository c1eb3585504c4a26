"""Tests of `leader-election` and `preferred-replica-election`: their files, output and errors."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pybroker.__main__ import main
from pybroker.client.errors import ClientError, ResponseError
from pybroker.coordinator.zookeeper import paths, schemas
from pybroker.errors import ErrorCode
from pybroker.model import TopicPartition
from pybroker.tools import preferred_replica_election
from pybroker.tools._cli import Failure
from pybroker.tools._election_file import read_partitions
from pybroker.tools.leader_election import check, show
from pybroker.tools.preferred_replica_election import perform
from unit_tests.coordinator.controller.cluster import Cluster, key
from unit_tests.patience import in_time, until

A0, A1, B7 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 7)
STARTED = "Successfully started preferred replica election for partitions"


def test_each_election_result_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    results: dict[TopicPartition, ClientError | None] = {
        B7: None,
        A0: None,
        A1: ResponseError(ErrorCode.ELECTION_NOT_NEEDED),
        TopicPartition("c", 0): ResponseError(ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, "is dead"),
    }
    show(results, "leader election (PREFERRED)", "Valid replica")
    assert capsys.readouterr().out.splitlines() == [
        "Successfully completed leader election (PREFERRED) for partitions a-0, b-7",
        "Valid replica already elected for partitions a-1",
        "Error completing leader election (PREFERRED) for partition: c-0:"
        " PREFERRED_LEADER_NOT_AVAILABLE: is dead",
    ]
    with pytest.raises(Failure, match=r"^1 replica\(s\) could not be elected$"):
        check(results, "replica")
    check({A0: None, A1: ResponseError(ErrorCode.ELECTION_NOT_NEEDED)}, "replica")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("", "Missing required option(s): bootstrap-server, election-type"),
        ("--bootstrap-server a:1", "Missing required option(s): election-type"),
        (
            "--bootstrap-server a:1 --election-type preferred",
            "One and only one of the following options is required: topic, all-topic-partitions,"
            " path-to-json-file",
        ),
        (
            "--bootstrap-server a:1 --election-type unclean --topic a --all-topic-partitions",
            "One and only one of the following options is required",
        ),
        (
            "--bootstrap-server a:1 --election-type unclean --topic a",
            "Missing required option(s): partition",
        ),
        (
            "--bootstrap-server a:1 --election-type unclean --all-topic-partitions --partition 1",
            "Option partition is only allowed if topic is used",
        ),
        ("--bootstrap-server a:1 --election-type best --topic a --partition 1", "best"),
    ],
)
def test_wrong_usage_of_leader_election(
    words: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["leader-election", *words.split()]) == 1
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("words", ["", "--zookeeper a:1 --bootstrap-server b:2"])
def test_exactly_one_of_zookeeper_and_bootstrap_server_is_required(
    words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["preferred-replica-election", *words.split()]) == 1
    complaint = "Exactly one of '[bootstrap-server]' or '[zookeeper]' must be provided"
    assert complaint in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "Data is empty"),
        ("{", "Data is empty"),
        ("[" * 100_000, "Data is empty"),
        ("7", "Expected JSON object, received 7"),
        ("{}", "nothing"),
        ('{"partitions": 1}', "Expected JSON array, received 1"),
        ('{"partitions": [1]}', "Expected JSON object, received 1"),
        ('{"partitions": [{"topic": "a"}]}', "No such field exists: `partition`"),
        ('{"partitions": [{"partition": 0}]}', "No such field exists: `topic`"),
        ('{"partitions": [{"topic": 1, "partition": 0}]}', "Expected `String` value, received 1"),
        (
            '{"partitions": [{"topic": "a", "partition": "0"}]}',
            'Expected `Integer` value, received "0"',
        ),
        (
            json.dumps({"partitions": [{"topic": "a", "partition": n % 2} for n in range(4)]}),
            "Data contains duplicate partitions: a-0,a-1",
        ),
    ],
)
def test_malformed_election_files_are_refused(content: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "partitions.json"
    path.write_text(content)
    with pytest.raises(Failure) as refused:
        read_partitions(str(path), "Data", no_partitions="nothing")
    assert str(refused.value) == says


def test_partitions_are_read_in_the_order_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "partitions.json"
    rows = [{"topic": each.topic, "partition": each.partition} for each in (B7, A0)]
    path.write_text(json.dumps({"version": 9, "partitions": rows, "more": 1}))
    assert read_partitions(str(path), "Data", no_partitions="nothing") == [B7, A0]


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    """Start a cluster of brokers 1 and 2. Broker 2 leads both partitions of the topic orders; the
    preferred leader of orders-0 is broker 1."""
    cluster = Cluster()
    await cluster.prepare()
    for number in (1, 2):
        await cluster.member(number)
    await until(lambda: "brokers 1,2" in cluster.lines(2))
    await cluster.create("orders", {0: (1, 2), 1: (2, 1)})
    await cluster.received(2, "metadata orders-1 leader=2 epoch=0")
    for member in cluster.members:
        await member.controller.stop()
    await write_state(cluster, leader=2, isr=[2, 1])
    await cluster.member(3)
    yield cluster
    await cluster.close()


async def write_state(cluster: Cluster, **changes: object) -> None:
    path = paths.partition_state(key("orders-0"))
    await cluster.write_json(path, {**cluster.json(path), "leader_epoch": 5, **changes})


async def test_election_is_requested_through_zookeeper(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    await perform(cluster.tool, None)
    assert capsys.readouterr().out.splitlines() == [
        "Created preferred replica election path with orders-0,orders-1",
        f"{STARTED} Set(orders-0, orders-1)",
    ]
    state = cluster.state("orders-0")
    assert state is not None
    assert state.leader == 1


async def test_missing_partitions_are_skipped(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    unknown = [key("orders-7"), key("nosuch-0"), key("a/b-0"), key("-0")]
    await perform(cluster.tool, [unknown[0], key("orders-1"), *unknown[1:]])
    assert capsys.readouterr().out.splitlines() == [
        "Created preferred replica election path with orders-1",
        f"{STARTED} Set(orders-1)",
        *(
            f"Skipping preferred replica leader election for partition {each} since it doesn't"
            " exist."
            for each in unknown
        ),
    ]


@pytest.mark.parametrize(
    ("isr", "dies", "why"),
    [
        ([2], False, "is not in sync; the leader is 2"),
        ([2], True, "is not running; the leader is 2"),
    ],
)
async def test_preferred_replicas_that_do_not_lead_are_reported(
    cluster: Cluster, isr: list[int], dies: bool, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    await write_state(cluster, leader=2, isr=isr)
    if dies:
        await cluster.members[0].kill()
        await until(lambda: "brokers 2,3" in cluster.lines(2))
    with pytest.raises(Failure, match=r"^1 preferred replica\(s\) could not be elected$"):
        await perform(cluster.tool, None)
    assert capsys.readouterr().out.splitlines()[2:] == [
        f"Error completing preferred leader election for partition: orders-0: replica 1 {why}"
    ]


async def test_a_second_election_request_is_refused(cluster: Cluster) -> None:
    await cluster.members[2].controller.stop()
    pending = schemas.encode_partitions([key("orders-0"), B7])
    await cluster.tool.create(paths.PREFERRED_ELECTION, pending)
    with pytest.raises(Failure) as refused:
        await perform(cluster.tool, None)
    assert str(refused.value) == (
        "Preferred replica leader election currently in progress for orders-0,b-7. Aborting"
        " operation"
    )


async def test_missing_controller_is_reported_after_the_time_limit(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preferred_replica_election, "ELECTION_WAIT_S", 0.05)
    await cluster.members[2].controller.stop()
    with pytest.raises(Failure, match="no controller has run the election"):
        await in_time(perform(cluster.tool, [key("orders-0")]))
    assert cluster.exists(paths.PREFERRED_ELECTION)
