"""Threads for work that blocks."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from pybroker.process import ThreadedBlocking


@pytest.fixture
def blocking() -> Iterator[ThreadedBlocking]:
    made = ThreadedBlocking(1)
    yield made
    made.close()


async def test_more_threads_work_at_once_and_what_waits_is_still_done(
    blocking: ThreadedBlocking,
) -> None:
    gate = threading.Event()
    first = blocking.run(gate.wait, 5)
    waiting = blocking.run(lambda: "done")
    blocking.resize(2)
    both = threading.Barrier(2)
    meeting = [blocking.run(both.wait, 5) for _ in range(2)]
    assert sorted([await each for each in meeting]) == [0, 1]
    gate.set()
    assert await first
    assert await waiting == "done"
