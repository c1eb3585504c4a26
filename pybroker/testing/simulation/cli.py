"""The command line of the simulation: many seeds, or one of them to look at."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Protocol

import click

from pybroker.testing.simulation.many import run_many
from pybroker.testing.simulation.result import Result
from pybroker.testing.simulation.schedule import Schedule, ScheduleError, parse
from pybroker.testing.simulation.shrink import shrink
from pybroker.testing.simulation.swarm import generate

_SHRINK_RUNS_MAX: Final = 400


class Simulate(Protocol):
    """Runs a schedule; processes import it by its name."""

    def __call__(
        self, schedule: Schedule, *, keep_trace: bool = False, hurries: bool = False
    ) -> Result: ...


@dataclass(frozen=True, slots=True)
class Wish:
    """What was asked for on the command line."""

    seeds: int
    first: int
    seed: str | None
    schedule: str | None
    processes: int
    minutes: float | None
    shrinks: bool
    trace: str | None
    planted: str = ""


def command(simulate: Simulate, bugs: Mapping[str, str] | None = None) -> click.Command:
    """Its exit code is 1 if a seed failed. `bugs` has what `simulate` can plant: each name with the
    rule that it takes away."""
    known = bugs or {}

    @click.command(help="Run whole clusters under faults, each from a seed, in simulated time.")
    @click.option("--seeds", default=200, show_default=True, help="How many seeds to run.")
    @click.option("--first", default=1, show_default=True, help="The first of them.")
    @click.option("--seed", help="Run this one only, any text.")
    @click.option("--schedule", help="Run the schedule in this file only.")
    @click.option("--shrink", "shrinks", is_flag=True, help="Look for a smaller way to a failure.")
    @click.option("--processes", type=int, default=os.cpu_count() or 1, help="At a time.")
    @click.option("--minutes", type=float, help="Begin no seed after so long.")
    @click.option("--trace", metavar="FILE", help="Write all that happens in one seed into it.")
    @click.pass_context
    def simulation(context: click.Context, /, **given: object) -> None:
        wish = Wish(**given)  # type: ignore[arg-type]
        _check(wish, known)
        one = _the_one(wish, known)
        is_clean = _run_all(simulate, wish) if one is None else _run_one(simulate, one, wish)
        context.exit(0 if is_clean else 1)

    if known:
        help_text = f"Plant one of {', '.join(known)}."
        simulation.params.append(
            click.Option(["--planted"], default="", metavar="NAME", help=help_text)
        )
    return simulation


def _run_all(simulate: Simulate, wish: Wish) -> bool:
    tally = run_many(
        _schedules(wish), simulate, click.echo, processes=wish.processes, minutes=wish.minutes
    )
    if wish.shrinks and tally.failed:
        _shrink(simulate, tally.failed[0])
    return not tally.failed


def _check(wish: Wish, bugs: Mapping[str, str]) -> None:
    if wish.planted not in ("", *bugs):
        names = "\n".join(f"  {name}: {meaning}" for name, meaning in bugs.items())
        raise click.UsageError(f"there is no bug {wish.planted} to plant; there are\n{names}")
    if wish.trace and wish.seed is None and wish.schedule is None:
        raise click.UsageError("--trace wants one run: say --seed or --schedule, too")


def _the_one(wish: Wish, bugs: Mapping[str, str]) -> Schedule | None:
    """The only schedule that is asked for, if one is. A file's own seed and bug hold, unless
    others are given."""
    if wish.schedule is not None:
        try:
            schedule = parse(Path(wish.schedule).read_text(encoding="utf-8"))
        except (OSError, ScheduleError) as error:
            raise click.ClickException(f"{wish.schedule}: {error}") from error
        if wish.seed is not None:
            schedule = Schedule(wish.seed, schedule.options, schedule.events)
    elif wish.seed is not None:
        schedule = generate(wish.seed)
    else:
        return None
    if wish.planted:
        schedule = schedule.with_options(planted=wish.planted)
    if schedule.options.planted not in ("", *bugs):
        raise click.ClickException(f"no bug {schedule.options.planted} can be planted here")
    return schedule


def _schedules(wish: Wish) -> Iterator[Schedule]:
    for number in itertools.islice(itertools.count(wish.first), wish.seeds):
        yield generate(str(number)).with_options(planted=wish.planted)


def _run_one(simulate: Simulate, schedule: Schedule, wish: Wish) -> bool:
    result = simulate(schedule, keep_trace=wish.trace is not None)
    if wish.trace is not None:
        Path(wish.trace).write_text("".join(f"{line}\n" for line in result.trace))
    click.echo(result.report())
    counters = " ".join(f"{name}={count}" for name, count in sorted(result.counters.items()))
    click.echo(f"{schedule}{counters}")
    if wish.shrinks and not result.is_clean:
        _shrink(simulate, result)
    return result.is_clean


def _shrink(simulate: Simulate, failed: Result) -> None:
    """Print the smallest schedule that breaks one of the same rules."""
    click.echo(f"looking for a smaller way to {', '.join(sorted(failed.rules))} ...")
    found = shrink(failed.schedule, partial(_fails, simulate, failed), runs_max=_SHRINK_RUNS_MAX)
    again = simulate(found.schedule)
    click.echo(f"after {found.runs} runs:\n{again.report()}")
    click.echo(f"put this into a file, and run it by --schedule FILE:\n{found.schedule}")


def _fails(simulate: Simulate, failed: Result, schedule: Schedule) -> bool:
    return bool(simulate(schedule).rules & failed.rules)
