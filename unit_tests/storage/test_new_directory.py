"""A directory that the broker makes itself outlives a power loss: without it nobody would know that
something is missing."""

from __future__ import annotations

import random

import pytest

from pybroker.model import TopicPartition
from pybroker.storage.directory import make_durable
from pybroker.storage.loader import create_log
from pybroker.storage.log_config import LogConfig
from pybroker.storage.log_parts import LogOwner
from pybroker.testing.simulation.disk import SimDisk
from pybroker.testing.simulation.world import World

HOME = "/mnt/kafka/data"


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("there", ["/", "/mnt", HOME])
def test_no_directory_above_the_data_is_lost_with_the_power(seed: int, there: str) -> None:
    disk = SimDisk(World(str(seed)), "m")
    disk.writes_back = False
    before = disk.of_process()
    before.make_dirs(there)
    for path in ("/", "/mnt", "/mnt/kafka"):
        if before.exists(path):
            before.sync_dir(path)
    make_durable(before, HOME)
    before.replace(f"{HOME}/meta.properties", b"cluster.id=x")
    disk.lose_power()
    assert disk.of_process().read(f"{HOME}/meta.properties") == b"cluster.id=x"


@pytest.mark.parametrize("seed", range(20))
def test_a_new_partition_is_missed_after_a_power_loss_not_forgotten(seed: int) -> None:
    """Its replica was elected with an empty log, and the others cut theirs."""
    disk = SimDisk(World(str(seed)), "m")
    disk.writes_back = False
    before = disk.of_process()
    make_durable(before, HOME)
    owner = LogOwner(lambda *_: None, lambda *_: None, random.Random(0))
    create_log(TopicPartition("orders", 0), f"{HOME}/orders-0", LogConfig(), before, owner)
    disk.lose_power()
    assert disk.of_process().list_dir(HOME) == ["orders-0"]
