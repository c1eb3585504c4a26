"""The answers of a session together give a client the same values as full fetches."""

from __future__ import annotations

import random

import pytest

from pybroker.model import TopicPartition
from unit_tests.handlers.bench import BROKER_ID, Bench, batch
from unit_tests.handlers.session_reader import FOLLOWER, Reader, lead

PARTITIONS = 4


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
        await lead(bench, 1, key)
    for _ in range(60):
        key = rng.choice(keys[:-1])
        partition = bench.app.replicas.partition(key)
        match rng.randrange(8):
            case 0 | 1 | 2:
                await bench.produce("t", batch(b"v"), partition=key.partition, acks=1)
            case 3:
                epochs[key] += 1
                leader = rng.choice((BROKER_ID, BROKER_ID, FOLLOWER))
                await lead(bench, epochs[key], key, leader=leader)
                if rng.randrange(4):
                    positions[key] = (partition.log.log_end_offset, epochs[key], -1)
            case 4:
                offset = rng.randint(partition.log.log_start_offset, partition.high_watermark)
                partition.log.advance_log_start(offset)
            case 5:
                positions.pop(key, None)
            case _:
                offset = rng.randint(0, partition.log.log_end_offset + 1)
                epoch = epochs[key] if rng.randrange(5) else -1
                last = rng.choice((-1, -1, *range(epochs[key] + 1)))
                positions[key] = (offset, epoch, last)
        for _ in range(rng.randint(1, 2)):
            await reader.ask(positions)
            assert reader.known == await reader.full()
    assert reader.left_out > 20
