"""Tests that a log directory that the broker creates survives a power loss, like the files in
it."""

from __future__ import annotations

import pytest

from pybroker.storage.directory import make_durable
from pybroker.testing.simulation.disk import SimDisk
from pybroker.testing.simulation.disk_view import DiskView
from pybroker.testing.simulation.environment import Environment

HOME = "/mnt/kafka/data"


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("there", ["/", "/mnt", HOME])
def test_the_parents_of_a_new_log_directory_survive_a_power_loss(seed: int, there: str) -> None:
    disk = SimDisk(Environment(str(seed)), "m")
    disk.writes_back = False
    before = DiskView(disk)
    before.make_dirs(there)
    for path in ("/", "/mnt", "/mnt/kafka"):
        if before.exists(path):
            before.sync_dir(path)
    make_durable(before, HOME)
    before.replace(f"{HOME}/meta.properties", b"cluster.id=x")
    disk.lose_power()
    assert DiskView(disk).read(f"{HOME}/meta.properties") == b"cluster.id=x"
