"""Whole runs: the same seed gives the same trace, wherever and whenever it runs."""

from __future__ import annotations

import pytest

from pybroker.testing.simulation.broker_log import explained_by
from pybroker.testing.simulation.run import (
    _ANSWER_S_MAX,
    _RECOVERY_S_MAX,
    _config,
    _load,
    simulate,
)
from pybroker.testing.simulation.schedule import Options, parse
from pybroker.testing.simulation.swarm import generate
from pybroker.testing.simulation.workload.options import PRODUCER_OPTIONS
from unit_tests.simulation.processes import output_of

SEEDS = ("2", "3", "7")
"""The last one has a group of consumers."""
PROGRAM = """
import sys
from pybroker.testing.simulation.run import simulate
from pybroker.testing.simulation.swarm import generate
print(*(simulate(generate(seed)).digest for seed in sys.argv[1:]))
"""


def digests(hash_seed: str, *seeds: str) -> list[str]:
    """Of runs in another process, with another order of everything that is hashed."""
    return output_of(PROGRAM, *seeds, hash_seed=hash_seed).split()


def test_a_connection_that_is_half_gone_is_given_up_in_time() -> None:
    """First by brokers, then by producers for what they had for a topic that is gone."""
    delivery_s = PRODUCER_OPTIONS["delivery_timeout_ms"] / 1000
    assert _ANSWER_S_MAX + delivery_s < _RECOVERY_S_MAX
    config = _config(Options())
    for name in ("controller.socket.timeout.ms", "replica.socket.timeout.ms"):
        assert config[name] == 1000 * _ANSWER_S_MAX


def test_followers_whose_leader_has_lost_their_connections_are_back_in_time() -> None:
    """They wait for an answer that nobody owes them, and the leader has nobody else in sync."""
    options = "option partitions 1\noption producers 1\noption readers 0\n"
    result = simulate(parse(f"seed 1\n{options}2 half-open leader/0\n"))
    assert result.is_clean, result.report()
    assert result.counters["fault_half-open"] == 1
    assert result.counters["virtual_ms"] < 20_000


def test_the_same_seed_gives_the_same_run_in_every_process_and_after_other_runs() -> None:
    here = [simulate(generate(seed)).digest for seed in SEEDS]
    assert len(set(here)) == len(SEEDS)
    assert digests("1", *SEEDS) == here
    assert digests("2", *reversed(SEEDS)) == here[::-1]


def test_who_is_in_a_hurry_ends_with_the_first_broken_invariant() -> None:
    text = "seed 7\noption faults_s 3\n1 kill leader/0 until=1.05\n"
    schedule = parse(text).with_options(planted="no-epoch-truncation", records_per_s=30.0)
    whole, hurried = simulate(schedule), simulate(schedule, hurries=True)
    assert hurried.rules & {"committed-kept", "high-watermark-covered"}
    assert hurried.rules <= whole.rules
    assert hurried.counters["virtual_ms"] < whole.counters["virtual_ms"]
    clean = schedule.with_options(planted="")
    assert simulate(clean, hurries=True).digest == simulate(clean).digest


def test_a_trace_that_is_kept_changes_nothing_and_shows_everything() -> None:
    schedule = parse("seed 5\noption faults_s 2\n0.5 kill leader/0 until=1\n")
    kept = simulate(schedule, keep_trace=True)
    assert kept.violations == ()
    assert kept.digest == simulate(schedule).digest
    text = "\n".join(kept.trace)
    assert "fault: 0.5 kill leader/0 until=1" in text
    assert "INFO pybroker" in text
    assert kept.counters["fault_kill"] == 1
    assert kept.counters["acked"] > 20


@pytest.mark.parametrize("offsets_in_log", [0, 1])
def test_groups_read_everything_past_the_death_of_their_coordinator(offsets_in_log: int) -> None:
    options = f"option groups 2\noption offsets_in_log {offsets_in_log}\noption partitions 3\n"
    faults = "1 kill coordinator/0 until=2\n2.5 pause coordinator/1 until=6.5\n"
    result = simulate(parse(f"seed 1\n{options}{faults}"))
    assert result.is_clean, result.report()
    counters = result.counters
    assert counters["fault_kill"] == counters["fault_pause"] == 1
    assert counters["processed"] >= 2 * counters["acked"]
    assert counters["committed"] > 10
    assert counters["generations"] > 2


def test_batches_fit_into_segments_however_long_nobody_could_send() -> None:
    """They grow while too few are in sync; a batch that is larger than a segment is refused."""
    options = "segment_bytes 4096", "records_per_s 60", "linger_ms 30", "partitions 1", "readers 0"
    text = "".join(f"option {each}\n" for each in options)
    for seed in (7, 8, 10):
        result = simulate(parse(f"seed {seed}\n{text}0.5 kill 1 until=4\n0.5 kill 2 until=4\n"))
        assert result.violations == ()
        assert result.counters["acked"] == result.counters["sent"]


def test_a_broker_tells_of_losses_where_unclean_elections_are_allowed_only() -> None:
    line = "ERROR pybroker.replication.shortening loss_receipt partition=load-0-0"
    assert explained_by(["power"], is_lossy=True).search(line)
    assert not explained_by(["power"]).search(line)


def test_a_follower_complains_of_bent_batches_where_bits_were_bent_only() -> None:
    """Nobody else has what the leader's log had there, so that it leads on."""
    line = "ERROR pybroker.replication.fetcher copying pauses partition=t-0 error=CORRUPT_MESSAGE"
    assert explained_by(["flip"]).search(line)
    assert not explained_by(["wipe", "power", "sync-error", "disk-full"]).search(line)


def test_no_batch_is_larger_than_a_segment() -> None:
    """A producer that was behind after a full disk filled its batches, and all were refused."""
    load = _load(Options(segment_bytes=4_096, batch_bytes=16_384))
    assert load.batch_bytes < 4_096
