"""`python -m unit_tests.simulation`: runs seeds with planted bugs; see docs/simulation.rst."""

from __future__ import annotations

import os
import signal
from functools import partial
from pathlib import Path

import click

from pybroker.testing.simulation.cli import command
from unit_tests.simulation.detection_rates import measure
from unit_tests.simulation.mutants import BY_NAME, simulate_mutant

MEANINGS = {name: bug.meaning for name, bug in BY_NAME.items()}


@click.command(help="Count how many seeds find each planted bug, or each of the named bugs.")
@click.argument("names", nargs=-1, type=click.Choice(tuple(BY_NAME)))
@click.option("--seeds", default=200, show_default=True, help="Number of seeds to run.")
@click.option("--first", default=1, show_default=True, help="The first seed.")
@click.option(
    "--processes", type=int, default=os.cpu_count() or 1, help="Number of runs at a time."
)
@click.option(
    "--file",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="The file of results; a later call continues from it.",
)
def rates(names: tuple[str, ...], seeds: int, first: int, processes: int, file: Path) -> None:
    try:
        measure(
            partial(simulate_mutant, stop_early=True),
            names or tuple(BY_NAME),
            range(first, first + seeds),
            file,
            click.echo,
            processes=processes,
        )
    except (OSError, ValueError) as error:
        raise click.ClickException(f"{file}: {error}") from error


if __name__ == "__main__":
    # As Ctrl-C: the default would leave the processes of the seeds behind.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    run = command(simulate_mutant, MEANINGS)
    click.Group(commands={"run": run, "rates": rates})()
