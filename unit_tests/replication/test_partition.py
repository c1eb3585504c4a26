"""Tests of the high watermark of a partition, and the checks of its role and leader epoch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from pybroker.errors import BrokerError, ErrorCode
from pybroker.model import PartitionFacts
from pybroker.records.batch import stamp
from pybroker.replication.leader_state import FollowerFetch
from pybroker.storage.log_config import LogConfig
from unit_tests.handlers.bench import batch
from unit_tests.replication.vocabulary import ME, T0, Replicas, facts

BOTH = (ME, 2)


@pytest.fixture
def replicas(tmp_path: Path) -> Iterator[Replicas]:
    opened = Replicas(tmp_path, LogConfig(min_insync_replicas=2))
    yield opened
    opened.logs.shutdown({})


async def test_a_leader_alone_in_the_isr_commits_at_once(replicas: Replicas) -> None:
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


async def test_the_high_watermark_waits_for_min_insync_replicas(replicas: Replicas) -> None:
    await replicas.told(facts(epoch=0, replicas=BOTH))
    replicas.append()
    assert replicas.partition().high_watermark == 0


async def test_a_new_follower_keeps_its_high_watermark(replicas: Replicas) -> None:
    await replicas.told(facts(epoch=0))
    replicas.append()
    await replicas.told(facts(epoch=1, leader=2, isr=BOTH))
    assert replicas.partition().high_watermark == 1
    with pytest.raises(BrokerError) as caught:
        replicas.manager.leader(T0)
    assert caught.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_after_a_restart_the_high_watermark_is_the_checkpoint(replicas: Replicas) -> None:
    await replicas.told(facts(epoch=0))
    replicas.append()
    replicas.logs.write_checkpoints(replicas.manager.high_watermarks())
    replicas.append()
    replicas.logs.unlock()
    replicas.open()
    await replicas.told(facts(epoch=1, leader=2, isr=BOTH))
    assert replicas.partition().high_watermark == 1
    assert replicas.partition().log.log_end_offset == 2


async def test_the_high_watermark_is_never_below_the_log_start(replicas: Replicas) -> None:
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
async def test_acks_all_requires_min_insync_replicas_at_most_the_replica_count(
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
async def test_the_leader_epoch_of_a_request_is_checked(
    replicas: Replicas, asked: int, expected: ErrorCode
) -> None:
    await replicas.told(facts(epoch=4))
    assert replicas.refusal(asked) is expected


async def test_the_epoch_is_checked_before_the_leadership(replicas: Replicas) -> None:
    await replicas.told(facts(epoch=4, leader=2, isr=BOTH))
    assert replicas.refusal(3) is ErrorCode.FENCED_LEADER_EPOCH
    assert replicas.refusal(4) is ErrorCode.NOT_LEADER_OR_FOLLOWER


# the same leader epoch again, and others


def versioned(version: int, isr: tuple[int, ...], *, leader: int = ME) -> PartitionFacts:
    return replace(facts(epoch=1, leader=leader, isr=isr, replicas=BOTH), partition_epoch=version)


@pytest.mark.parametrize(
    ("version", "believed"),
    [(4, BOTH), (5, BOTH), (6, (ME,))],
    ids=["an older version", "the same", "a later one"],
)
@pytest.mark.parametrize("leader", [ME, 2])
async def test_a_later_state_of_the_same_epoch_is_adopted(
    replicas: Replicas, version: int, believed: tuple[int, ...], leader: int
) -> None:
    await replicas.told(versioned(5, BOTH, leader=leader))
    answers = await replicas.told(versioned(version, (ME,), leader=leader))
    assert answers == [ErrorCode.NONE]
    state = replicas.partition().state
    assert state is not None
    assert state.isr == believed


async def test_a_leadership_lasts_over_epochs_until_another_replica_leads(
    replicas: Replicas,
) -> None:
    seen = []
    for epoch, leader in enumerate([ME, ME, 2, 2, ME, -1, ME, ME]):
        await replicas.told(facts(epoch=epoch, leader=leader, isr=BOTH))
        if leader == ME:
            seen.append(replicas.partition().leading_since)
    assert seen == [0, 0, 4, 6, 6]


async def test_readable_bytes_add_up_when_the_high_watermark_reaches_the_end(
    tmp_path: Path,
) -> None:
    replicas = Replicas(tmp_path)
    await replicas.told(facts(isr=BOTH))
    partition = replicas.partition()
    for _ in range(10):
        replicas.append()
    shares = [
        partition.follower_fetched(FollowerFetch(2, end, 0), float(end), 10.0)
        for end in (0, 1, 1, 4, 10)
    ]
    size = partition.log.size_bytes
    assert shares == [0, size // 10, 0, size // 10 * 3, size // 10 * 6]
    replicas.logs.shutdown({})


async def test_a_fetch_beyond_the_log_end_reports_no_progress(replicas: Replicas) -> None:
    await replicas.told(facts(isr=BOTH))
    replicas.append()
    assert replicas.partition().follower_fetched(FollowerFetch(2, 2, 0), 0.0, 10.0) == 0
    assert replicas.partition().high_watermark == 0


async def test_a_fetch_of_a_broker_without_a_replica_is_refused(replicas: Replicas) -> None:
    await replicas.told(facts(isr=BOTH))
    with pytest.raises(BrokerError) as caught:
        replicas.partition().follower_fetched(FollowerFetch(9, 0, 0), 0.0, 10.0)
    assert caught.value.code is ErrorCode.UNKNOWN_LEADER_EPOCH


async def test_each_move_of_the_high_watermark_reaches_the_checkpoint(replicas: Replicas) -> None:
    """A checkpoint reads only the high watermarks that have changed since the previous
    checkpoint."""

    def saved() -> int:
        replicas.logs.write_checkpoints(replicas.manager.high_watermarks())
        known = replicas.logs.high_watermark_checkpoint(T0)
        assert known == replicas.partition().high_watermark
        return known

    await replicas.told(facts(epoch=0))
    assert saved() == 0
    replicas.append(b"a", b"b")
    replicas.append(b"c")
    assert saved() == 3
    await replicas.told(facts(epoch=1, isr=BOTH))
    replicas.append()
    assert saved() == 3
    replicas.manager.follower_fetched(replicas.partition(), FollowerFetch(2, 4, 0), 0.0)
    assert saved() == 4
    await replicas.told(facts(epoch=2, leader=2, isr=BOTH))
    partition = replicas.partition()
    partition.truncate_to(2)
    assert saved() == 2
    partition.start_over(7)
    assert saved() == 7
    data = bytearray(batch(b"x"))
    stamp(data, 0, 7, 2)
    partition.append_replicated(
        data, leader_high_watermark=7, leader_log_start=0, now_ms=replicas.clock.wall_ms()
    )
    assert saved() == 7
    partition.append_replicated(
        b"", leader_high_watermark=8, leader_log_start=0, now_ms=replicas.clock.wall_ms()
    )
    assert saved() == 8


async def test_the_high_watermark_of_a_replica_that_returns_reaches_the_checkpoint(
    replicas: Replicas,
) -> None:
    """While the replica is not served, a checkpoint repeats the offset that the file has. The next
    checkpoint after the replica's return must have its high watermark."""
    await replicas.told(facts())
    replicas.append()
    await replicas.stopped()
    replicas.logs.write_checkpoints(replicas.manager.high_watermarks())
    assert replicas.logs.high_watermark_checkpoint(T0) == 0
    await replicas.told(facts(epoch=1))
    assert replicas.partition().high_watermark == 1
    replicas.logs.write_checkpoints(replicas.manager.high_watermarks())
    assert replicas.logs.high_watermark_checkpoint(T0) == 1
