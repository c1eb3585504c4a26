"""The command line of the simulation: run many seeds, or examine one."""

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
    """A function that simulates a schedule of faults and returns the result. Worker processes
    import it by its name."""

    def __call__(
        self, schedule: Schedule, *, keep_trace: bool = False, stop_early: bool = False
    ) -> Result: ...


@dataclass(frozen=True, slots=True)
class Args:
    """The parsed command line."""

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
    """Return the click command of the simulation, with exit code 1 if a seed failed. `bugs` maps
    the names of bugs that `simulate` can plant to descriptions."""
    known = bugs or {}

    @click.command(help="Run clusters under faults in simulated time, one per seed.")
    @click.option("--seeds", default=200, show_default=True, help="Number of seeds to run.")
    @click.option("--first", default=1, show_default=True, help="First seed.")
    @click.option("--seed", help="Run only this seed (any text).")
    @click.option("--schedule", help="Run only the schedule in this file.")
    @click.option("--shrink", "shrinks", is_flag=True, help="Look for a smaller failing schedule.")
    @click.option("--processes", type=int, default=os.cpu_count() or 1, help="Runs at a time.")
    @click.option("--minutes", type=float, help="Start no seed after this many minutes.")
    @click.option("--trace", metavar="FILE", help="Write the trace of one seed to this file.")
    @click.pass_context
    def simulation(context: click.Context, /, **given: object) -> None:
        args = Args(**given)  # type: ignore[arg-type]
        _check(args, known)
        one = _single_schedule(args, known)
        is_clean = _run_all(simulate, args) if one is None else _run_one(simulate, one, args)
        context.exit(0 if is_clean else 1)

    if known:
        help_text = f"Plant one of {', '.join(known)}."
        simulation.params.append(
            click.Option(["--planted"], default="", metavar="NAME", help=help_text)
        )
    return simulation


def _run_all(simulate: Simulate, args: Args) -> bool:
    tally = run_many(
        _schedules(args), simulate, click.echo, processes=args.processes, minutes=args.minutes
    )
    if args.shrinks and tally.failed:
        _shrink(simulate, tally.failed[0])
    return not tally.failed


def _check(args: Args, bugs: Mapping[str, str]) -> None:
    if args.planted not in ("", *bugs):
        names = "\n".join(f"  {name}: {meaning}" for name, meaning in bugs.items())
        raise click.UsageError(f"unknown mutant {args.planted}; the mutants are\n{names}")
    if args.trace and args.seed is None and args.schedule is None:
        raise click.UsageError("--trace needs a single run: use --seed or --schedule")


def _single_schedule(args: Args, bugs: Mapping[str, str]) -> Schedule | None:
    """Return the schedule that the command line asks for, None for many seeds. `--seed` and
    `--planted` replace the values in the schedule file."""
    if args.schedule is not None:
        try:
            schedule = parse(Path(args.schedule).read_text(encoding="utf-8"))
        except (OSError, ScheduleError) as error:
            raise click.ClickException(f"{args.schedule}: {error}") from error
        if args.seed is not None:
            schedule = Schedule(args.seed, schedule.options, schedule.events)
    elif args.seed is not None:
        schedule = generate(args.seed)
    else:
        return None
    if args.planted:
        schedule = schedule.with_options(planted=args.planted)
    if schedule.options.planted not in ("", *bugs):
        raise click.ClickException(
            f"unknown mutant {schedule.options.planted} in the schedule's line `option planted`"
        )
    return schedule


def _schedules(args: Args) -> Iterator[Schedule]:
    for number in itertools.islice(itertools.count(args.first), args.seeds):
        yield generate(str(number)).with_options(planted=args.planted)


def _run_one(simulate: Simulate, schedule: Schedule, args: Args) -> bool:
    result = simulate(schedule, keep_trace=args.trace is not None)
    if args.trace is not None:
        Path(args.trace).write_text("".join(f"{line}\n" for line in result.trace))
    click.echo(result.report())
    counters = " ".join(f"{name}={count}" for name, count in sorted(result.counters.items()))
    click.echo(f"{schedule}{counters}")
    if args.shrinks and not result.is_clean:
        _shrink(simulate, result)
    return result.is_clean


def _shrink(simulate: Simulate, failed: Result) -> None:
    """Print a smaller schedule that violates one of the rules that `failed` violates."""
    click.echo(
        f"looking for a smaller schedule that violates {', '.join(sorted(failed.rules))} ..."
    )
    found = shrink(failed.schedule, partial(_fails, simulate, failed), runs_max=_SHRINK_RUNS_MAX)
    again = simulate(found.schedule)
    click.echo(f"after {found.runs} runs:\n{again.report()}")
    click.echo(f"save this to a file and run it with --schedule FILE:\n{found.schedule}")


def _fails(simulate: Simulate, failed: Result, schedule: Schedule) -> bool:
    return bool(simulate(schedule).rules & failed.rules)
