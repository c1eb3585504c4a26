"""The command line of the simulation, over runs that are over at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import click
import psutil
import pytest
from click.testing import CliRunner
from click.testing import Result as Outcome

from pybroker.testing.simulation.cli import command
from pybroker.testing.simulation.result import Result, wrong
from pybroker.testing.simulation.schedule import Schedule, parse
from pybroker.testing.simulation.swarm import generate


def fake(schedule: Schedule, *, keep_trace: bool = False, hurries: bool = False) -> Result:
    """Fails where a broker is killed while another one pauses, in every seventh seed."""
    kinds = {event.kind for event in schedule.events}
    is_bad = {"kill", "pause"} <= kinds or schedule.seed.endswith("7")
    violations = (wrong("toy-rule", "killed and paused"),) if is_bad else ()
    trace = ("0.0 begins", "1.0 ends") if keep_trace else ()
    return Result(schedule, "00000000-2", violations, {"records": 5}, 0.25, trace)


def run(*words: str) -> Outcome:
    return CliRunner().invoke(command(fake), list(words), standalone_mode=False)


def test_clean_seeds_end_well() -> None:
    outcome = run("--seeds", "3", "--first", "11", "--processes", "1")
    assert outcome.return_value == 0
    assert outcome.output.startswith("3 seeds, 0 failed, 4.00 seeds/s a core, ")


def test_each_failure_is_told_with_the_line_that_shows_it_again() -> None:
    outcome = run("--seeds", "20", "--processes", "1", "--planted", "no-fetch-fencing")
    assert outcome.return_value == 1
    assert "seed 7: toy-rule 1 (trace 00000000-2, 0.2 s)\n  toy-rule: killed" in outcome.output
    again = "  again: python -m pybroker.testing.simulation --seed 17 --planted no-fetch-fencing\n"
    assert again in outcome.output


def test_several_processes_run_the_same_seeds() -> None:
    one = run("--seeds", "9", "--processes", "1").output.splitlines()
    several = run("--seeds", "9", "--processes", "2").output.splitlines()
    assert sorted(one[:-1]) == sorted(several[:-1])
    assert several[-1].startswith("9 seeds, ")


def test_time_that_is_over_begins_no_seed() -> None:
    outcome = run("--seeds", "1000", "--minutes", "0", "--processes", "1")
    assert outcome.return_value == 0
    assert outcome.output.startswith("0 seeds, ")


def test_one_seed_shows_its_schedule_and_keeps_its_trace(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    outcome = run("--seed", "17", "--trace", str(trace))
    assert outcome.return_value == 1
    assert str(generate("17")) in outcome.output
    assert outcome.output.endswith("records=5\n")
    assert trace.read_text() == "0.0 begins\n1.0 ends\n"


def test_a_schedule_of_a_file_is_run_as_it_is(tmp_path: Path) -> None:
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
    _, _, text = outcome.output.partition("by --schedule FILE:\n")
    schedule = parse(text)
    assert [event.kind for event in schedule.events] == ["kill", "pause"]
    assert not fake(schedule).is_clean


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--planted", "rust"], "there is no bug rust to plant; there are\n  no-epoch-truncation:"),
        (["--trace", "x"], "--trace wants one run"),
        (["--schedule", "no-such-file"], "no-such-file: "),
    ],
)
def test_what_cannot_be_done_is_said(words: list[str], why: str) -> None:
    outcome = run(*words)
    assert isinstance(outcome.exception, click.ClickException)
    assert why in outcome.exception.format_message()


def test_a_file_that_is_no_schedule_is_refused_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "schedule"
    file.write_text("seed 5\n1 kick 1\n")
    outcome = run("--schedule", str(file))
    assert isinstance(outcome.exception, click.ClickException)
    assert "line 2" in outcome.exception.format_message()


def test_a_run_that_is_told_to_end_leaves_no_process_behind() -> None:
    words = ("-m", "pybroker.testing.simulation", "--seeds", "100000", "--processes", "2")
    with subprocess.Popen(
        [sys.executable, *words],
        env={**os.environ, "PYTHONPATH": ":".join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as run:
        process = psutil.Process(run.pid)
        while len(at_work := process.children(recursive=True)) < 3:  # with the resource tracker
            assert run.poll() is None
        run.send_signal(signal.SIGTERM)
        run.communicate(timeout=120)
    assert run.returncode == 1
    _, alive = psutil.wait_procs(at_work, timeout=60)
    assert not alive
