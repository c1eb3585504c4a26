"""The high watermark of a partition, and who may write to it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pybroker.errors import BrokerError, ErrorCode
from pybroker.storage.log_config import LogConfig
from unit_tests.replication.vocabulary import ME, Replicas, facts

BOTH = (ME, 2)


@pytest.fixture
def replicas(tmp_path: Path) -> Iterator[Replicas]:
    opened = Replicas(tmp_path, LogConfig(min_insync_replicas=2))
    yield opened
    opened.logs.shutdown({})


async def test_alone_in_the_isr_everything_is_committed_at_once(replicas: Replicas) -> None:
    await replicas.told(facts())
    for end in (1, 2, 3):
        replicas.append()
        assert replicas.partition().high_watermark == end


async def test_a_follower_that_has_not_reported_holds_the_high_watermark(
    tmp_path: Path,
) -> None:
    replicas = Replicas(tmp_path)
    await replicas.told(facts(epoch=0, replicas=BOTH))
    replicas.append()
    await replicas.told(facts(epoch=1, isr=BOTH))
    replicas.append()
    assert replicas.partition().high_watermark == 1
    assert replicas.partition().log.log_end_offset == 2
    await replicas.told(facts(epoch=2, replicas=BOTH))
    assert replicas.partition().high_watermark == 2
    replicas.logs.shutdown({})


async def test_too_few_in_sync_hold_the_high_watermark(replicas: Replicas) -> None:
    await replicas.told(facts(epoch=0, replicas=BOTH))
    replicas.append()
    assert replicas.partition().high_watermark == 0


async def test_a_follower_keeps_what_it_knew(replicas: Replicas) -> None:
    await replicas.told(facts(epoch=0))
    replicas.append()
    await replicas.told(facts(epoch=1, leader=2, isr=BOTH))
    assert replicas.partition().high_watermark == 1
    with pytest.raises(BrokerError) as caught:
        replicas.append()
    assert caught.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_after_a_restart_it_begins_at_the_checkpoint(replicas: Replicas) -> None:
    await replicas.told(facts(epoch=0))
    replicas.append()
    replicas.logs.write_checkpoints(replicas.manager.high_watermarks())
    replicas.append()
    replicas.logs.unlock()
    replicas.open()
    await replicas.told(facts(epoch=1, leader=2, isr=BOTH))
    assert replicas.partition().high_watermark == 1
    assert replicas.partition().log.log_end_offset == 2


async def test_it_is_never_below_the_log_start(replicas: Replicas) -> None:
    await replicas.told(facts(epoch=0))
    for _ in range(3):
        replicas.append()
    replicas.partition().log.advance_log_start(2)
    replicas.logs.shutdown({})
    replicas.open()
    await replicas.told(facts(epoch=1, leader=2, isr=BOTH))
    assert replicas.partition().high_watermark == 2


@pytest.mark.parametrize(
    ("isr", "of", "acks", "taken"),
    [
        ((ME,), BOTH, -1, False),
        ((ME,), BOTH, 1, True),
        ((ME,), BOTH, 0, True),
        (BOTH, BOTH, -1, True),
        ((ME,), (ME,), -1, True),
    ],
)
async def test_acks_all_wants_min_insync_replicas_but_never_more_than_there_are(
    replicas: Replicas, isr: tuple[int, ...], of: tuple[int, ...], acks: int, taken: bool
) -> None:
    await replicas.told(facts(isr=isr, replicas=of))
    if taken:
        assert replicas.append(acks=acks).first_offset == 0
        return
    with pytest.raises(BrokerError) as caught:
        replicas.append(acks=acks)
    assert caught.value.code is ErrorCode.NOT_ENOUGH_REPLICAS
    assert replicas.partition().log.log_end_offset == 0


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (-1, ErrorCode.NONE),
        (4, ErrorCode.NONE),
        (3, ErrorCode.FENCED_LEADER_EPOCH),
        (5, ErrorCode.UNKNOWN_LEADER_EPOCH),
    ],
)
async def test_the_epoch_that_a_client_believes_is_checked(
    replicas: Replicas, asked: int, expected: ErrorCode
) -> None:
    await replicas.told(facts(epoch=4))
    assert replicas.refusal(asked) is expected


async def test_the_epoch_is_checked_before_the_leadership(replicas: Replicas) -> None:
    await replicas.told(facts(epoch=4, leader=2, isr=BOTH))
    assert replicas.refusal(3) is ErrorCode.FENCED_LEADER_EPOCH
    assert replicas.refusal(4) is ErrorCode.NOT_LEADER_OR_FOLLOWER
