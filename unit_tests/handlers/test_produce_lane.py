"""Tests that the fast lane (the fast path for common Produce requests) gives the same answers and
appends as the general path, byte for byte.

Two brokers receive the same frames. The fast lane of one of them is disabled.
"""

from __future__ import annotations

import asyncio
import random
import struct
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path

import pytest

from pybroker.clock import ManualClock
from pybroker.errors import CloseConnection, ErrorCode, MalformedInput
from pybroker.handlers.produce_lane import parse
from pybroker.model import LeaderAndIsr, PartitionFacts, PartitionState, TopicPartition
from pybroker.records.compression import Codec
from pybroker.wire.api import APIS, ApiKey
from pybroker.wire.codec import encode_request
from pybroker.wire.headers import RequestHeader, encode_request_header
from unit_tests.handlers.bench import (
    BROKER_ID,
    NOW_MS,
    Bench,
    batch,
    fetch_request,
    produce_request,
)
from unit_tests.handlers.test_hostile import mutated
from unit_tests.handlers.transactions import coordinator_of, marker_request
from unit_tests.idle_loop import idle
from unit_tests.patience import in_time

PRODUCE = APIS[ApiKey.PRODUCE]
VERSIONS = range(3, PRODUCE.max_version + 1)
TOPICS = {
    "plain": {},
    "arrival-times": {"message.timestamp.type": "LogAppendTime"},
    "compacted": {"cleanup.policy": "compact"},
    "aged": {"message.timestamp.before.max.ms": "1000"},
    "small": {"max.message.bytes": "200"},
    "narrow": {"segment.bytes": "1000"},
}
Outcome = bytes | str | None
PLAIN = TopicPartition("plain", 0)
FOLLOWER = 2


def frame(
    version: int,
    topic: str = "plain",
    records: bytes | None = b"",
    *,
    partition: int = 0,
    acks: int = -1,
    client_id: str | None = "client",
    timeout_ms: int = 10_000,
    transactional_id: str | None = None,
) -> bytes:
    """A Produce request for one partition."""
    header = RequestHeader(ApiKey.PRODUCE, version, 4711, client_id)
    request = produce_request(topic, {partition: records}, acks=acks, timeout_ms=timeout_ms)
    request.transactional_id = transactional_id
    body = encode_request(PRODUCE, version, request)
    return encode_request_header(header, PRODUCE.request_header_version(version)) + body


class Twins:
    """Two equal brokers, of which one has its fast lane disabled."""

    def __init__(self, home: Path) -> None:
        self.clock = clock = ManualClock(NOW_MS)
        self.laned = Bench(home / "laned", clock=clock)
        self.general = Bench(home / "general", clock=clock)
        self.taken = 0

    async def start(self) -> None:
        for bench in (self.laned, self.general):
            await bench.start()
            for name, configs in TOPICS.items():
                await bench.create(name, partitions=2, configs=configs)
        lane = self.laned.app.dispatcher.lane
        answer = lane.answer

        def counted(frame: memoryview) -> object:
            result = answer(frame)
            self.taken += result is not None
            return result

        lane.answer = counted  # type: ignore[method-assign,assignment]
        self.general.app.dispatcher.lane.answer = lambda frame: None  # type: ignore[method-assign]

    async def stop(self) -> None:
        await self.laned.stop()
        await self.general.stop()

    async def agree(self, data: bytes) -> Outcome:
        """Send the frame to both brokers, and return both answers."""
        outcomes = [await outcome(bench, data) for bench in (self.laned, self.general)]
        assert outcomes[0] == outcomes[1]
        assert contents(self.laned) == contents(self.general)
        return outcomes[0]


async def outcome(bench: Bench, data: bytes) -> Outcome:
    """Return the bytes of the answer, None, or the reason for the end of the connection."""
    try:
        answer = bench.app.dispatcher.answer(memoryview(bytearray(data)), "PLAINTEXT", "127.0.0.1")
        if isinstance(answer, Awaitable):
            answer = await answer
    except (MalformedInput, CloseConnection) as error:
        return type(error).__name__
    return None if answer is None else b"".join(bytes(part) for part in answer)


def contents(bench: Bench) -> list[object]:
    """Return the content of the logs, their ends, and their producers."""
    found: list[object] = []
    for name in TOPICS:
        for number in range(2):
            replica = bench.app.replicas.partition(TopicPartition(name, number))
            log = replica.log
            data = log.read(
                log.log_start_offset,
                2**30,
                upper_offset=log.log_end_offset,
                at_least_one_batch=True,
                cached_only=False,
            )
            found.append((data, replica.high_watermark, log.segment_count, log.producers.entries))
    return found


@pytest.fixture
async def twins(tmp_path: Path) -> AsyncIterator[Twins]:
    for name in ("laned", "general"):
        (tmp_path / name).mkdir()
    pair = Twins(tmp_path)
    await pair.start()
    try:
        yield pair
    finally:
        await pair.stop()


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("acks", [-1, 1])
async def test_a_plain_batch_takes_the_lane(twins: Twins, version: int, acks: int) -> None:
    data = frame(version, records=batch(b"one", b"two"), acks=acks)
    await twins.agree(data)
    assert twins.taken == 0, "the first batch of a leader epoch goes the general way"
    for _ in range(3):
        assert isinstance(await twins.agree(data), bytes)
    assert twins.taken == 3


@pytest.mark.parametrize("version", VERSIONS)
async def test_lane_and_general_path_agree_on_every_batch(twins: Twins, version: int) -> None:
    good = batch(b"value")
    broken = bytearray(good)
    broken[-1] ^= 1
    batches = [
        good,
        bytes(broken),
        b"",
        None,
        good + good,
        good[:-1],
        good[:40],
        *(batch(b"value" * 50, codec=codec) for codec in Codec),
        batch(b"v", producer=(7, 0, 0)),
        batch(b"v", producer=(7, 0, 0)),
        batch(b"v", producer=(7, 0, 5)),
        batch(b"v", producer=(7, 0, 1)),
        batch(b"v", producer=(7, 1, 0)),
        batch(b"v", producer=(7, 0, 1)),
        batch(b"v", producer=(7, -1, 1)),
        batch(b"v", producer=(8, 0, 0), transactional=True),
        batch(b"v", key=None),
        batch(b"v", timestamp=NOW_MS - 10_000),
        batch(b"v", timestamp=-1),
        batch(b"v" * 300),
        batch(b"v" * 1500),
    ]
    for topic in TOPICS:
        for records in batches:
            await twins.agree(frame(version, topic, records))
    assert twins.taken > len(batches)


@pytest.mark.parametrize("version", VERSIONS)
async def test_lane_and_general_path_agree_on_every_request(twins: Twins, version: int) -> None:
    records = batch(b"value")
    for acks in (-2, -1, 0, 1, 2):
        for partition in (-1, 0, 1, 2):
            for topic in ("plain", "missing", "__consumer_offsets"):
                for client_id in (None, "", "client", "__admin_client", "\u00fc" * 20):
                    for _ in range(2):
                        await twins.agree(
                            frame(
                                version,
                                topic,
                                records,
                                partition=partition,
                                acks=acks,
                                client_id=client_id,
                            )
                        )


async def test_a_client_id_that_is_not_utf8_closes_the_connection(twins: Twins) -> None:
    data = bytearray(frame(7, records=batch()))
    data[10:16] = b"\xff\xfe\xfd\xfc\xfb\xfa"
    for _ in range(2):
        assert await twins.agree(bytes(data)) == "MalformedInput"


@pytest.mark.parametrize("version", VERSIONS)
async def test_lane_and_general_path_agree_on_truncated_frames(twins: Twins, version: int) -> None:
    whole = frame(version, records=batch())
    await twins.agree(whole)
    for size in range(len(whole)):
        await twins.agree(whole[:size])
        await twins.agree(whole + whole[size : size + 3])


@pytest.mark.parametrize("seed", range(8))
async def test_mutated_frames_get_the_same_answers(twins: Twins, seed: int) -> None:
    source = random.Random(seed)
    for _ in range(250):
        version = source.choice(VERSIONS)
        records = batch(b"x" * source.randrange(300), producer=(source.randrange(3), 0, 0))
        await twins.agree(mutated(frame(version, records=records), source))


def in_transaction(sequence: int, *, producer: int = 7, epoch: int = 0) -> bytes:
    return batch(b"value", producer=(producer, epoch, sequence), transactional=True)


IDS = ["tx", "", "\u00fc" * 20, "x" * 126, "x" * 127, "x" * 300]


@pytest.mark.parametrize("version", VERSIONS)
async def test_the_next_batches_of_a_transaction_take_the_lane(twins: Twins, version: int) -> None:
    for bench in (twins.laned, twins.general):
        coordinator_of(bench)
    await twins.agree(frame(version, records=batch()))
    for begun in range(2):
        for sequence in range(begun * 3, begun * 3 + 3):
            data = frame(version, records=in_transaction(sequence), transactional_id="tx")
            assert isinstance(await twins.agree(data), bytes)
            assert twins.taken == sequence - begun, "only the first batch goes the general way"
        for bench in (twins.laned, twins.general):
            await bench.ask(ApiKey.WRITE_TXN_MARKERS, 1, marker_request(("plain", [0])))


@pytest.mark.parametrize("version", VERSIONS)
async def test_lane_and_general_path_agree_on_transactions(twins: Twins, version: int) -> None:
    coordinators = [coordinator_of(bench) for bench in (twins.laned, twins.general)]
    batches = [
        in_transaction(0),
        in_transaction(1),
        in_transaction(1),
        in_transaction(5),
        in_transaction(-1),
        in_transaction(2, epoch=-1),
        in_transaction(0, producer=-1),
        in_transaction(0, producer=-2),
        batch(b"v", producer=(7, 0, 2)),
        batch(b"v"),
        batch(b"v" * 300, producer=(7, 0, 2), transactional=True),
        *(
            batch(b"v" * 50, producer=(8 + codec, 0, sequence), transactional=True, codec=codec)
            for codec in Codec
            for sequence in range(2)
        ),
    ]
    for topic in TOPICS:
        for transactional_id in (None, *IDS):
            for records in batches:
                data = frame(version, topic, records, transactional_id=transactional_id)
                await twins.agree(data)
        for bench in (twins.laned, twins.general):
            await bench.ask(ApiKey.WRITE_TXN_MARKERS, 1, marker_request((topic, [0])))
        await twins.agree(frame(version, topic, in_transaction(2), transactional_id="tx"))
    assert coordinators[0].asked == coordinators[1].asked
    assert twins.taken > len(batches)


@pytest.mark.parametrize("seed", range(4))
async def test_mutated_transactional_frames_get_the_same_answers(twins: Twins, seed: int) -> None:
    source = random.Random(seed)
    for bench in (twins.laned, twins.general):
        coordinator_of(bench)
    for number in range(250):
        version = source.choice(VERSIONS)
        records = in_transaction(number % 3, producer=source.randrange(3))
        whole = frame(version, records=records, transactional_id=source.choice(IDS))
        await twins.agree(mutated(whole, source))
        await twins.agree(whole[: source.randrange(len(whole))])


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_transactional_id_that_is_not_utf8_closes_the_connection(
    twins: Twins, version: int
) -> None:
    data = bytearray(frame(version, records=in_transaction(1), transactional_id="abc"))
    at = data.index(b"abc")
    data[at : at + 3] = b"\xff\xfe\xfd"
    assert await twins.agree(bytes(data)) == "MalformedInput"


async def test_several_partitions_go_the_general_way(twins: Twins) -> None:
    request = produce_request("plain", {0: batch(), 1: batch()})
    header = encode_request_header(RequestHeader(0, 7, 1, "client"), 1)
    for _ in range(2):
        await twins.agree(header + encode_request(PRODUCE, 7, request))
    assert twins.taken == 0


async def test_a_stopped_partition_is_not_found_in_the_lane(twins: Twins) -> None:
    data = frame(7, records=batch())
    for _ in range(2):
        await twins.agree(data)
    for bench in (twins.laned, twins.general):
        await bench.ask(ApiKey.DELETE_TOPICS, 5, bench.delete_request("plain"))
        assert b"plain" not in bench.app.replicas.by_topic
    assert await outcome(twins.laned, data) == await outcome(twins.general, data)


async def test_a_replaced_leader_acknowledges_nothing_alone(twins: Twins) -> None:
    data = frame(7, records=batch(), acks=1)
    for _ in range(2):
        await twins.agree(data)
    for bench in (twins.laned, twins.general):
        bench.app.replicas.partition(TopicPartition("plain", 0)).superseded(is_replaced=True)
    before = contents(twins.laned)
    await twins.agree(data)
    assert contents(twins.laned) == before


async def replicate(bench: Bench) -> None:
    """Give partition 0 of the topic `plain` a follower, which is in the ISR."""
    replicas = (BROKER_ID, FOLLOWER)
    state = PartitionState(BROKER_ID, 1, replicas, 1)
    facts = PartitionFacts(PLAIN, bench.app.metadata.topics["plain"].topic_id, state, 1, replicas)
    command = LeaderAndIsr(BROKER_ID, bench.app.controller.epoch, -1, (facts,))
    await bench.app.replicas.leader_and_isr(command)
    bench.app.replicas.partition(PLAIN).log.persist_epochs()


@pytest.mark.parametrize("timeout_ms", [0, 20, 10_000])
@pytest.mark.parametrize("version", VERSIONS)
async def test_an_answer_that_waits_for_a_follower_is_the_same(
    twins: Twins, version: int, timeout_ms: int
) -> None:
    data = frame(version, records=batch(b"one"), timeout_ms=timeout_ms)
    await twins.agree(data)
    benches = (twins.laned, twins.general)
    answers = []
    for bench in benches:
        await replicate(bench)
        answers.append(asyncio.ensure_future(outcome(bench, data)))
    await idle()
    assert twins.taken == 1
    if timeout_ms == 20:
        twins.clock.advance(1)
    if timeout_ms == 10_000:
        for bench in benches:
            assert len(bench.app.replicas.produces) == 1
            fetch = fetch_request(
                ("plain", 0, 2), replica_id=FOLLOWER, current_leader_epoch=1, max_wait_ms=0
            )
            await bench.ask(ApiKey.FETCH, 12, fetch)
    first, second = await in_time(asyncio.gather(*answers))
    assert first == second and isinstance(first, bytes)
    error = struct.pack(">h", ErrorCode.REQUEST_TIMED_OUT)
    assert (error in first) == (timeout_ms < 10_000)
    assert all(len(bench.app.replicas.produces) == 0 for bench in benches)


def test_the_known_shape_is_read() -> None:
    records = batch()
    for version in VERSIONS:
        parsed = parse(memoryview(frame(version, "topic", records, partition=3, acks=1)))
        assert parsed is not None
        assert (parsed.topic, parsed.partition, parsed.acks) == (b"topic", 3, 1)
        assert (parsed.client_id, parsed.correlation_id) == ("client", 4711)
        assert parsed.end - parsed.start == len(records)
        assert parsed.transactional_id is None


def test_a_transactional_id_is_read() -> None:
    records = batch()
    for version in VERSIONS:
        for transactional_id in IDS:
            data = frame(version, "topic", records, transactional_id=transactional_id)
            parsed = parse(memoryview(data))
            if version == 9 and len(transactional_id.encode()) > 126:
                assert parsed is None, "the length has two bytes"
                continue
            assert parsed is not None
            assert parsed.transactional_id == transactional_id
            assert (parsed.topic, parsed.acks, parsed.timeout_ms) == (b"topic", -1, 10_000)
            assert data[parsed.start : parsed.end] == records
