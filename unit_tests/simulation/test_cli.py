"""Tests of the simulation's command line, with a fake `simulate` that returns at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import click
import psutil
import pytest
from click.testing import CliRunner
from click.testing import Result as Outcome

from pybroker.testing.simulation import many
from pybroker.testing.simulation.cli import command
from pybroker.testing.simulation.result import Result, wrong
from pybroker.testing.simulation.run import simulate
from pybroker.testing.simulation.schedule import Schedule, ScheduleError, parse
from pybroker.testing.simulation.swarm import generate
from unit_tests.patience import MOMENT_S, PATIENCE_S, wait_until
from unit_tests.simulation import __main__ as mutants_command
from unit_tests.simulation.__main__ import MEANINGS


def fake(schedule: Schedule, *, keep_trace: bool = False, stop_early: bool = False) -> Result:
    """Return a result that fails for every seventh seed if the schedule kills a broker while
    another broker is paused.
    """
    kinds = {event.kind for event in schedule.events}
    is_bad = {"kill", "pause"} <= kinds or schedule.seed.endswith("7")
    violations = (wrong("toy-rule", "killed and paused"),) if is_bad else ()
    trace = ("0.0 begins", "1.0 ends") if keep_trace else ()
    return Result(schedule, "00000000-2", violations, {"records": 5}, 0.25, trace)


def run(*words: str) -> Outcome:
    return CliRunner().invoke(command(fake, MEANINGS), list(words), standalone_mode=False)


def test_each_failure_is_reported_with_its_replay_command() -> None:
    outcome = run("--seeds", "20", "--processes", "1", "--planted", "no-fetch-fencing")
    assert outcome.return_value == 1
    assert "seed 7: toy-rule 1 (trace 00000000-2, 0.2 s)\n  toy-rule: killed" in outcome.output
    again = "  again: python -m unit_tests.simulation run --seed 17 --planted no-fetch-fencing\n"
    assert again in outcome.output


def test_several_processes_run_the_same_seeds() -> None:
    one = run("--seeds", "6", "--processes", "1")
    several = run("--seeds", "6", "--processes", "2")
    assert one.return_value == several.return_value == 0
    for outcome in (one, several):
        last = outcome.output.splitlines()[-1]
        assert last.startswith("6 seeds, 0 failed, 4.00 seeds/s a core, ")


def test_progress_is_reported_while_the_first_seed_still_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(many, "TELL_S", MOMENT_S)
    lines: list[str] = []
    is_told = threading.Event()

    def tell(line: str) -> None:
        lines.append(line)
        is_told.set()

    def runs_until_told(schedule: Schedule) -> Result:
        assert is_told.wait(PATIENCE_S)
        return fake(schedule)

    many.run_many([generate("1")], runs_until_told, tell, processes=1)
    assert lines[0].startswith("... 0 seeds, 0 failed, ")
    assert lines[-1].startswith("1 seeds, 0 failed, ")


def test_a_schedule_from_a_file_is_run_unchanged(tmp_path: Path) -> None:
    file = tmp_path / "schedule"
    file.write_text("seed 5\n1 kill 1 until=2\n1 pause 2 until=3\n")
    assert run("--schedule", str(file)).return_value == 1
    file.write_text("seed 5\n1 kill 1 until=2\n")
    assert run("--schedule", str(file)).return_value == 0
    assert run("--schedule", str(file), "--seed", "17").return_value == 1


def test_a_failure_is_shrunk_to_a_schedule_that_can_be_run(tmp_path: Path) -> None:
    file = tmp_path / "schedule"
    noise = "".join(f"{at / 10} reset 1\n" for at in range(20))
    file.write_text(f"seed 5\n{noise}1.125 kill 1 until=2.5\n1.5 pause 2 until=3\n")
    outcome = run("--schedule", str(file), "--shrink")
    assert outcome.return_value == 1
    _, _, text = outcome.output.partition("with --schedule FILE:\n")
    schedule = parse(text)
    assert [event.kind for event in schedule.events] == ["kill", "pause"]
    assert not fake(schedule).is_clean


def test_rates_count_the_seeds_that_find_each_planted_bug(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rates(*given: str) -> list[str]:
        outcome = CliRunner().invoke(mutants_command.rates, [*given, *words])
        assert outcome.exit_code == 0, outcome.output
        return outcome.output.splitlines()

    monkeypatch.setattr(mutants_command, "simulate_mutant", fake)
    words = ("--processes", "1", "--file", str(tmp_path / "rates"))
    rates("--seeds", "1", "--first", "7")
    lines = rates("--seeds", "2", "--first", "6")
    for line, name in zip(lines[-len(MEANINGS) :], MEANINGS, strict=True):
        assert line.startswith(f"{name:34}     2     1  50.00%")


def test_a_schedule_with_a_planted_bug_is_refused_without_mutants(tmp_path: Path) -> None:
    file = tmp_path / "schedule"
    file.write_text("seed 5\noption planted no-fetch-fencing\n1 kill 1 until=2\n")
    assert run("--schedule", str(file)).return_value == 0
    plain = CliRunner().invoke(command(fake), ["--schedule", str(file)])
    assert plain.exit_code == 1
    assert "unknown mutant no-fetch-fencing" in plain.output
    with pytest.raises(ScheduleError, match="no-fetch-fencing"):
        simulate(parse(file.read_text()))


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--planted", "rust"], "unknown mutant rust; the mutants are\n  no-epoch-truncation:"),
        (["--trace", "x"], "--trace needs a single run"),
        (["--schedule", "no-such-file"], "no-such-file: "),
    ],
)
def test_invalid_arguments_are_refused_with_the_reason(words: list[str], why: str) -> None:
    outcome = run(*words)
    assert isinstance(outcome.exception, click.ClickException)
    assert why in outcome.exception.format_message()


def test_a_terminated_run_leaves_no_process_behind() -> None:
    words = ("-m", "pybroker.testing.simulation", "--seeds", "100000", "--processes", "2")
    with subprocess.Popen(
        [sys.executable, *words],
        env={**os.environ, "PYTHONPATH": ":".join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as run:
        process = psutil.Process(run.pid)
        # Including the resource tracker.
        wait_until(lambda: len(process.children(recursive=True)) == 3, what="two processes")
        at_work = process.children(recursive=True)
        run.send_signal(signal.SIGTERM)
        run.communicate(timeout=PATIENCE_S)
    assert run.returncode == 1
    _, alive = psutil.wait_procs(at_work, timeout=PATIENCE_S)
    assert not alive
