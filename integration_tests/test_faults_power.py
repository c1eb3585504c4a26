"""Fault tests with power losses: brokers write to file system images, and restart on copies of the
images at one moment, without the data that was only in memory.

`PYBROKER_FAULTS_SEED=text` chooses other moments, `PYBROKER_FAULTS_ROUNDS=20` more rounds.
"""

from __future__ import annotations

import os
import random
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final

import pytest

from integration_tests.faults import disk_shim, machines, mounts
from integration_tests.faults.disk_shim import Disk
from integration_tests.faults.machines import Machine
from integration_tests.faults.rig import PARTITIONS, Rig
from integration_tests.faults.settings import PRODUCERS, READERS
from integration_tests.faults.tormented import SESSION_S, Tormented
from pybroker.coordinator.zookeeper.loss_receipts import RECEIPTS_MAX
from pybroker.testing.place import Place

pytestmark = pytest.mark.ours

PLAIN: Final[tuple[str, ...]] = ("one-in-flight", "five-in-flight")
SEED: Final = "first"
ROUNDS: Final = int(os.environ.get("PYBROKER_FAULTS_ROUNDS", "3"))
SYNC_MS: Final = 100
"""The time in seconds for which a record is in memory only. With a shorter time, moments at which
records are lost would be rare.
"""
DISK_BYTES: Final = 64 * 1024**2
MOMENT_S: Final = 1.0
"""The maximum time in seconds from the begin of the load to the power loss."""


class Machines:
    """The machines of all brokers, each with its own disk and boot id."""

    def __init__(self, folder: Path, mounted: mounts.Mounts) -> None:
        self._folder = folder
        self._mounted = mounted
        self._images: dict[int, Path] = {}
        self._copies = 0
        self._machines = {broker: Machine(folder, broker) for broker in Tormented.brokers}
        for broker in Tormented.brokers:
            self._images[broker] = mounts.made_image(folder / f"disk-{broker}", DISK_BYTES)
            mounted.image(self._place(broker), self._images[broker])
        library = disk_shim.compiled(folder)
        self.disks = {b: Disk(library, folder / f"shim-{b}") for b in Tormented.brokers}
        places = {
            broker: Place(prefix=(*machine.place.prefix, *self.disks[broker].place.prefix))
            for broker, machine in self._machines.items()
        }
        self.cluster = Tormented(folder, places=places)

    def _place(self, broker: int) -> Path:
        return self._folder / "brokers" / f"broker-{broker}"

    def lose_power(self, brokers: Collection[int]) -> None:
        """Pause these brokers while their disks are copied, so that all lose power at one moment,
        then kill them.
        """
        self._copies += 1
        for broker in brokers:
            self.cluster.pause(broker)
        for broker in brokers:
            copy = self._folder / f"disk-{broker}-{self._copies}"
            mounts.copied_image(self._images[broker], copy)
            self._images[broker] = copy
        for broker in brokers:
            self.cluster.kill9(broker)
        for broker in brokers:
            self._mounted.unmount(self._place(broker))
            self._mounted.image(self._place(broker), self._images[broker])
            self._machines[broker].boot()


@pytest.fixture
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    rooms = (machines, mounts, disk_shim)
    reason = next((found for room in rooms if (found := room.reason_to_skip())), None)
    if reason is not None:
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp(mounts.FOLDER)
    with mounts.Mounts() as mounted:
        found = Machines(folder, mounted)
        with found.cluster:
            yield found


@pytest.mark.parametrize("flush_messages", [1, None])
def test_all_machines_lose_power_again_and_again(
    made: Machines, tmp_path: Path, flush_messages: int | None
) -> None:
    """With a sync per append no acknowledged record is lost. Otherwise a loss receipt is written,
    and the replicas agree on the remaining records.
    """
    seed = os.environ.get("PYBROKER_FAULTS_SEED", SEED)
    print(f"PYBROKER_FAULTS_SEED={seed}")
    moments = random.Random(f"{seed} {flush_messages}")
    cluster = made.cluster
    configs = {"segment.bytes": "16384"}
    if flush_messages is None:
        # librdkafka's idempotent producer fails when acknowledged records are lost.
        name, producers = "cluster-power-loss", PLAIN
    else:
        name, producers = "cluster-power-loss-synced", PRODUCERS
        configs["flush.messages"] = str(flush_messages)
        for disk in made.disks.values():
            disk.slow(sync_ms=SYNC_MS)
    rig = Rig(cluster, tmp_path)
    with rig.run(name, clients=(*producers, *READERS), configs=configs) as run:
        for _ in range(ROUNDS):
            run.wait_for_progress(5)
            run.wait(moments.uniform(0, MOMENT_S))
            with run.fault("power-loss", "all"):
                made.lose_power(cluster.brokers)
            cluster.start_all()
            run.wait_for_full_isr()
        told = [run.watch.loss(partition) for partition in range(PARTITIONS)]
        # No replica was known to have every record, so a receipt is written even if the longest log
        # had.
        run.finish(
            lossy=flush_messages is None,
            excused=["clean-elections"],
            stop=True,
            allowed_errors=["loss receipt partition="],
        )
    for receipts in told:
        assert receipts is not None
        reasons = [receipt["reason"] for receipt in receipts["receipts"]]
        assert reasons == ["power-loss"] * min(ROUNDS, RECEIPTS_MAX)


def logged_bytes(cluster: Tormented, topic: str, broker: int) -> list[int]:
    """Return the bytes of each partition's log, without the zeros of writes that did not reach the
    disk.
    """
    folders = [cluster.log_dir(broker) / f"{topic}-{number}" for number in range(PARTITIONS)]
    return [
        sum(len(path.read_bytes().rstrip(b"\0")) for path in folder.glob("*.log"))
        for folder in folders
    ]


def test_the_last_in_sync_replica_loses_power(made: Machines, tmp_path: Path) -> None:
    """The only in-sync replica restarts first with a shorter log. It waits for a replica with every
    record.
    """
    cluster = made.cluster
    rig = Rig(cluster, tmp_path)
    first, second, last = cluster.brokers
    with rig.run("last-replica-standing") as run:
        for broker, rest in ((first, {second, last}), (second, {last})):
            run.wait_for_progress(10)
            with run.fault("kill9", broker):
                cluster.kill9(broker)
            run.wait_for_isr(rest)
        had = logged_bytes(cluster, run.topic, second)
        with run.fault("power-loss", last):
            made.lose_power([last])
        left = logged_bytes(cluster, run.topic, last)
        assert any(now < other for now, other in zip(left, had, strict=True)), (left, had)
        cluster.start(last)
        run.wait(2 * SESSION_S)
        states = run.watch.all()
        assert {state.leader for state in states.values()} == {-1}, states
        cluster.start(second)
        for partition in range(PARTITIONS):
            state = run.wait_for_state(partition, lambda s: s.leader >= 0, "a leader")
            assert state.leader == second, state
        cluster.start(first)
        run.finish(stop=True)
