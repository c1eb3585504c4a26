"""Tests that Kafka's DumpLogSegments and `dump-log` print the same for the records of
__transaction_state that our broker writes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from integration_tests.conftest import BrokerMaker
from integration_tests.differences import DIFFERENCES
from integration_tests.stored import partition_folder
from integration_tests.test_dump_tool import apaches, ours
from integration_tests.wire_client import Connection, create_topic, wait_for_leader
from pybroker.coordinator.runtime.partitioning import partition_of
from pybroker.errors import ErrorCode
from pybroker.wire.messages.groups import FindCoordinatorRequest, FindCoordinatorResponse
from pybroker.wire.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from unit_tests.patience import wait_until

STATE_TOPIC = "__transaction_state"
PARTITIONS = 3
OPTIONS = {
    "transaction.state.log.num.partitions": str(PARTITIONS),
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
}
LONG = "x" * 30_000
EITHER_ORDER = "(one-0,two-1|two-1,one-0)"


@pytest.fixture(autouse=True)
def needs_jars(jars: str) -> None:
    assert jars


def find(connection: Connection, name: str) -> None:
    request = FindCoordinatorRequest(key=name, key_type=1)

    def is_found() -> bool:
        return connection.ask(3, request, FindCoordinatorResponse).error_code == 0

    wait_until(is_found, what="a coordinator")


def initialize(connection: Connection, name: str) -> tuple[int, int]:
    find(connection, name)
    given: list[tuple[int, int]] = []

    def is_initialized() -> bool:
        request = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=61_000)
        answer = connection.ask(4, request, InitProducerIdResponse)
        if answer.error_code == 0:
            given.append((answer.producer_id, answer.producer_epoch))
        else:
            assert answer.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return bool(given)

    wait_until(is_initialized, what="a producer id")
    return given[0]


def begin(connection: Connection, name: str, topics: dict[str, list[int]]) -> tuple[int, int]:
    producer_id, epoch = initialize(connection, name)
    request = AddPartitionsToTxnRequest(
        transactional_id=name,
        producer_id=producer_id,
        producer_epoch=epoch,
        topics=[AddPartitionsToTxnTopic(name=key, partitions=some) for key, some in topics.items()],
    )
    answer = connection.ask(3, request, AddPartitionsToTxnResponse)
    assert {row.error_code for topic in answer.results for row in topic.results} == {0}
    return producer_id, epoch


def dumped(data: Path, name: str) -> list[str]:
    """The states of a transactional id, as both tools print them."""
    folder = partition_folder(data, STATE_TOPIC, partition_of(name, PARTITIONS))
    files = sorted(folder.glob("*.log"))
    printed, mine = (tool(files, "--transaction-log-decoder") for tool in (apaches, ours))
    assert (printed.returncode, mine.returncode) == (0, 0), (printed.stderr, mine.stderr)
    allowed = DIFFERENCES["records of transactions"]
    assert allowed.ours(mine.stdout.splitlines()) == allowed.apache(printed.stdout.splitlines())
    lines = re.findall(
        r"key: transaction_metadata::transactionalId=(\S+) payload: (.*)", printed.stdout
    )
    return [payload for key, payload in lines if key == name]


def test_apaches_decoder_reads_our_states(new_broker: BrokerMaker) -> None:
    broker = new_broker(overrides=OPTIONS)
    broker.start()
    with Connection(broker.bootstrap) as connection:
        for topic in ("one", "two"):
            create_topic(connection, topic, partitions=2)
            wait_for_leader(connection, topic)
        idle = initialize(connection, "idle")
        again = initialize(connection, "idle")
        assert again == (idle[0], idle[1] + 1)
        opened = begin(connection, "open", {"two": [1], "one": [0]})
        long = begin(connection, LONG, {"one": [1]})
        ended = begin(connection, "ended", {"one": [0]})
        request = EndTxnRequest(
            transactional_id="ended",
            producer_id=ended[0],
            producer_epoch=ended[1],
            committed=True,
        )
        assert connection.ask(3, request, EndTxnResponse).error_code == 0
    broker.stop()

    def shown(producer: tuple[int, int], state: str, partitions: str) -> str:
        return (
            rf"producerId:{producer[0]},producerEpoch:{producer[1]},state={state},"
            rf"partitions=\[{partitions}\],txnLastUpdateTimestamp=\d+,txnTimeoutMs=61000"
        )

    for name, expected in (
        ("idle", [shown(idle, "Empty", ""), shown(again, "Empty", "")]),
        (
            "open",
            [shown(opened, "Empty", ""), shown(opened, "Ongoing", EITHER_ORDER)],
        ),
        (LONG, [shown(long, "Empty", ""), shown(long, "Ongoing", "one-1")]),
        (
            "ended",
            [
                shown(ended, "Empty", ""),
                shown(ended, "Ongoing", "one-0"),
                shown(ended, "PrepareCommit", "one-0"),
            ],
        ),
    ):
        found = dumped(broker.data, name)
        assert len(found) >= len(expected)
        for line, pattern in zip(found, expected, strict=False):
            assert re.fullmatch(pattern, line), line
