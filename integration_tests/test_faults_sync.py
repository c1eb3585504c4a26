"""Fault tests with a failed sync, and with slow disks. After a failed sync the content of the disk
is unknown: the broker uses its directory no more, acknowledges no record in it, and treats its
replicas at the next start as after a power loss.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from integration_tests.broker import PybrokerProcess
from integration_tests.faults import disk_shim
from integration_tests.faults.disk_shim import Disk
from integration_tests.faults.rig import Rig
from integration_tests.faults.tormented import Tormented
from integration_tests.stored import partition_folder
from integration_tests.wire_client import Connection, batch_of, create_topic, produce
from pybroker.errors import ErrorCode
from pybroker.storage.filename import CLEAN_MARK
from pybroker.wire.messages.cluster import ApiVersionsRequest, ApiVersionsResponse
from unit_tests.patience import wait_until

pytestmark = pytest.mark.ours

EXPLAINED = (
    "log directory failed",
    "partition cannot be opened .* error=sync ",
    "copying pauses .* error=KAFKA_STORAGE_ERROR",
)


SLOW_SYNCS = 5
ROUNDS_OF_A_SYNC = 5
"""A number of requests far below the number that a broker answers in the three seconds of a sync,
and above the number between two syncs.
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    reason = disk_shim.reason_to_skip()
    if reason is not None:
        pytest.skip(reason)
    return disk_shim.compiled(tmp_path_factory.mktemp("library"))


@pytest.fixture(scope="module")
def made(
    library: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Tormented, dict[int, Disk]]]:
    folder = tmp_path_factory.mktemp("sync")
    disks = {broker: Disk(library, folder / f"disk-{broker}") for broker in Tormented.brokers}
    places = {broker: disk.place for broker, disk in disks.items()}
    with Tormented(folder, places=places) as started:
        yield started, disks


@pytest.mark.parametrize("flush_messages", ["1", None])
def test_fsync_error(
    made: tuple[Tormented, dict[int, Disk]], tmp_path: Path, flush_messages: str | None
) -> None:
    """One EIO ends the use of a leader's only directory, and so the broker's process, although the
    next sync would succeed. Other brokers lead. The next start treats the logs as after a power
    loss.
    """
    cluster, disks = made
    rig = Rig(cluster.fit(), tmp_path)
    configs = {} if flush_messages is None else {"flush.messages": flush_messages}
    with rig.run(f"fsync-error-{flush_messages or 'never'}", configs=configs) as run:
        run.wait_for_progress(10)
        leader = run.leader()
        disk = disks[leader]
        failed = disk.failed
        with run.fault("eio", leader):
            disk.fail_next_sync()
            wait_until(lambda: leader not in cluster.running(), what="the broker ends")
        assert (disk.failed - failed, disk.retried) == (1, 0)
        assert not (cluster.log_dir(leader) / CLEAN_MARK).exists()
        run.leader(other_than=leader)
        run.wait_for_isr(set(cluster.brokers) - {leader})
        run.wait_for_progress(10)
        cluster.start(leader)
        assert any("segment rewritten" in line for line in rig.new_lines(leader))
        run.finish(allowed_errors=EXPLAINED)


def test_a_slow_disk(made: tuple[Tormented, dict[int, Disk]], tmp_path: Path) -> None:
    """Clients of the slow disk wait. Slow syncs never cost the broker its session, because they run
    outside the event loop, which answers meanwhile. Writes into the page cache run on the event
    loop, so a broker that stalls half a second for each write loses its session and its
    leaderships.
    """
    cluster, disks = made
    rig = Rig(cluster.fit(), tmp_path)
    with rig.run("slow-disk", configs={"flush.messages": "1"}) as run:
        run.wait_for_progress(10)
        slow = run.leader()
        disk = disks[slow]
        with run.fault("slow-sync", slow):
            disk.slow(sync_ms=500)
            run.wait_for_progress(1)
            disk.slow(sync_ms=3000)
            with Connection(cluster.cluster.address(slow)) as beside:
                asked = rounds_until(beside, lambda: disk.syncs, SLOW_SYNCS)
            assert asked > ROUNDS_OF_A_SYNC * SLOW_SYNCS, "the event loop waits for syncs"
            disk.slow(write_ms=50)
            run.wait_for_progress(1)
        with run.fault("slow-write", slow):
            disk.slow(write_ms=500)
            wait_for_more(lambda: disk.writes, 10)
            disk.slow()
        run.finish()


def rounds_until(connection: Connection, count: Callable[[], int], more: int) -> int:
    """Return the number of the broker's answers until `more` further events are counted."""
    goal, asked = count() + more, 0

    def is_enough() -> bool:
        nonlocal asked
        connection.ask(0, ApiVersionsRequest(), ApiVersionsResponse)
        asked += 1
        return count() >= goal

    wait_until(is_enough, what=f"{more} slow ones")
    return asked


def wait_for_more(count: Callable[[], int], more: int) -> None:
    goal = count() + more
    wait_until(lambda: count() >= goal, what=f"{more} slow ones")


def test_a_failed_sync_of_one_directory_of_three(library: Path, tmp_path: Path) -> None:
    """Neither records that waited for the failed sync nor later records are acknowledged. The other
    directories stay in use and are closed cleanly; the failed directory is not.
    """
    disk = Disk(library, tmp_path / "disk")
    home = tmp_path / "home"
    names = ("a", "b", "c")
    listed = ",".join(str(home / name) for name in names)
    broker = PybrokerProcess(
        home, overrides={"log.dirs": listed, "broker.id": "0"}, environment=disk.variables
    )
    try:
        broker.start()
        with Connection(broker.bootstrap) as connection:
            create_topic(connection, "t", partitions=3, configs={"flush.messages": "1"})
            for partition in range(3):
                assert produce(connection, "t", batch_of(b"x"), partition=partition).error_code == 0
            failing = partition_folder(home, "t", 0).parent.name
            disk.fail_next_sync()
            for _ in range(2):
                answer = produce(connection, "t", batch_of(b"y"), partition=0)
                assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR, answer
            for partition in (1, 2):
                assert produce(connection, "t", batch_of(b"y"), partition=partition).error_code == 0
        assert (disk.failed, disk.retried) == (1, 0)
        broker.stop()
        marks = {name for name in names if (home / name / CLEAN_MARK).exists()}
        assert marks == {*names} - {failing}
    finally:
        broker.close()
