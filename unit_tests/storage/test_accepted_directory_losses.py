"""Tests of log directories whose loss the operator accepts: the loss is recorded until their
replicas have stepped aside."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from unit_tests.storage.test_directories import spread
from unit_tests.storage.test_manager import A, B, Host, existing, make
from unit_tests.storage.test_moves import begin, swapped, unmount


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    host = Host(tmp_path)
    host.directories = [str(tmp_path / name) for name in ("data", "more", "last")]
    yield host
    host.release()


@pytest.mark.parametrize("is_all", [False, True])
def test_an_accepted_loss_is_recorded_until_its_replicas_have_stepped_aside(
    host: Host, is_all: bool
) -> None:
    """If the broker is killed before its replicas have stepped aside, they step aside at its next
    start."""
    spread(host)
    host.managers[-1].unlock()
    lost = host.directories if is_all else host.directories[1:2]
    for path in lost:
        shutil.rmtree(path)
    Path(lost[0]).mkdir()
    holder = Path(host.directories[0])
    (holder / "pybroker.accept-loss").write_text("\n".join(lost))
    for _ in range(2):
        manager = host.manager()
        manager.start(1, "cluster-A", expects_data=True)
        assert manager.gave_up and manager.log(B) is None
        manager.unlock()
    manager = host.manager()
    manager.start(1, "cluster-A", expects_data=True)
    manager.record_incarnation(1)
    manager.unlock()
    manager = host.manager()
    manager.start(1, "cluster-A", expects_data=True)
    assert not manager.gave_up and not manager.lost_directories


def test_a_log_whose_newer_copy_is_lost_is_served_by_a_broker_that_steps_aside(
    host: Host,
) -> None:
    """The log may lack records of the copy. The broker also steps aside if it is killed before the
    first attempt."""
    del host.directories[2]
    manager = host.start()
    make(manager, count=40)
    swapped(manager, begin(host, manager))
    host.managers[-1].unlock()
    unmount(host, 1)
    lost = host.directories.pop()
    (host.data / "pybroker.accept-loss").write_text(f"{lost}\n")
    for _ in range(2):
        manager = host.start()
        assert existing(manager).failure is None
        assert manager.accepted_losses == {A}
        manager.unlock()
    host.start().record_incarnation(1)
    assert not list(host.data.glob("*/pybroker.mov*"))
    assert host.kill().accepted_losses == frozenset()
