"""Fault tests with flipped bits and torn tails: a damaged replica is not elected, but copied again
from an undamaged replica.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration_tests.faults import flips
from integration_tests.faults.rig import Rig, Run
from integration_tests.faults.tormented import Tormented
from pybroker.storage.filename import HIGH_WATERMARKS, LEADER_EPOCHS, RECOVERY_POINTS
from unit_tests.patience import wait_until

pytestmark = pytest.mark.ours

CONFIG = {
    "pybroker.log.scrub.interval.ms": 1000,
    "pybroker.log.scrub.io.max.bytes.per.second": 64 * 1024**2,
    "replica.high.watermark.checkpoint.interval.ms": 1000,
}
BATCHES_MIN = 5
"""The minimum number of batches of a segment in which the test damages a batch that is neither the
first nor the last.
"""
EXPLAINED = ["log damaged", "is damaged from offset", "copying pauses .* error=KAFKA_STORAGE_ERROR"]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tormented]:
    with Tormented(tmp_path_factory.mktemp("damage"), config=CONFIG) as started:
        yield started


def folder(run: Run, broker: int, partition: int) -> Path:
    return run.cluster.log_dir(broker) / f"{run.topic}-{partition}"


def wait_for_line(run: Run, broker: int, pattern: str) -> None:
    """Wait until the broker has logged a line with a match of the pattern since the run began."""
    wait_until(
        lambda: any(re.search(pattern, line) for line in run.rig.new_lines(broker)),
        what=f"broker {broker} prints {pattern}",
    )


def assert_copied_anew(run: Run, broker: int, partition: int) -> None:
    """Check that the damage was detected, that the replica left the ISR and was copied again, and
    that it did not lead in between.
    """
    name = f"{run.topic}-{partition}"
    wait_for_line(run, broker, f"copy complete partition={name} ")
    lines = run.rig.new_lines(broker)
    story = (
        f"log damaged .*{name}",
        f"replica steps aside partition={name} reason=damaged",
        f"log renamed to stray partition={name} path=.*-damaged-stray",
        f"copy complete partition={name} ",
    )
    places = [
        max(place for place, line in enumerate(lines) if re.search(pattern, line))
        for pattern in story
    ]
    assert places == sorted(places), [lines[place] for place in places]
    led = [line for line in lines[places[1] : places[-1]] if f"={name} role=leader" in line]
    assert not led, led


def closed(run: Run, broker: int, partition: int) -> list[Path]:
    """Return the closed segments, oldest first, without segments of a slow moment, in which
    producers send only a few large batches.
    """
    found = flips.segments(folder(run, broker, partition))[:-1]
    return [path for path in found if len(flips.batches(path)) >= BATCHES_MIN]


def wait_for_closed_segments(run: Run, broker: int, count: int) -> None:
    wait_until(
        lambda: all(len(closed(run, broker, p)) >= count for p in range(4)),
        what=f"every partition of broker {broker} has {count} closed segments",
    )


def test_flipped_bits_while_a_broker_is_down(cluster: Tormented, tmp_path: Path) -> None:
    rig = Rig(cluster.fit(), tmp_path)
    with rig.run("bit-flips", rate=200, configs={"segment.bytes": "16384"}) as run:
        victim = run.leader()
        wait_for_closed_segments(run, victim, 3)
        with run.fault("flip-batches", victim):
            cluster.kill9(victim)
            flips.flip_in_batch(latest(run, victim, 0), flips.in_body)
            flips.flip_in_batch(latest(run, victim, 1), flips.in_length)
            # Below the recovery point: the start does not read there.
            flips.flip_in_batch(closed(run, victim, 2)[1], flips.in_body, 2)
        cluster.start(victim)
        for partition in (0, 1, 2):
            assert_copied_anew(run, victim, partition)
        run.wait_for_full_isr()
        victim = run.leader(3)
        with run.fault("flip-what-can-be-made-again", victim):
            cluster.kill9(victim)
            flips.flip(closed(run, victim, 0)[1].with_suffix(".index"), 7, 3)
            flips.flip(closed(run, victim, 1)[1].with_suffix(".timeindex"), 6, 2)
            snapshot = max(folder(run, victim, 2).glob("*.snapshot"))
            flips.flip(snapshot, snapshot.stat().st_size // 2)
            # Where a leader was lost there are two epochs: the start of an only epoch is the log
            # start.
            epochs = folder(run, victim, 3) / LEADER_EPOCHS
            flips.flip(epochs, epochs.stat().st_size - 2)
        cluster.start(victim)
        run.wait_for_full_isr()
        wait_for_line(run, victim, f"leader epochs taken from the batches .*{run.topic}-3")
        for name in (HIGH_WATERMARKS, RECOVERY_POINTS):
            victim = run.leader()
            with run.fault(f"flip-{name}", victim):
                cluster.kill9(victim)
                flips.flip_in_text(cluster.log_dir(victim) / name, f"{run.topic} 0 ")
            cluster.start(victim)
            run.wait_for_full_isr()
        run.finish(stop=True, allowed_errors=EXPLAINED)


def latest(run: Run, broker: int, partition: int) -> Path:
    """Return the last segment with a batch that is followed by other batches."""
    found = flips.segments(folder(run, broker, partition))
    return [path for path in found if len(flips.batches(path)) >= BATCHES_MIN][-1]


def active(run: Run, broker: int, partition: int) -> Path:
    return flips.segments(folder(run, broker, partition))[-1]


def test_torn_tails(cluster: Tormented, tmp_path: Path) -> None:
    """The tail of a log is cut short, or followed by zeros or garbage: the broker drops only the
    unfinished write.
    """
    rig = Rig(cluster.fit(), tmp_path)
    with rig.run("torn-and-zeroed-tails") as run:
        for round_ in range(2):
            run.wait_for_progress(20)
            victim = run.leader(round_)
            with run.fault("tear", victim):
                cluster.kill9(victim)
                for partition in range(4):
                    tear(active(run, victim, partition), (partition + round_) % 4)
            cluster.start(victim)
            run.wait_for_full_isr()
            torn = [line for line in rig.new_lines(victim) if "torn tail cut" in line]
            assert len([line for line in torn if run.topic in line]) >= 3, torn
        for broker in cluster.brokers:
            assert not [line for line in rig.new_lines(broker) if "log damaged" in line]
        run.finish(allowed_errors=EXPLAINED)


def tear(path: Path, how: int) -> None:
    """Damage the tail of a log like a crash during the last write."""
    size = path.stat().st_size
    position, header = flips.batches(path)[-1]
    with path.open("r+b") as file:
        if how == 0:
            file.truncate(size - 1)
        elif how == 1:
            file.truncate(position + header.size // 2)
        elif how == 2:
            file.seek(size)
            file.write(bytes(4096))
        else:
            file.seek(size)
            file.write(b"\x00\x00\x00\x00\x00\x00\x0b\xad" * 100)


def test_a_flipped_bit_at_a_running_leader(cluster: Tormented, tmp_path: Path) -> None:
    """The leader detects the damage, another replica leads, and the old leader copies the lost
    records.
    """
    rig = Rig(cluster.fit(), tmp_path)
    with rig.run("bit-flip-in-a-live-leader", rate=200, configs={"segment.bytes": "16384"}) as run:
        leader = run.leader()
        wait_for_closed_segments(run, leader, 2)
        with run.fault("flip", leader):
            flips.flip_in_batch(closed(run, leader, 0)[0], flips.in_body, 2)
            run.leader(other_than=leader)
        assert_copied_anew(run, leader, 0)
        run.wait_for_full_isr()
        follower = next(iter({*cluster.brokers} - {run.leader(), leader}))
        with run.fault("flip", follower):
            flips.flip_in_batch(closed(run, follower, 0)[0], flips.in_length, 1)
            assert_copied_anew(run, follower, 0)
        run.wait_for_full_isr()
        run.finish(allowed_errors=EXPLAINED)
