"""Tests of the truncation of a log, and of the truncated offsets that a loss receipt has to name
(docs/replication_rules.rst)."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from unit_tests.replication.copying import Group
from unit_tests.replication.test_copying import behind, failed, same
from unit_tests.replication.vocabulary import T0


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Group]:
    group = Group(tmp_path)
    yield group
    await group.close()


async def test_a_receipt_allows_and_names_the_truncation(
    pair: Group, caplog: pytest.LogCaptureFixture
) -> None:
    pair.receipts[1].last_epoch = 2
    await behind(pair)
    pair[2].append(b"another")
    await pair.until(lambda: bool(pair.receipts[1].given_up))
    await pair.copied(2)
    same(pair, 1, 2)
    assert pair.receipts[1].given_up == [(T0, 1, 2)]
    (line,) = [each.message for each in caplog.records if "loss receipt partition=" in each.message]
    assert "t-0" in line and "from=1 to=2" in line


@pytest.mark.parametrize("epoch", [1, 3])
async def test_a_receipt_of_another_election_allows_no_truncation(pair: Group, epoch: int) -> None:
    pair.receipts[1].last_epoch = epoch
    await behind(pair)
    await pair.until(lambda: failed(pair))
    assert pair.receipts[1].given_up == []


async def test_nothing_is_truncated_while_no_receipt_can_be_read(pair: Group) -> None:
    pair.receipts[1].last_epoch, pair.receipts[1].away = 2, 1
    await behind(pair)
    await pair.copied(2)
    assert pair.receipts[1].asked == 2
    assert pair.receipts[1].given_up == [(T0, 1, 2)]


async def killed_before_a_checkpoint(pair: Group, isr: tuple[int, ...] = (2,)) -> None:
    """Broker 1 has led alone and acknowledged a second record. It was killed before the checkpoint
    of its high watermark, and follows broker 2 from epoch 2 on. Broker 2 has only the first
    record."""
    await pair.lead(1, 0)
    pair[1].append(b"first")
    await pair.copied(1)
    pair.cut.add((2, 1))
    await pair.until(lambda: pair.refused(2))
    await pair.lead(1, 1, isr=(1,))
    pair[1].append(b"acknowledged")
    await pair.reopen(1, clean=False)
    await pair.lead(2, 2, isr=isr)
    assert pair[1].partition().high_watermark < 2


async def test_the_receipt_names_records_acknowledged_after_the_last_checkpoint(
    pair: Group, caplog: pytest.LogCaptureFixture
) -> None:
    pair.receipts[1].last_epoch = 2
    await killed_before_a_checkpoint(pair)
    await pair.until(lambda: pair[1].partition().log.log_end_offset == 1)
    assert pair.receipts[1].given_up == [(T0, 1, 2)]
    (line,) = [each for each in caplog.records if "loss receipt partition=" in each.message]
    assert line.levelno == logging.WARNING and "from=1 to=2 hw=0" in line.message


async def test_a_truncation_after_a_clean_election_is_no_loss(
    pair: Group, caplog: pytest.LogCaptureFixture
) -> None:
    await killed_before_a_checkpoint(pair)
    await pair.until(lambda: pair[1].partition().log.log_end_offset == 1)
    assert pair.receipts[1].asked == 1 and not pair.receipts[1].given_up
    assert not [each for each in caplog.records if "loss receipt partition=" in each.message]


async def test_an_out_of_sync_replica_truncates_nothing_while_no_receipt_can_be_read(
    pair: Group, caplog: pytest.LogCaptureFixture
) -> None:
    pair.receipts[1].last_epoch, pair.receipts[1].away = 2, 7
    ends: list[int] = []
    pair.receipts[1].on_asked = lambda: ends.append(pair[1].partition().log.log_end_offset)
    await killed_before_a_checkpoint(pair)
    await pair.until(lambda: pair[1].partition().log.log_end_offset == 1)
    assert ends == [2] * 8
    assert pair.receipts[1].given_up == [(T0, 1, 2)]
    assert not [each for each in caplog.records if each.levelno >= logging.ERROR]


async def test_an_in_sync_replica_truncates_without_zookeeper(pair: Group) -> None:
    """The leader of an in-sync replica has all committed records."""
    pair.receipts[1].away = 1_000_000
    await killed_before_a_checkpoint(pair, isr=(1, 2))
    await pair.until(lambda: pair[1].partition().log.log_end_offset == 1)
    assert pair.receipts[1].asked == 0


async def test_the_truncation_of_an_epoch_without_records_is_not_logged(
    pair: Group, caplog: pytest.LogCaptureFixture
) -> None:
    """The truncation removes only the leader epoch that the leader does not know."""
    caplog.set_level(logging.INFO)
    await pair.lead(1, 0)
    pair[1].append(b"a")
    await pair.copied(1)
    pair.cut.add((1, 2))
    await pair.lead(2, 1, isr=(1, 2))
    await pair.lead(1, 2)
    pair[1].append(b"b")
    await pair.copied(1)
    assert pair[2].epochs() == [(0, 0), (2, 1)]
    assert not [each.message for each in caplog.records if "truncated" in each.message]
