"""Tests of fetches of followers: the readable range, the noted offsets, and the waits."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from pybroker.clock import SystemClock
from pybroker.errors import ErrorCode
from pybroker.model import (
    Endpoint,
    LeaderAndIsr,
    PartitionFacts,
    PartitionState,
    TopicPartition,
)
from pybroker.replication.leader_state import FollowerFetch
from pybroker.replication.partition import Partition
from pybroker.wire.api import ApiKey
from pybroker.wire.messages.fetch import (
    FetchRequest,
    FetchResponse,
    ForgottenTopic,
    PartitionData,
)
from unit_tests.handlers.bench import (
    BROKER_ID,
    Bench,
    batch,
    code,
    fetch_request,
    the_only,
    values_of,
)
from unit_tests.patience import in_time

FOLLOWER = 2
EPOCH = 1
A_MINUTE_MS = 60_000
VERSIONS_WITH_EPOCHS = range(9, 13)
T0 = TopicPartition("t", 0)


@pytest.fixture(autouse=True)
async def leader(bench: Bench) -> None:
    """A broker that leads t-0 with a follower in the ISR, and t-1 alone."""
    await bench.create("t", 2)
    await lead(bench)


async def lead(
    bench: Bench, epoch: int = EPOCH, *, key: TopicPartition = T0, leader: int = BROKER_ID
) -> None:
    facts = PartitionFacts(
        key,
        bench.app.metadata.topics["t"].topic_id,
        PartitionState(leader, epoch, (BROKER_ID, FOLLOWER), 1),
        epoch,
        (BROKER_ID, FOLLOWER),
    )
    command = LeaderAndIsr(BROKER_ID, bench.app.controller.epoch, -1, (facts,))
    assert await bench.app.replicas.leader_and_isr(command) == {key: ErrorCode.NONE}


def following(offset: int, **options: Any) -> FetchRequest:
    options.setdefault("current_leader_epoch", EPOCH)
    options.setdefault("replica_id", FOLLOWER)
    options.setdefault("log_start_offset", 0)
    return fetch_request(("t", 0, offset), **options)


async def follow(bench: Bench, offset: int, *, version: int = 12, **options: Any) -> PartitionData:
    """Fetch t-0 as the follower; return the answer of the partition."""
    answer: FetchResponse = await bench.ask(ApiKey.FETCH, version, following(offset, **options))
    assert code(answer) is ErrorCode.NONE
    return the_only(the_only(answer.responses).partitions)


def partition(bench: Bench) -> Partition:
    return bench.app.replicas.partition(T0)


@pytest.fixture
def noted(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> list[FollowerFetch]:
    """Return the fetches of followers that the leader has noted."""
    found: list[FollowerFetch] = []
    note = bench.app.replicas.follower_fetched

    def noting(partition: Partition, fetch: FollowerFetch, now: float) -> None:
        found.append(fetch)
        note(partition, fetch, now)

    monkeypatch.setattr(bench.app.replicas, "follower_fetched", noting)
    return found


@pytest.mark.parametrize("version", VERSIONS_WITH_EPOCHS)
async def test_a_follower_reads_up_to_the_log_end_and_a_consumer_does_not(
    bench: Bench, version: int
) -> None:
    await bench.produce("t", batch(b"a"), acks=1)
    answer = await follow(bench, 0, version=version)
    assert values_of(answer) == [b"a"]
    assert (answer.high_watermark, answer.last_stable_offset, answer.log_start_offset) == (0, 0, 0)
    assert values_of(await bench.fetch("t", 0)) == []


@pytest.mark.parametrize("replica_id", [-2, -3, -(2**31)])
async def test_every_negative_replica_id_reads_as_a_consumer(bench: Bench, replica_id: int) -> None:
    await bench.produce("t", batch(b"a"), acks=1)
    assert values_of(await follow(bench, 0, replica_id=replica_id)) == []


async def test_a_follower_fetch_moves_the_high_watermark_in_its_answer(bench: Bench) -> None:
    await bench.produce("t", batch(b"a"), acks=1)
    await bench.produce("t", batch(b"b"), acks=1)
    answer = await follow(bench, 1)
    assert values_of(answer) == [b"b"]
    assert answer.high_watermark == partition(bench).high_watermark == 1


async def test_incarnation_and_log_start_are_noted(
    bench: Bench, noted: list[FollowerFetch]
) -> None:
    await follow(bench, 0, incarnation=7)
    assert noted == [FollowerFetch(FOLLOWER, 0, 0, 7)]
    await follow(bench, 0, version=9)
    assert noted[1:] == [FollowerFetch(FOLLOWER, 0, 0, -1)]


async def test_a_follower_is_noted_before_its_fetch_waits_and_only_then(
    bench: Bench, noted: list[FollowerFetch]
) -> None:
    produced = asyncio.ensure_future(bench.produce("t", batch(b"a")))
    await bench.waits(bench.app.replicas.produces, produced)
    task = asyncio.ensure_future(bench.ask(ApiKey.FETCH, 12, following(1, max_wait_ms=A_MINUTE_MS)))
    assert (await in_time(produced)).error_code == 0
    await bench.waits(bench.app.replicas.replica_fetches, task)
    assert not task.done()
    await bench.produce("t", batch(b"b"), acks=1)
    answer: FetchResponse = await in_time(task)
    assert values_of(the_only(the_only(answer.responses).partitions)) == [b"b"]
    assert [fetch.fetch_offset for fetch in noted] == [1]
    assert len(bench.app.replicas.replica_fetches) == 0


async def test_an_uncommitted_batch_wakes_a_follower_and_no_consumer(bench: Bench) -> None:
    follower = asyncio.ensure_future(
        bench.ask(ApiKey.FETCH, 12, following(0, max_wait_ms=A_MINUTE_MS))
    )
    consumer = asyncio.ensure_future(
        bench.ask(ApiKey.FETCH, 12, fetch_request(("t", 0, 0), max_wait_ms=A_MINUTE_MS))
    )
    await bench.waits(bench.app.replicas.replica_fetches, follower)
    await bench.waits(bench.app.replicas.fetches, consumer)
    await bench.produce("t", batch(b"a"), acks=1)
    await in_time(follower)
    assert not consumer.done()
    await follow(bench, 1)
    answer: FetchResponse = await in_time(consumer)
    assert values_of(the_only(the_only(answer.responses).partitions)) == [b"a"]


async def test_a_leader_that_is_deposed_wakes_followers(bench: Bench) -> None:
    task = asyncio.ensure_future(bench.ask(ApiKey.FETCH, 12, following(0, max_wait_ms=A_MINUTE_MS)))
    await bench.waits(bench.app.replicas.replica_fetches, task)
    await lead(bench, EPOCH + 1, leader=FOLLOWER)
    answer: FetchResponse = await in_time(task)
    part = the_only(the_only(answer.responses).partitions)
    assert code(part) is ErrorCode.FENCED_LEADER_EPOCH


@pytest.mark.parametrize(
    ("epoch", "expected"),
    [
        (EPOCH - 1, ErrorCode.FENCED_LEADER_EPOCH),
        (EPOCH + 1, ErrorCode.UNKNOWN_LEADER_EPOCH),
        (-1, ErrorCode.NOT_LEADER_OR_FOLLOWER),
    ],
)
async def test_a_follower_of_another_epoch_or_of_none_does_not_count(
    bench: Bench, noted: list[FollowerFetch], epoch: int, expected: ErrorCode
) -> None:
    await bench.produce("t", batch(b"a"), acks=1)
    answer = await follow(bench, 1, current_leader_epoch=epoch)
    assert code(answer) is expected
    assert noted == [] and partition(bench).high_watermark == 0


async def test_fetch_versions_without_epochs_are_rejected_for_followers(
    bench: Bench, noted: list[FollowerFetch]
) -> None:
    for version in range(4, 9):
        request = following(0, current_leader_epoch=-1)
        answer: FetchResponse = await bench.ask(ApiKey.FETCH, version, request)
        part = the_only(the_only(answer.responses).partitions)
        assert code(part) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert noted == []


async def test_a_follower_fetch_at_a_follower_is_rejected(bench: Bench) -> None:
    await lead(bench, EPOCH + 1, leader=FOLLOWER)
    answer = await follow(bench, 0, current_leader_epoch=EPOCH + 1)
    assert code(answer) is ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_a_broker_that_holds_no_replica_is_75(bench: Bench) -> None:
    answer = await follow(bench, 0, replica_id=9)
    assert code(answer) is ErrorCode.UNKNOWN_LEADER_EPOCH
    assert partition(bench).high_watermark == 0


@pytest.mark.parametrize("offset", [-1, 2, 2**62])
async def test_out_of_range_does_not_count(
    bench: Bench, noted: list[FollowerFetch], offset: int
) -> None:
    await bench.produce("t", batch(b"a"), acks=1)
    assert code(await follow(bench, offset)) is ErrorCode.OFFSET_OUT_OF_RANGE
    assert noted == [] and partition(bench).high_watermark == 0


async def test_a_diverging_follower_gets_the_diverging_epoch_and_is_not_noted(
    bench: Bench, noted: list[FollowerFetch]
) -> None:
    await bench.produce("t", batch(b"a"), acks=1)
    await lead(bench, 4)
    await bench.produce("t", batch(b"b"), acks=1)
    for epoch in (1, 3):  # this leader's log has no epoch 3
        answer = await follow(bench, 2, current_leader_epoch=4, last_fetched_epoch=epoch)
        assert answer.diverging_epoch is not None
        assert (answer.diverging_epoch.epoch, answer.diverging_epoch.end_offset) == (1, 1)
        assert values_of(answer) == []
    assert noted == []
    same = await follow(bench, 1, current_leader_epoch=4, last_fetched_epoch=1)
    assert same.diverging_epoch is None and values_of(same) == [b"b"]
    assert [fetch.fetch_offset for fetch in noted] == [1]


async def test_a_fetch_below_the_log_start_is_out_of_range_in_every_epoch(bench: Bench) -> None:
    await bench.produce("t", batch(b"a"), acks=1)
    await bench.produce("t", batch(b"b"), acks=1)
    await follow(bench, 2)
    await lead(bench, 4)
    partition(bench).log.advance_log_start(2)
    answer = await follow(bench, 1, current_leader_epoch=4, last_fetched_epoch=3)
    assert code(answer) is ErrorCode.OFFSET_OUT_OF_RANGE


async def test_an_uncached_read_leaves_the_loop_but_the_follower_is_noted_on_it(
    bench: Bench, noted: list[FollowerFetch], monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.produce("t", batch(b"a"), acks=1)
    log = partition(bench).log
    read = log.read

    def uncached(*args: Any, cached_only: bool, **options: Any) -> Any:
        return None if cached_only else read(*args, cached_only=False, **options)

    monkeypatch.setattr(log, "read", uncached)
    assert values_of(await follow(bench, 0)) == [b"a"]
    assert "_read_next" in bench.blocking.done
    assert [fetch.fetch_offset for fetch in noted] == [0]


async def test_fetch_max_bytes_does_not_limit_followers(tmp_path: Path) -> None:
    async with Bench(tmp_path / "own", properties={"fetch.max.bytes": "1024"}) as bench:
        await bench.create("t", 2)
        await lead(bench)
        for _ in range(3):
            await bench.produce("t", batch(b"v" * 600), acks=1)
        assert len(values_of(await follow(bench, 0))) == 3


async def test_followers_are_accepted_on_the_inter_broker_listener_only(
    tmp_path: Path,
) -> None:
    own = {
        "listeners": "INSIDE://:9092,PLAINTEXT://:9093",
        "listener.security.protocol.map": "INSIDE:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        "inter.broker.listener.name": "INSIDE",
    }
    endpoints = (
        Endpoint("INSIDE", "broker.example", 9092),
        Endpoint("PLAINTEXT", "broker.example", 9093),
    )
    async with Bench(tmp_path / "two", properties=own, endpoints=endpoints) as bench:
        await bench.create("t", 2)
        await lead(bench)
        await bench.produce("t", batch(b"a"), acks=1)
        refused: FetchResponse = await bench.ask(ApiKey.FETCH, 12, following(1))
        assert code(refused) is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        assert refused.responses == [] and partition(bench).high_watermark == 0
        taken: FetchResponse = await bench.ask(ApiKey.FETCH, 12, following(1), listener="INSIDE")
        assert code(taken) is ErrorCode.NONE and partition(bench).high_watermark == 1


class MovableClock(SystemClock):
    """The system clock, moved ahead by `later_s`."""

    later_s = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.later_s


async def test_a_caught_up_follower_is_noted_once_in_a_session(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted: list[int] = []
    monkeypatch.setattr(
        bench.app.replicas,
        "follower_fetched",
        lambda _, fetch, now: noted.append(fetch.fetch_offset),
    )
    answer = await bench.ask(ApiKey.FETCH, 12, following(0, session=(0, 0)))
    epoch = 0

    async def again(*wanted: tuple[str, int, int]) -> list[int]:
        nonlocal epoch
        epoch += 1
        request = fetch_request(
            *wanted,
            session=(answer.session_id, epoch),
            replica_id=FOLLOWER,
            current_leader_epoch=EPOCH,
        )
        result: FetchResponse = await bench.ask(ApiKey.FETCH, 12, request)
        assert code(result) is ErrorCode.NONE
        found, noted[:] = list(noted), []
        return found

    assert await again() == [0, 0], "the full request and the first of the session"
    assert await again() == []
    assert await again(("t", 0, 0)) == [0], "the follower asked anew"
    assert await again() == []
    await bench.produce("t", batch(b"a"), acks=1)
    assert await again() == [0] and await again() == [0], "it lacks records: noted always"
    assert await again(("t", 0, 1)) == [1]
    assert await again() == []
    monkeypatch.setattr(partition(bench), "is_in_isr", lambda replica_id: False)
    partition(bench).changed()
    assert await again() == [1] and await again() == [1], "out of sync: noted always"


async def test_each_request_of_a_session_proves_that_an_idle_follower_follows(
    tmp_path: Path,
) -> None:
    """A request counts from its arrival, even while it waits. It proves that the follower had every
    record at the time of its previous request. The proof ends with the first record that the
    follower lacks."""
    clock = MovableClock()
    async with Bench(tmp_path / "own", clock=clock) as bench:
        await bench.create("t", 2)
        await lead(bench)
        answer = await bench.ask(ApiKey.FETCH, 12, following(0, session=(0, 0)))
        state = partition(bench)._leader
        assert state is not None
        follower = state.followers[FOLLOWER]
        begun: list[float] = []

        async def request() -> None:
            begun.append(clock.monotonic())
            message = fetch_request(
                session=(answer.session_id, len(begun)),
                replica_id=FOLLOWER,
                current_leader_epoch=EPOCH,
                max_wait_ms=20,
            )
            waiting = asyncio.ensure_future(bench.ask(ApiKey.FETCH, 12, message))
            await bench.waits(bench.app.replicas.replica_fetches, waiting)
            clock.later_s += 1.1
            await waiting

        await request()
        for _ in range(4):
            await request()
            assert begun[-2] <= follower.followed_s < begun[-1]
        await bench.produce("t", batch(b"a"), acks=1)
        assert begun[-1] <= follower.caught_up_s < clock.monotonic()
        await request()
        assert begun[-2] <= follower.caught_up_s < begun[-1]
        assert begun[-2] <= follower.followed_s < begun[-1]


async def test_requests_of_a_session_do_not_count_for_a_partition_that_it_forgot(
    bench: Bench,
) -> None:
    """A follower that gets another leader for a partition removes the partition from its session
    with the old leader. The old leader must not count further requests of the session as fetches of
    this partition: it would wrongly be sure that it still leads."""
    answer = await bench.ask(
        ApiKey.FETCH, 12, fetch_request(
            ("t", 0, 0), ("t", 1, 0),
            session=(0, 0), replica_id=FOLLOWER, current_leader_epoch=EPOCH,
        )
    )  # fmt: skip
    state = partition(bench)._leader
    assert state is not None
    follower = state.followers[FOLLOWER]
    forgets = ForgottenTopic(topic="t", partitions=[0])
    proofs = []
    for epoch in range(1, 6):
        request = fetch_request(
            session=(answer.session_id, epoch), replica_id=FOLLOWER, current_leader_epoch=EPOCH
        )
        request.forgotten_topics_data = [forgets] if epoch == 3 else []
        assert code(await bench.ask(ApiKey.FETCH, 12, request)) is ErrorCode.NONE
        proofs.append(follower.followed_s)
    assert proofs[0] < proofs[1] == proofs[2] == proofs[3] == proofs[4]


async def test_a_stuck_follower_gets_corrupt_message_for_the_leaders_damage(bench: Bench) -> None:
    """The first answer holds the damaged batch, which the follower checks itself."""
    await bench.produce("t", batch(b"a"), acks=1)
    suspicions = []
    bench.app.replicas.on_suspicion = lambda key, offset: suspicions.append((key, offset))
    (path,) = Path(partition(bench).log.directory).glob("*.log")
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert bytes((await follow(bench, 0)).records or b"") == data
    assert not suspicions
    assert code(await follow(bench, 0)) is ErrorCode.CORRUPT_MESSAGE
    assert suspicions == [(T0, 0)]
