"""Tests of each condition of `/readyz`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pybroker.admin.readiness import conditions
from pybroker.admin.view import BrokerView, Phase
from pybroker.config.broker_config import BrokerConfig
from pybroker.errors import StorageError
from pybroker.model import TopicPartition
from pybroker.ports import SessionEvent
from pybroker.records.batch import read_header
from pybroker.storage.log_parts import Damage
from pybroker.storage.replica_health import Event
from unit_tests.admin.vocabulary import Shown
from unit_tests.replication.vocabulary import ME, T0, facts
from unit_tests.storage.batches import batch, marker


async def faults(view: BrokerView) -> dict[str, str]:
    """Return the reason of each failed condition."""
    return {each.name: each.fault for each in await conditions(view) if not each.holds}


def _session(event: SessionEvent) -> Callable[[Shown], None]:
    return lambda shown: shown.session.heard(event)


def _unregister(shown: Shown) -> None:
    shown.registered = False


def _forget_controller(shown: Shown) -> None:
    shown.controller.controller_id = None


def _stop(shown: Shown) -> None:
    shown.view.phase = Phase.STOPPING


def _fill(shown: Shown) -> None:
    shown.full = ["/disks/2"]


def _bend(shown: Shown) -> None:
    """Report a corrupt range that was found while the log is in use. The log itself is not marked
    as damaged yet."""
    damage = Damage(7, "/d/t-0/00.log", 99, "wrong checksum")
    shown.replicas.logs.health.move(T0, Event.CORRUPT, damage=damage)


def _not_told_of_us(shown: Shown) -> None:
    shown.knows(brokers=(2,))


BROKEN: dict[str, tuple[Callable[[Shown], None], str, str]] = {
    "it stops": (_stop, "started", "stopping"),
    "the connection is lost": (_session(SessionEvent.SUSPENDED), "zookeeper_session", "suspended"),
    "the session expired": (_session(SessionEvent.EXPIRED), "zookeeper_session", "expired"),
    "it is not registered": (_unregister, "registered", "broker 1"),
    "the cluster does not know it": (_not_told_of_us, "registered", "controller"),
    "there is no controller": (_forget_controller, "controller", "no controller"),
    "a disk is full": (_fill, "log_directories", "/disks/2 is full"),
    "a log has a hole": (_bend, "replicas", "t-0 is damaged from offset 7 in /d/t-0/00.log"),
}


async def test_a_broker_whose_replicas_are_in_sync_is_ready(shown: Shown) -> None:
    others = facts(TopicPartition("t", 9), leader=2, isr=(2,))
    await shown.hosts(facts(), facts(TopicPartition("t", 1), isr=(ME, 2)), others)
    assert await faults(shown.view) == {}
    assert len(await conditions(shown.view)) == 7


@pytest.mark.parametrize(("breaks", "condition", "word"), BROKEN.values(), ids=BROKEN)
async def test_only_the_failed_condition_is_reported(
    shown: Shown, breaks: Callable[[Shown], None], condition: str, word: str
) -> None:
    await shown.hosts(facts())
    breaks(shown)
    found = await faults(shown.view)
    assert list(found) == [condition] and word in found[condition]


async def test_reconnected_session_is_alive(shown: Shown) -> None:
    await shown.hosts(facts())
    for event in (SessionEvent.SUSPENDED, SessionEvent.RECONNECTED):
        shown.session.heard(event)
    assert await faults(shown.view) == {}
    assert (shown.session.disconnected, shown.session.expired) == (1, 0)


async def test_a_replica_that_is_not_open_is_named(shown: Shown) -> None:
    shown.knows(facts(TopicPartition("orders", 3)))
    assert "orders-3 is not open" in (await faults(shown.view))["replicas"]


async def test_replica_out_of_sync_is_named(shown: Shown) -> None:
    await shown.hosts(facts(leader=2, isr=(2,), replicas=(ME, 2)))
    assert await faults(shown.view) == {"replicas": "t-0 is not in sync"}


async def test_reason_of_a_replica_out_of_sync_is_named(shown: Shown) -> None:
    fresh = TopicPartition("t", 1)
    await shown.hosts(
        *(facts(key, leader=2, isr=(2,), replicas=(ME, 2)) for key in (T0, fresh)),
    )
    shown.replicas.logs.health.move(T0, Event.UNSYNCED)
    shown.replicas.logs.health.move(fresh, Event.COPY_BEGUN)
    assert (await faults(shown.view))["replicas"] == (
        "t-0 is not in sync: it may have lost records in a power loss;"
        " t-1 is not in sync: it replicates the whole log again"
    )


async def test_follower_that_rejoined_the_isr_is_ready(shown: Shown) -> None:
    behind = facts(leader=2, isr=(2,), replicas=(ME, 2))
    await shown.hosts(behind)
    shown.knows(facts(leader=2, isr=(2, ME), replicas=(ME, 2)))
    assert await faults(shown.view) == {}
    shown.knows(behind)
    assert await faults(shown.view) == {"replicas": "t-0 is not in sync"}


async def test_newer_leader_epoch_counts_before_the_metadata_update(shown: Shown) -> None:
    await shown.hosts(facts(leader=2, epoch=1, isr=(2,), replicas=(ME, 2)))
    shown.knows(facts(leader=2, epoch=0, isr=(2, ME), replicas=(ME, 2)))
    assert await faults(shown.view) == {"replicas": "t-0 is not in sync"}


async def test_replica_in_a_failed_log_directory_is_named(shown: Shown) -> None:
    await shown.hosts(facts())
    shown.replicas.partition().log.fail(StorageError("sync: input/output error"))
    assert "t-0 has a failed log directory" in (await faults(shown.view))["replicas"]


async def test_many_faults_are_counted(shown: Shown) -> None:
    shown.knows(*(facts(TopicPartition("t", number)) for number in range(2500)))
    fault = (await faults(shown.view))["replicas"]
    assert fault.count("is not open") == 5 and fault.endswith("and 2495 more")


@pytest.mark.parametrize("phase", [Phase.STARTING, Phase.RECOVERING])
async def test_starting_broker_is_not_ready(tmp_path: Path, phase: Phase) -> None:
    view = BrokerView(BrokerConfig(), phase)
    assert await faults(view) == {"started": f"the broker is {phase.name.lower()}"}


async def test_partition_whose_last_stable_offset_stands_still_is_named(shown: Shown) -> None:
    """The last stable offset has not moved for longer than transaction.max.timeout.ms. By then a
    coordinator would have aborted the transaction."""
    await shown.hosts(facts())
    clock, partition = shown.replicas.clock, shown.replicas.partition()
    data = batch(producer=7, sequence=0, transactional=True)
    now_ms = clock.wall_ms()
    partition.append(memoryview(data), read_header(data), acks=1, now_ms=now_ms)
    clock.advance(900)
    assert await faults(shown.view) == {}
    clock.advance(1)
    assert (await faults(shown.view))["transactions"] == (
        "t-0 has had the last stable offset 0 for 901 s: a transaction is hanging"
    )
    end = marker(7, commit=False)
    partition.append(memoryview(end), read_header(end), acks=1, now_ms=clock.wall_ms())
    assert await faults(shown.view) == {}
