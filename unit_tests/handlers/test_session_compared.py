"""Tests that the answers of a fetch session together give a client the same values as full
fetches."""

from __future__ import annotations

import random

import pytest

from pybroker.model import TopicPartition
from pybroker.replication.authority import Authority
from pybroker.replication.leader_state import FollowerFetch
from pybroker.replication.partition import Partition
from unit_tests.handlers.bench import BROKER_ID, Bench, batch
from unit_tests.handlers.session_reader import FOLLOWER, Reader, lead

PARTITIONS = 4
REPLICAS = (BROKER_ID, FOLLOWER, 3)


def fetched_to_the_end(bench: Bench, partition: Partition) -> None:
    """Let each follower fetch at the log end, so that the high watermark moves there."""
    log = partition.log
    for follower in REPLICAS[1:]:
        fetch = FollowerFetch(follower, log.log_end_offset, log.log_start_offset)
        bench.app.replicas.follower_fetched(partition, fetch, bench.app.replicas.clock.monotonic())


@pytest.fixture(autouse=True)
async def topic(bench: Bench) -> None:
    await bench.create("t", PARTITIONS)


@pytest.mark.parametrize("replica_id", [-1, FOLLOWER])
@pytest.mark.parametrize("seed", range(8))
async def test_the_answers_of_a_session_together_equal_full_fetches(
    bench: Bench, replica_id: int, seed: int
) -> None:
    rng = random.Random(seed)
    reader = Reader(bench, replica_id)
    keys = [TopicPartition("t", partition) for partition in range(PARTITIONS)]
    keys.append(TopicPartition("missing", 0))
    positions = dict.fromkeys(keys, (0, 1, -1))
    epochs = dict.fromkeys(keys, 1)
    for key in keys[:-1]:
        await lead(bench, 1, key, replicas=REPLICAS)
    for _ in range(150):
        key = rng.choice(keys[:-1])
        partition = bench.app.replicas.partitions.get(key)
        if partition is None:
            epochs[key] += 1
            await lead(bench, epochs[key], key, replicas=REPLICAS)
            partition = bench.app.replicas.partition(key)
        match rng.randrange(18):
            case 0 | 1 | 2:
                await bench.produce("t", batch(b"v"), partition=key.partition, acks=1)
            case 3:
                epochs[key] += 1
                leader = rng.choice((BROKER_ID, BROKER_ID, FOLLOWER))
                await lead(bench, epochs[key], key, leader=leader, replicas=REPLICAS)
                if rng.randrange(4):
                    positions[key] = (partition.log.log_end_offset, epochs[key], -1)
            case 4:
                offset = rng.randint(partition.log.log_start_offset, partition.high_watermark)
                partition.log.advance_log_start(offset)
            case 5:
                positions.pop(key, None)
            case 6 | 7:
                if partition.is_leader:
                    fetched_to_the_end(bench, partition)
            case 8:
                bench.app.replicas.lease = rng.choice((Authority.ALL, Authority.NOTHING))
            case 9:
                bench.app.replicas.replica_failed(key, "its disk has failed")
                if rng.randrange(4):
                    epochs[key] += 1
                    await lead(bench, epochs[key], key, replicas=REPLICAS)
            case 10 | 11:
                offset = rng.randint(0, partition.log.log_end_offset + 1)
                epoch = epochs[key] if rng.randrange(5) else -1
                last = rng.choice((-1, -1, *range(epochs[key] + 1)))
                positions[key] = (offset, epoch, last)
            case _:  # the client has all records
                positions[key] = (partition.log.log_end_offset, epochs[key], -1)
        for _ in range(rng.randint(1, 2)):
            await reader.ask(positions)
            assert reader.known == await reader.full()
    assert reader.left_out > 20
