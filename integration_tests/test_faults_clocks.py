"""Tests of wall clocks that jump by an hour while the brokers run. Brokers use wall clocks only for
timestamps of records and the age of segments; they measure sessions, leases, lag and pauses by
monotonic clocks.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from integration_tests.faults import clocks
from integration_tests.faults.clocks import WallClocks
from integration_tests.faults.rig import PARTITIONS, Rig
from integration_tests.faults.tormented import Tormented
from pybroker.records.batch import iter_headers

pytestmark = pytest.mark.ours

HOUR_S: Final = 3600.0
SESSION_S: Final = 20.0
LAG_S: Final = 20.0
"""A time in seconds far shorter than the jumps of the clocks, and longer than a machine stalls."""
STAMPED_BY_BROKER: Final = {"message.timestamp.type": "LogAppendTime"}
LEASE: Final = "zookeeper lease answers="
"""A pattern of a broker's log line when its authority as leader changes."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tormented]:
    reason = clocks.reason_to_skip()
    if reason is not None:
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("clocks")
    config = {
        "zookeeper.session.timeout.ms": int(SESSION_S * 1000),
        "replica.lag.time.max.ms": int(LAG_S * 1000),
    }
    walls = WallClocks(folder, Tormented.brokers)
    with Tormented(folder, config=config, clocks=walls) as started:
        yield started


def hours_off(log_dir: Path, topic: str) -> set[int]:
    """Return the hours by which the timestamps of the batches in a broker's files differ from the
    right time (the test is much shorter than half an hour).
    """
    now_ms = time.time() * 1000
    return {
        round((header.max_timestamp - now_ms) / (HOUR_S * 1000))
        for path in log_dir.glob(f"{topic}-*/*.log")
        for _, header in iter_headers(path.read_bytes())
    }


def test_clock_jumps(cluster: Tormented, tmp_path: Path) -> None:
    """Each broker's clock jumps ahead, then behind the right time, then back to it, alone and
    together with the other clocks. No replica leaves an ISR, no leader is elected, and no session
    expires.
    """
    rig = Rig(cluster.fit(), tmp_path)
    with rig.run("clock-jumps", configs=STAMPED_BY_BROKER) as run:
        run.wait_for_progress(10)
        before = run.watch.all()
        registered = [*run.watch.nodes("/brokers/ids"), *run.watch.nodes("/controller")]
        with run.fault("clocks"):
            for broker in cluster.brokers:
                for hours in (1, -1):
                    cluster.set_clock(broker, hours * HOUR_S)
                    run.wait_for_progress(5)
            run.wait(SESSION_S)  # all are behind
            for broker in cluster.brokers:
                cluster.set_clock(broker, HOUR_S)
            run.wait(SESSION_S)
            run.wait_for_progress(5)
            for broker in cluster.brokers:
                cluster.set_clock(broker, 0)
            run.wait_for_progress(5)
        assert run.watch.all() == before, "a leader, ISR or epoch has changed"
        told = [line for b in cluster.brokers for line in rig.new_lines(b) if LEASE in line]
        assert not told, "a broker had doubts about its leadership"
        assert [*run.watch.nodes("/brokers/ids"), *run.watch.nodes("/controller")] == registered
        history = run.finish(stop=True)
    stamps = Counter(h for b in cluster.brokers for h in hours_off(cluster.log_dir(b), run.topic))
    assert stamps == {hours: len(cluster.brokers) for hours in (-1, 0, 1)}, "no clock has jumped"
    assert all(read.start == 0 for read in history.finals), "a record was too old"
    assert {read.partition[1] for read in history.finals} == set(range(PARTITIONS))
