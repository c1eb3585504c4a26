"""How often seeds find planted bugs, counted over runs that are over at once."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from pybroker.testing.simulation.cli import command
from pybroker.testing.simulation.planted import BY_NAME
from pybroker.testing.simulation.rates import Try, measure, read, table
from pybroker.testing.simulation.result import Result, wrong
from pybroker.testing.simulation.schedule import Schedule

SLOW, QUICK = "no-fetch-fencing", "pending-isr-ignored"


class Simulated:
    """Every third seed finds one of the bugs, every second one the other."""

    def __init__(self) -> None:
        self.ran: list[tuple[str, str]] = []

    def __call__(
        self, schedule: Schedule, *, keep_trace: bool = False, hurries: bool = False
    ) -> Result:
        planted = schedule.options.planted
        self.ran.append((planted, schedule.seed))
        is_bad = int(schedule.seed) % {SLOW: 3, QUICK: 2}.get(planted, 10**6) == 0
        rules = ("rule-a", "rule-b") if is_bad else ()
        return Result(schedule, "0", tuple(wrong(each, "") for each in rules), {}, 0.5)


def counted(file: Path, first: int, last: int, simulated: Simulated) -> list[str]:
    lines: list[str] = []
    seeds = range(first, last + 1)
    measure(simulated, (SLOW, QUICK), seeds, file, lines.append, processes=1)
    return lines[-1].splitlines()


def test_the_table_says_how_often_and_how_soon_each_bug_is_found(tmp_path: Path) -> None:
    head, slow, quick = counted(tmp_path / "rates", 1, 12, Simulated())
    assert head.split() == ["planted", "bug", "seeds", "found", "share", "median", "s", "rules"]
    assert slow.split() == [SLOW, "12", "4", "33.33%", "1.5", "rule-a", "4,", "rule-b", "4"]
    assert quick.split()[:5] == [QUICK, "12", "6", "50.00%", "1.0"]


def test_a_later_call_goes_on_also_after_a_line_that_was_cut_off(tmp_path: Path) -> None:
    file, whole = tmp_path / "rates", Simulated()
    counted(tmp_path / "other", 1, 4, whole)
    counted(file, 1, 2, Simulated())
    text = file.read_text()
    file.write_text(text[:-3])
    again = Simulated()
    assert counted(file, 1, 4, again) == table((SLOW, QUICK), read(tmp_path / "other")).splitlines()
    assert again.ran == whole.ran[3:]


def test_seeds_with_another_schedule_are_run_anew(tmp_path: Path) -> None:
    file, again = tmp_path / "rates", Simulated()
    file.write_text(f"{SLOW} 1 00000000 0.5 old-rule\n")
    assert "old-rule" not in "".join(counted(file, 1, 1, again))
    assert again.ran == [(SLOW, "1"), (QUICK, "1")]


def test_lines_are_read_as_they_were_written() -> None:
    for each in (Try(SLOW, "1", "0a", 0.5, ()), Try(SLOW, "1", "0a", 0.5, ("a", "b"))):
        assert Try.parse(str(each)) == each
    with pytest.raises(ValueError, match="not enough values"):
        Try.parse("x")


def test_on_the_command_line(tmp_path: Path) -> None:
    simulated = Simulated()

    def run(*words: str) -> str:
        return CliRunner().invoke(command(simulated), list(words), catch_exceptions=False).output

    file = str(tmp_path / "rates")
    some = ("--seeds", "2", "--first", "6", "--processes", "1", "--rates", file)
    assert f"{QUICK:34}     2     1  50.00%" in run(*some, "--planted", QUICK)
    lines = run(*some, "--planted", "all").splitlines()
    assert [line.split()[0] for line in lines[1:]] == [*BY_NAME]
    assert len(simulated.ran) == 2 * len(BY_NAME)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--rates", "x"], "--rates wants a bug"),
        (["--planted", "all"], "there is no bug all to plant"),
    ],
)
def test_what_cannot_be_counted_is_said(words: list[str], why: str) -> None:
    outcome = CliRunner().invoke(command(Simulated()), words, standalone_mode=False)
    assert isinstance(outcome.exception, click.ClickException)
    assert why in outcome.exception.format_message()
