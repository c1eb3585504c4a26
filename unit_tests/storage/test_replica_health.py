"""Tests of the health of replicas: every event in every health, and events that come too late."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from pybroker.errors import BrokerError, IllegalMove
from pybroker.model import TopicPartition
from pybroker.storage.files import SystemDisk
from pybroker.storage.log_parts import Damage
from pybroker.storage.replica_health import Event, Health, ReplicaHealth
from unit_tests.storage.test_manager import A, Host, existing, make
from unit_tests.storage.test_moves import begin, copy_all, finish

T0: Final = TopicPartition("t", 0)
DAMAGE: Final = Damage(7, "/d/t-0/00.log", 99, "wrong checksum")
LETTERS: Final = dict(zip("WSDRCNEBG", Health, strict=True))
TRUTH: Final = """
WSDRCNEBG
S........ UNSYNCED
DD..BBB.. CORRUPT
GGGGGGGGG LOST
C..C....C COPY_BEGUN
....WWWD. COMPLETE
......N.. FOLLOWS
....NEEB. ORPHANED
..R....R. STEPPED_ASIDE
..W....C. DISMISSED
.W....... IN_SYNC
"""
"""For each event the health that follows each health of the first line; a dot is illegal."""
FIRST: Final = {
    Health.WHOLE: (),
    Health.SUSPECT: (Event.UNSYNCED,),
    Health.DAMAGED: (Event.CORRUPT,),
    Health.REPLACEABLE: (Event.CORRUPT, Event.STEPPED_ASIDE),
    Health.COPYING: (Event.COPY_BEGUN,),
    Health.RESIGNED: (Event.COPY_BEGUN, Event.ORPHANED),
    Health.ELECTABLE: (Event.COPY_BEGUN, Event.ORPHANED, Event.ORPHANED),
    Health.DAMAGED_COPY: (Event.COPY_BEGUN, Event.CORRUPT),
    Health.GONE: (Event.LOST,),
}
"""Health -> events by which a new replica gets it."""


def replica(health: Health) -> ReplicaHealth:
    """Return a broker's replicas with the one of T0 in this health."""
    made = ReplicaHealth(SystemDisk())
    for event in FIRST[health]:
        made.move(T0, event, damage=DAMAGE if event is Event.CORRUPT else None)
    assert made[T0] is health
    return made


def cells() -> Iterator[tuple[Health, Event, Health | None]]:
    rows = [line.split() for line in TRUTH.splitlines()[2:]]
    assert [name for _, name in rows] == [each.name for each in Event]
    for letters, name in rows:
        for before, letter in zip(Health, letters, strict=True):
            yield before, Event[name], LETTERS.get(letter)


@pytest.mark.parametrize(("before", "event", "after"), [*cells()])
def test_every_event_moves_each_health_as_the_table_says(
    before: Health, event: Event, after: Health | None
) -> None:
    health = replica(before)
    assert health.allows(T0, event) is (after is not None)
    if after is None:
        with pytest.raises(IllegalMove, match=before.value):
            health.move(T0, event)
        after = before
    else:
        assert health.move(T0, event, before)
    assert health[T0] is after
    assert [each for each in Health if T0 in health.having(each)] == (
        [] if after is Health.WHOLE else [after]
    )
    if after not in (Health.DAMAGED, Health.REPLACEABLE, Health.DAMAGED_COPY):
        assert not health.damage


@pytest.mark.parametrize("before", Health)
def test_a_deleted_replica_is_forgotten_with_its_damage(before: Health) -> None:
    health = replica(before)
    health.forget(T0)
    assert health[T0] is Health.WHOLE
    assert not health.having(*Health)
    assert not health.damage


def test_a_late_event_moves_nothing() -> None:
    """A disk failed while the broker decided about the replica."""
    health = replica(Health.DAMAGED)
    assert health.damage == {T0: DAMAGE}
    health.move(T0, Event.LOST)
    assert not health.move(T0, Event.STEPPED_ASIDE, Health.DAMAGED)
    assert health[T0] is Health.GONE


@pytest.mark.parametrize("before", Health)
def test_only_a_complete_replica_may_lead(before: Health) -> None:
    health = replica(before)
    health.require_complete(T0, is_copied=True)
    if health.allows(T0, Event.COMPLETE):
        with pytest.raises(BrokerError, match="is incomplete"):
            health.require_complete(T0, is_copied=False)
    else:
        health.require_complete(T0, is_copied=False)


@pytest.mark.parametrize("completes", ["never", "before the swap", "after the swap"])
def test_an_incomplete_replica_that_moves_stays_incomplete(tmp_path: Path, completes: str) -> None:
    host = Host(tmp_path)
    host.directories = [str(tmp_path / name) for name in ("data", "more")]
    manager = host.start()
    manager.health.mark_incomplete(make(manager).directory)
    manager = host.kill()
    move = begin(host, manager)
    copy_all(move)
    move.rename()
    if completes == "before the swap":
        manager.health.complete(existing(manager))
    finish(manager, move)
    if completes == "after the swap":
        manager.health.complete(existing(manager))
    expected = Health.COPYING if completes == "never" else Health.WHOLE
    assert manager.health[A] is expected
    assert host.kill().health[A] is expected
    host.release()
