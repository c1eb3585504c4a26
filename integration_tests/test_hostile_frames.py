"""Tests with twenty thousand random and mutated frames: the broker survives, its memory stays
bounded, its logs stay valid, and it serves a well-behaved client meanwhile.

The frames are a function of the seed. The only allowed side effect is a topic with a mutated but
valid name.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import struct
from typing import Final

import pytest

from integration_tests.broker import Broker
from integration_tests.fuzzing.attack import OVERRIDES, attack
from integration_tests.fuzzing.frames import Move, Moves
from integration_tests.wire_client import (
    Connection,
    batch_of,
    create_topic,
    fetch_request,
    frame_of,
    produce,
)

SEED: Final = os.environ.get("PYBROKER_TEST_SEED", "20240229")
FRAMES: Final = 20_000
RSS_BYTES_MAX: Final = 300 * 1024 * 1024
PROBE_COMPUTED_S_MAX: Final = 5.0
BROKER_OVERRIDES: Final = OVERRIDES


def test_a_silent_connection_does_not_delay_other_clients(broker: Broker) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(50):
            idle = stack.enter_context(Connection(broker.bootstrap))
            idle.send_bytes(struct.pack(">i", 1_000_000) + b"half a request")
        with Connection(broker.bootstrap) as connection:
            create_topic(connection, "beside-slow-ones")
            assert produce(connection, "beside-slow-ones", batch_of(b"x")).error_code == 0
        assert broker.process.running


def test_unread_answers_do_not_fill_the_memory(broker: Broker) -> None:
    with Connection(broker.bootstrap) as connection:
        create_topic(connection, "large", configs={"max.message.bytes": "2000000"})
        create_topic(connection, "small")
        produce(connection, "large", batch_of(bytes(1_000_000)))
    request = frame_of(12, fetch_request("large", {0: 0}))
    with contextlib.ExitStack() as stack:
        for _ in range(30):
            deaf = stack.enter_context(Connection(broker.bootstrap))
            for _ in range(50):
                deaf.send_frame(request)
        with Connection(broker.bootstrap) as connection:
            for expected in range(300):
                assert produce(connection, "small", batch_of(b"x")).base_offset == expected
        assert broker.process.rss_bytes() < RSS_BYTES_MAX or is_apache(broker)


def is_apache(broker: Broker) -> bool:
    """Return whether the broker is Apache's, whose memory is not checked, because Java uses all of
    its heap.
    """
    return "java" in broker.process.command[0]


@pytest.mark.timeout(400)
def test_hostile_frames_do_not_harm_the_broker(broker: Broker) -> None:
    """`make fuzz` sends ten times as many frames."""
    outcome = attack(
        broker,
        seed=SEED,
        frames=FRAMES,
        rss_bytes_max=RSS_BYTES_MAX if not is_apache(broker) else 1 << 40,
        probe_computed_s_max=PROBE_COMPUTED_S_MAX,
    )
    assert outcome.faults == [], f"{outcome}; again with PYBROKER_TEST_SEED={SEED}"
    assert outcome.frames >= FRAMES and outcome.probe_rounds > 100
    assert outcome.begun > 0, "no frame has begun a transaction"


def test_the_same_seed_makes_the_same_frames() -> None:
    def some(seed: str) -> list[Move]:
        return list(itertools.islice(Moves(seed), 500))

    assert some("1") == some("1")
    assert some("1") != some("2")
