"""Tests of `transactions`: its tables, its errors, and which open transactions are hanging."""

from __future__ import annotations

import json

import pytest

from pybroker.__main__ import main
from pybroker.client.admin.partitions import ActiveProducer
from pybroker.client.admin.transactions import OpenTransaction, TransactionDescription
from pybroker.model import TopicPartition
from pybroker.tools._cli import Failure
from pybroker.tools._hanging_transactions import OpenProducer, hanging
from pybroker.tools.transactions import (
    description_row,
    hanging_row,
    named_transaction,
    producer_row,
    show,
    table,
)

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)


def opened(key: TopicPartition, producer_id: int, coordinator_epoch: int = -1) -> OpenProducer:
    return OpenProducer(key, ActiveProducer(producer_id, 3, 8, 60_000, coordinator_epoch, 40))


def test_table_has_a_tab_after_each_padded_value() -> None:
    assert table(("Id", "State"), [("longer", None), ("x", "Ongoing")]) == [
        "Id    \tState  \t",
        "longer\tNone   \t",
        "x     \tOngoing\t",
    ]
    assert table(("Id",), []) == ["Id\t"]


def test_json_has_a_document_for_each_row(capsys: pytest.CaptureFixture[str]) -> None:
    show(("TransactionalId", "Duration(min)"), [("a", None), ("b", 2)], as_json=True)
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [
        {"transactionalId": "a", "duration(min)": None},
        {"transactionalId": "b", "duration(min)": 2},
    ]


def test_description_shows_the_duration_of_a_begun_transaction() -> None:
    begun = TransactionDescription("t", 1, "Ongoing", 7, 2, 60_000, 1_000, (A0, A1))
    assert description_row(begun, 1_250) == (
        *(1, "t", 7, 2, "Ongoing", 60_000, 1_000, 250, "a-0,a-1"),
    )
    idle = TransactionDescription("t", 1, "Empty", 7, 2, 60_000)
    assert description_row(idle, 1_250) == (1, "t", 7, 2, "Empty", 60_000, None, None, "")


def test_producer_without_transaction_has_no_start_offset() -> None:
    assert producer_row(ActiveProducer(7, 2, 5, 99, -1, -1)) == (7, 2, -1, 5, 99, None)
    assert producer_row(ActiveProducer(7, 2, 5, 99, 4, 0)) == (7, 2, 4, 5, 99, 0)


def test_open_transaction_is_hanging_unless_its_coordinator_will_end_it() -> None:
    known, elsewhere = opened(A0, 1), opened(A1, 1)
    without_id, expired = opened(A1, 2), opened(A0, 3)
    names = {1: "t", 3: "gone"}
    descriptions = {"t": TransactionDescription("t", 1, "Ongoing", 1, 3, 60_000, 0, (A0,))}
    found = hanging([known, elsewhere, without_id, expired], names, descriptions)
    assert found == [expired, elsewhere, without_id]


def test_duration_of_a_hanging_transaction_is_in_whole_minutes() -> None:
    assert hanging_row(opened(A0, 1), 239_999) == ("a", 0, 1, 3, -1, 40, 60_000, 2)


def test_transaction_of_older_brokers_is_named_by_its_producer() -> None:
    assert named_transaction(A0, 7, 2, 4) == OpenTransaction(A0, 7, 2, 4)
    assert named_transaction(A0, 7, 2, -1) == OpenTransaction(A0, 7, 2, 0)
    for given, says in (
        ((None, 2, 4), "must be identified either with --start-offset"),
        ((7, None, 4), "Missing required argument --producer-epoch"),
        ((7, 2, None), "Missing required argument --coordinator-epoch"),
    ):
        with pytest.raises(Failure, match=says):
            named_transaction(A0, *given)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("list", 'Missing required argument "[bootstrap-server]"'),
        ("--bootstrap-server a:1 describe", 'Missing required argument "[transactional-id]"'),
        ("--bootstrap-server a:1 find-hanging", "requires either --topic or --broker-id"),
        (
            "--bootstrap-server a:1 find-hanging --broker-id 1 --partition 0",
            "The --partition argument requires --topic to be provided",
        ),
        ("--bootstrap-server a:1 abort --topic a", 'Missing required argument "[partition]"'),
        (
            "--bootstrap-server a:1 abort --topic a --partition 0",
            "must be identified either with --start-offset",
        ),
        ("--bootstrap-server a:1 commit", "commit"),
    ],
)
def test_wrong_usage(words: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["transactions", *words.split()]) == 1
    assert says in capsys.readouterr().err


def test_help_of_a_subcommand_needs_no_server(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["transactions", "find-hanging", "--help"]) == 0
    assert "--max-transaction-timeout" in capsys.readouterr().out
