"""Fault tests with full disks of one broker, of a coordinator, and of all brokers, which get free
space again under load: records are refused or go to brokers with free space, and no restart is
needed.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration_tests.faults import mounts
from integration_tests.faults.rig import PARTITIONS, REPLICAS, Rig, Run
from integration_tests.faults.tormented import Tormented
from integration_tests.faults.trial import (
    OFFSETS_PARTITIONS,
    OFFSETS_TOPIC,
    OUTLASTING_MS,
    trial_of,
)
from unit_tests.patience import wait_until

pytestmark = pytest.mark.ours

DISK_BYTES = 48 * 1024**2
LEFT_BYTES = 32 * 1024
"""The free space in bytes that the workload fills."""
EXPLAINED = (
    "log directory full",
    "write refused",
    "copying pauses .* error=KAFKA_STORAGE_ERROR",
    "partition cannot be opened .* No space left on device",
)


@pytest.fixture
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tormented]:
    """Yield a cluster with a small file system in memory for every broker."""
    reason = mounts.reason_to_skip()
    if reason is not None:
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp(mounts.FOLDER)
    config = {
        "offsets.storage": "kafka",
        "offsets.topic.num.partitions": OFFSETS_PARTITIONS,
        "offsets.topic.segment.bytes": 65536,
    }
    with mounts.Mounts() as mounted:
        for broker in Tormented.brokers:
            mounted.memory(folder / "brokers" / f"broker-{broker}", DISK_BYTES)
        with Tormented(folder, config=config) as started:
            yield started


def fill(cluster: Tormented, broker: int) -> None:
    """Fill nearly all of the broker's disk."""
    log_dir = cluster.log_dir(broker)
    assert log_dir.is_mount()
    with ballast(cluster, broker).open("wb") as file:
        wait_until(lambda: took_the_rest(file.fileno(), log_dir), what=f"{log_dir} is full")


def took_the_rest(ballast: int, log_dir: Path) -> bool:
    """Grow the ballast file up to the intended free space. Return False if the broker has used some
    of this space meanwhile.
    """
    status = os.statvfs(log_dir)
    free_bytes = status.f_bavail * status.f_frsize
    assert free_bytes < DISK_BYTES
    try:
        os.posix_fallocate(ballast, 0, max(free_bytes - LEFT_BYTES, 1))
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        return False
    return True


def ballast(cluster: Tormented, broker: int) -> Path:
    return cluster.log_dir(broker) / "ballast"


def said(run: Run, broker: int, text: str) -> bool:
    return any(text in line for line in run.rig.new_lines(broker))


def test_the_disk_of_a_leader_is_full(small: Tormented, tmp_path: Path) -> None:
    """The broker resigns as leader, and follows again once there is free space."""
    rig = Rig(small, tmp_path)
    with rig.run("disk-full") as run:
        run.wait_for_progress(10)
        leader = run.leader()
        with run.fault("full", leader):
            fill(small, leader)
            for partition in range(PARTITIONS):
                run.wait_for_state(
                    partition,
                    lambda s: s.leader not in (-1, leader),
                    "a broker with free space leads",
                )
            run.wait_for_isr(set(small.brokers) - {leader})
            run.wait_for_progress(10)
            assert said(run, leader, "log directory full")
            # Also over a restart: records that could not be written do not count as written.
            assert small.stop(leader) == 0
            ballast(small, leader).unlink()
        small.start(leader)
        run.wait_for_full_isr()
        with run.fault("full-again", leader):
            fill(small, leader)
            run.wait_for_isr(set(small.brokers) - {leader})
            ballast(small, leader).unlink()
        run.wait_for_full_isr()
        wait_until(
            lambda: said(run, leader, "has free space again"),
            what="the broker can write",
        )
        run.finish(stop=True, allowed_errors=EXPLAINED)


def test_the_disk_of_a_coordinator_is_full(small: Tormented, tmp_path: Path) -> None:
    """Its groups move to a broker with free space, with offsets and generation, and more members
    join there. Then the groups move back, because this broker's disk is full, too.
    """
    rig = Rig(small, tmp_path)
    with trial_of(rig, "group-disk-full") as trial:
        trial.join("a", "b", session_ms=OUTLASTING_MS)
        trial.wait_until_shared()
        trial.wait_for_commits()
        small.cluster.wait_until_in_sync(OFFSETS_TOPIC)
        before = trial.held
        for name in ("c", "d"):
            coordinator = trial.coordinator()
            with trial.run.fault("full", coordinator):
                fill(small, coordinator)
                trial.coordinator(other_than=coordinator)
                trial.wait_for_commits()
                assert trial.held == before
                trial.join(name, session_ms=OUTLASTING_MS)
                trial.wait_until_shared()
                trial.wait_for_commits()
                before = trial.held
                ballast(small, coordinator).unlink()
            trial.run.wait_for_full_isr()
            small.cluster.wait_until_in_sync(OFFSETS_TOPIC)
        trial.finish(allowed_errors=EXPLAINED)


def test_all_disks_are_full(small: Tormented, tmp_path: Path) -> None:
    """Brokers refuse records until there is free space."""
    rig = Rig(small, tmp_path)
    with rig.run("disks-full") as run:
        run.wait_for_progress(10)
        with run.fault("full"):
            for broker in small.brokers:
                fill(small, broker)
            wait_until(
                lambda: all(said(run, broker, "log directory full") for broker in small.brokers),
                what="all disks are full",
            )
            before = run.watch.all()
            run.wait(3)
            after = run.watch.all()
            # Without a broker with free space there is no handover: leaders change a few times at
            # most.
            assert all(after[p].epoch - before[p].epoch <= 2 * REPLICAS for p in after), after
            assert set(small.running()) == set(small.brokers)
            for broker in small.brokers:
                ballast(small, broker).unlink()
        run.wait_for_progress(10)
        run.wait_for_full_isr()
        run.finish(stop=True, allowed_errors=EXPLAINED)
