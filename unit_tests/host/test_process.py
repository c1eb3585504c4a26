"""Tests of threads for blocking work, and the readiness message."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pybroker.host.process import (
    READY_VARIABLE,
    BackgroundThread,
    ReadySocket,
    ThreadedBlocking,
    send_ready,
)


@pytest.fixture
def blocking() -> Iterator[ThreadedBlocking]:
    made = ThreadedBlocking(1)
    yield made
    made.close()


async def test_resized_threads_run_new_work_and_finish_queued_work(
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


def test_readiness_is_sent_to_the_named_socket(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    listener = ReadySocket()
    try:
        assert not listener.received_ready()
        monkeypatch.delenv(READY_VARIABLE, raising=False)
        send_ready()
        assert not listener.received_ready()
        monkeypatch.setenv(READY_VARIABLE, listener.address)
        send_ready()
        assert listener.received_ready()
        assert not listener.received_ready()
    finally:
        listener.close()


def test_a_readiness_socket_without_a_receiver_does_not_end_the_broker(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(READY_VARIABLE, str(tmp_path / "gone"))
    send_ready()
    assert "readiness not sent" in caplog.text


async def test_background_thread_is_one_thread_that_preempts_no_other() -> None:
    thread = BackgroundThread()
    try:
        first, second = [await thread.run(threading.get_ident) for _ in range(2)]
        assert first == second != threading.get_ident()
        if hasattr(os, "SCHED_BATCH"):
            assert await thread.run(os.sched_getscheduler, 0) == os.SCHED_BATCH
            assert os.sched_getscheduler(0) != os.SCHED_BATCH
    finally:
        thread.close()
