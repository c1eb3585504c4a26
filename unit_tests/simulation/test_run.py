"""Tests of whole runs: the same seed always gives the same trace, faults occur, and clients
work.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from pybroker.testing.simulation.broker_log import explained_by
from pybroker.testing.simulation.kinds import BY_NAME, KINDS, Kind, Target
from pybroker.testing.simulation.run import simulate
from pybroker.testing.simulation.schedule import parse
from pybroker.testing.simulation.swarm import generate
from unit_tests.sources import ROOT

SEEDS = ("2", "48")
"""Seeds for the comparison of runs. The second seed has every kind of producer, a consumer group,
killed clients, and changing topics.
"""
PROGRAM = """
import sys
from pybroker.testing.simulation.run import simulate
from pybroker.testing.simulation.swarm import generate
print(*(simulate(generate(seed)).digest for seed in sys.argv[1:]))
"""


def digests_elsewhere(*seeds: str) -> list[str]:
    """Return the digests of runs in another process, with another hash seed."""
    hash_seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, *seeds],
        env={"PYTHONHASHSEED": hash_seed, "PYTHONPATH": ":".join(sys.path)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout.split()


def test_followers_whose_leader_has_lost_their_connections_are_back_in_time() -> None:
    """The followers wait for answers on lost connections, and the leader has no other follower in
    sync.
    """
    options = "option partitions 1\noption producers 1\noption readers 0\n"
    result = simulate(parse(f"seed 1\n{options}2 half-open leader/0\n"))
    assert result.is_clean, result.report()
    assert result.counters["fault_half-open"] == 1
    assert result.counters["virtual_ms"] < 20_000


def test_the_same_seed_gives_the_same_run_in_every_process_and_after_other_runs() -> None:
    here = [simulate(generate(seed)).digest for seed in SEEDS]
    assert len(set(here)) == len(SEEDS)
    assert digests_elsewhere(*reversed(SEEDS)) == here[::-1]


def test_a_kept_trace_does_not_change_the_run_and_has_all_events() -> None:
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
def test_groups_read_all_records_after_the_kill_of_their_coordinator(offsets_in_log: int) -> None:
    options = f"option groups 2\noption offsets_in_log {offsets_in_log}\noption partitions 3\n"
    faults = "1 kill coordinator/0 until=2\n2.5 pause coordinator/1 until=6.5\n"
    result = simulate(parse(f"seed 1\n{options}{faults}"))
    assert result.is_clean, result.report()
    counters = result.counters
    assert counters["fault_kill"] == counters["fault_pause"] == 1
    assert counters["processed"] >= 2 * counters["acked"]
    assert counters["committed"] > 10
    assert counters["generations"] > 2


TARGETS = {
    Target.BROKER: "leader/0",
    Target.PAIR: "leader/0>follower/0",
    Target.ALL: "all",
    Target.ZOOKEEPER: "zk/1",
    Target.ENSEMBLE: "zk",
}
SMALL = "seed 1\noption faults_s 3\noption partitions 1\noption producers 1\noption readers 0\n"


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: str(kind.name))
def test_each_kind_of_fault_is_applied_and_breaks_no_rule(kind: Kind) -> None:
    """A fault without an effect would let every seed pass."""
    extra = "option flush 1\n" if kind.target is Target.ALL else ""
    target = "coordinator/0" if kind.needs_groups else TARGETS[kind.target]
    extra += "option groups 1\n" if kind.needs_groups else ""
    extra += "option log_dirs 2\n" if kind.needs_directories else ""
    result = simulate(parse(f"{SMALL}{extra}1 {kind.name} {target} until=2.5\n"))
    assert result.is_clean, result.report()
    assert result.counters[f"fault_{kind.name}"] == 1


def test_brokers_may_report_losses_only_if_unclean_elections_are_allowed() -> None:
    line = "ERROR pybroker.replication.truncation loss receipt partition=load-0-0"
    assert explained_by(["power"], is_lossy=True).search(line)
    assert not explained_by(["power"]).search(line)


def test_followers_may_report_damaged_batches_only_after_bit_flips() -> None:
    """No other replica has the damaged part of the leader's log, so that the leader stays
    leader.
    """
    line = "ERROR pybroker.replication.fetcher copying pauses partition=t-0 error=CORRUPT_MESSAGE"
    assert explained_by(["flip"]).search(line)
    assert not explained_by(["wipe", "power", "sync-error", "disk-full"]).search(line)


def test_each_explained_error_is_a_text_of_the_code() -> None:
    """Otherwise a reworded log line of a broker would count as an unexplained error."""
    code = "\n".join(
        path.read_text()
        for folder in ("pybroker", "coordinator")
        for path in (ROOT / folder).rglob("*.py")
        if "testing" not in path.relative_to(ROOT).parts
    )
    texts = explained_by(BY_NAME, is_lossy=True).pattern.split("|")
    starts = [text.partition(" .*")[0] for text in texts]
    assert [start for start in starts if start not in code] == []


@pytest.mark.parametrize("offsets_in_log", [0, 1])
def test_transactions_survive_the_kills_of_their_coordinators(offsets_in_log: int) -> None:
    options = f"option writers 1\noption loops 1\noption offsets_in_log {offsets_in_log}\n"
    faults = (
        "1 kill transactions/0 until=2\n2.5 kill coordinator/0 until=4\n4 pause leader/0 until=8\n"
    )
    result = simulate(parse(f"seed 1\n{options}{faults}"))
    assert result.is_clean, result.report()
    counters = result.counters
    assert counters["fault_kill"] == 2
    assert counters["transactions"] >= 10
    assert counters["producer_epochs"] >= 5  # producers were replaced
    assert counters["committed"] >= 5  # offsets in transactions
