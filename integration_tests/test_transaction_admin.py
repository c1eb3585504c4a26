"""Tests that `transactions` and Apache's kafka-transactions print the same on the same broker,
and both abort hanging transactions there."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from integration_tests.apache_tools import Tools, assert_same
from integration_tests.broker import Broker
from integration_tests.ranges import make_topic
from integration_tests.test_transaction_log import begin, initialize
from integration_tests.transactions import UNVERIFIED, Transactions
from integration_tests.wire_client import Connection
from pybroker.client.admin.admin import Admin
from pybroker.client.admin.transactions import FencedProducer
from pybroker.errors import ErrorCode
from pybroker.wire.messages.transactions import EndTxnRequest, EndTxnResponse

BROKER_OVERRIDES = {
    **UNVERIFIED,
    "transaction.state.log.num.partitions": "3",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
}
ORDER = "order of transactions"
REASONS = "reasons of failures"
DURATION = r"(?<=\t)\d+ *(?=\t[a-z])"


@pytest.fixture(scope="module")
def tools(jars: str, shared_broker: Broker) -> Iterator[Tools]:
    assert jars
    with Tools(shared_broker.bootstrap) as both:
        yield both


def test_transactions_are_listed_and_described(tools: Tools, broker: Broker, topic: str) -> None:
    make_topic(broker.bootstrap, topic, 2)
    with Connection(broker.bootstrap) as connection:
        idle, opened = f"{topic}-idle", f"{topic}-open"
        initialize(connection, idle)
        producer = begin(connection, opened, {topic: [1, 0]})
    listed = tools.same("transactions", "list", allow=[ORDER])
    (row,) = [line.split() for line in listed.lines if line.startswith(opened)]
    assert row[2:] == [str(producer[0]), "Ongoing"]
    hour = ("list", "--duration-filter", "3600000")
    names = {line.split()[0] for line in tools.same("transactions", *hour, allow=[ORDER]).lines}
    assert idle in names and opened not in names
    tools.same("transactions", "describe", "--transactional-id", idle)
    described = tools.same(
        *("transactions", "describe", "--transactional-id", opened),
        mask=[DURATION, f"{topic}-[01],{topic}-[01]"],
    )
    assert described.lines[1].split()[3:5] == [str(producer[1]), "Ongoing"]
    tools.same(
        *("transactions", "describe", "--transactional-id", "absent"),
        says="Failed to describe transaction state of transactional-id `absent`: ",
        allow=[REASONS],
    )


def open_one(broker: Broker, topic: str, producer: int) -> Transactions:
    """Write records of a transaction that no coordinator knows."""
    writes = Transactions(topic)
    with Connection(broker.bootstrap) as connection:
        writes.put(connection, 0, b"plain")
        writes.put(connection, producer, b"hanging")
    return writes


def abort_arguments(form: str, producer: int) -> list[str]:
    if form == "start offset":
        return ["--start-offset", "1"]
    producer_id = ["--producer-id", str(producer)]
    return [*producer_id, "--producer-epoch", "0", "--coordinator-epoch", "-1"]


def test_fenced_producer_cannot_commit(broker: Broker, topic: str) -> None:
    make_topic(broker.bootstrap, topic, 1)

    async def fence() -> FencedProducer:
        async with Admin(broker.bootstrap) as admin:
            found = (await admin.fence_producers([topic]))[topic].check()
            described = (await admin.describe_transactions([topic]))[topic].check()
            assert (described.state, described.partitions) == ("Empty", ())
            return found

    with Connection(broker.bootstrap) as connection:
        producer_id, epoch = begin(connection, topic, {topic: [0]})
        fenced = asyncio.run(fence())
        assert fenced.producer_id == producer_id and fenced.producer_epoch > epoch
        request = EndTxnRequest(
            transactional_id=topic,
            producer_id=producer_id,
            producer_epoch=epoch,
            committed=True,
        )
        answer = connection.ask(3, request, EndTxnResponse)
    assert answer.error_code == ErrorCode.PRODUCER_FENCED


@pytest.mark.parametrize("form", ["start offset", "producer"])
def test_hanging_transaction_is_found_and_aborted(
    tools: Tools, broker: Broker, topic: str, form: str
) -> None:
    numbers = {"a": 70_001, "b": 70_002}
    for suffix, producer in numbers.items():
        make_topic(broker.bootstrap, f"{topic}-{suffix}", 1)
        open_one(broker, f"{topic}-{suffix}", producer)
    for suffix, producer in numbers.items():
        name = f"{topic}-{suffix}"
        where = ("--topic", name, "--partition", "0")
        shown = tools.same("transactions", "describe-producers", *where)
        row = shown.lines[1].split()
        assert (row[0], row[1], row[2], row[-1]) == (str(producer), "0", "-1", "1")
        for scope in (where, where[:2]):
            found = tools.same(
                *("transactions", "find-hanging", "--max-transaction-timeout", "0", *scope),
                mask=[r"\d+ *\t$"],
            )
            assert [line.split()[:3] for line in found.lines[1:]] == [[name, "0", str(producer)]]
    commands = [
        [
            *("transactions", "abort", "--topic", f"{topic}-{suffix}", "--partition", "0"),
            *abort_arguments(form, producer),
        ]
        for suffix, producer in numbers.items()
    ]
    assert_same(tools.apache(*commands[0]), tools.ours(*commands[1]))
    for suffix in numbers:
        where = ("--topic", f"{topic}-{suffix}", "--partition", "0")
        shown = tools.same("transactions", "describe-producers", *where)
        assert shown.lines[1].split()[-1] == "None"
        found = tools.same("transactions", "find-hanging", *where)
        assert len(found.lines) == 1
    says = f"Could not find any open transactions starting at offset 1 on partition {topic}-a-0"
    tools.same("transactions", "abort", "--topic", f"{topic}-a", "--partition", "0",
               "--start-offset", "1", says=says)  # fmt: skip


def test_coordinators_open_transaction_is_not_hanging(
    tools: Tools, broker: Broker, topic: str
) -> None:
    make_topic(broker.bootstrap, topic, 1)
    with Connection(broker.bootstrap) as connection:
        producer = begin(connection, topic, {topic: [0]})
        writes = Transactions(topic)
        writes.put(connection, producer[0], b"open")
    where = ("--topic", topic, "--partition", "0")
    assert tools.ours("transactions", "describe-producers", *where).lines[1].split()[-1] == "0"
    found = tools.same("transactions", "find-hanging", "--max-transaction-timeout", "0", *where)
    assert len(found.lines) == 1
    on_broker = ("find-hanging", "--max-transaction-timeout", "0", "--broker-id")
    node = tools.ours("transactions", "list").lines[1].split("\t")[1].strip()
    shown = tools.same("transactions", *on_broker, node, allow=[ORDER], mask=[r"\d+ *\t$"])
    assert not [line for line in shown.lines if line.startswith(f"{topic} ")]


def test_abort_by_a_fenced_producer_epoch_fails(tools: Tools, broker: Broker, topic: str) -> None:
    make_topic(broker.bootstrap, topic, 1)
    writes = open_one(broker, topic, 70_005)
    with Connection(broker.bootstrap) as connection:
        assert writes.try_to_end(connection, 70_005, commit=True) is ErrorCode.NONE
    says = (
        f"Failed to abort transaction AbortTransactionSpec(topicPartition={topic}-0,"
        " producerId=70005, producerEpoch=-1, coordinatorEpoch=0): "
    )
    tools.same(
        *("transactions", "abort", "--topic", topic, "--partition", "0"),
        *("--producer-id", "70005", "--producer-epoch", "-1", "--coordinator-epoch", "0"),
        says=says,
        allow=[REASONS],
    )


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("find-hanging", "The `find-hanging` command requires either --topic or --broker-id"),
        (
            "find-hanging --broker-id 1 --partition 0",
            "The --partition argument requires --topic to be provided",
        ),
        (
            "abort --topic a --partition 0",
            "The transaction to abort must be identified either with --start-offset (for brokers"
            " on 3.0 or above) or with --producer-id, --producer-epoch, and --coordinator-epoch"
            " (for older brokers)",
        ),
        (
            "abort --topic a --partition 0 --producer-id 1",
            "Missing required argument --producer-epoch",
        ),
        (
            "abort --topic a --partition 0 --producer-id 1 --producer-epoch 0",
            "Missing required argument --coordinator-epoch",
        ),
        ("describe", "transactional-id"),
    ],
)
def test_wrong_usage(tools: Tools, words: str, says: str) -> None:
    tools.same("transactions", *words.split(), says=says)
