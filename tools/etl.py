"""`pybroker etl`: runs the jobs of the Spark pipeline, prints the jobs' state, and removes leftover
files."""

from __future__ import annotations

import importlib
import re
from typing import Any, Final

import click

from pybroker.tools._cli import Failure, Tool, format_option

_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}


class Etl(click.Group):
    """A command group whose subcommands have the options of every tool, such as --debug."""

    command_class = Tool


@click.group("etl", cls=Etl)
def command() -> None:
    """Run jobs that read topics into tables with Spark, exactly once.

    A job is a YAML file: the topics, the decoding of records, the transformation, the output table.
    Each run reads the records since the last run and commits rows, dead letters and offsets in one
    step. docs/etl.rst explains jobs.

    \b
      pybroker etl run orders.yaml             read all new records
      pybroker etl run orders.yaml --dry-run   print the ranges that a run would read
      pybroker etl status orders.yaml          print the last runs and the number of new records
      pybroker etl replay orders.yaml 12       repeat run 12 with the present job file
      pybroker etl gc orders.yaml              remove files that crashes left behind
    """


def _job_argument(function: Any) -> Any:
    return click.argument("job", metavar="JOB.yaml")(function)


def _report_option(function: Any) -> Any:
    return click.option(
        "--report",
        metavar="FILE",
        help="Write a JSON report of the runs to FILE, even if a run fails.",
    )(function)


@command.command("run")
@_job_argument
@click.option("--once", is_flag=True, help="Execute one run, even if records remain to be read.")
@click.option(
    "--until",
    metavar="TIME",
    help="In each partition, stop before the first record with this timestamp or later (ISO 8601,"
    " or ms since 1970). Default: read to the end of the topics.",
)
@click.option(
    "--dry-run",
    is_flag=True,
    help="Print the offset ranges that a run would read, without starting Spark.",
)
@click.option(
    "--new-plan",
    is_flag=True,
    help="Discard the offset ranges that a failed run planned, and plan new ranges from the"
    " last commit.",
)
@_report_option
@format_option()
@click.pass_context
def run_command(
    context: click.Context,
    job: str,
    once: bool,
    until: str | None,
    dry_run: bool,
    new_plan: bool,
    report: str | None,
    output_format: str,
) -> None:
    """Read all new records into the job's table. If the job file sets max-bytes-per-run, the
    command may execute several runs of the job.

    A run that was interrupted is repeated first, with the same offsets. Several processes may run
    the same job: exactly one of them commits each run.
    """
    commands = _commands()
    commands.run(
        job,
        commands.RunArgs(
            once=once,
            until=until,
            dry_run=dry_run,
            new_plan=new_plan,
            report=report,
            json=output_format == "json",
            debug=context.meta.get("debug", False),
        ),
    )


@command.command("replay")
@_job_argument
@click.argument("seq", type=click.IntRange(0))
@_report_option
@format_option()
@click.pass_context
def replay_command(
    context: click.Context, job: str, seq: int, report: str | None, output_format: str
) -> None:
    """Repeat the committed run SEQ: read the same offsets, and decode and transform them by the
    present job file. The new result replaces the old result in one step."""
    commands = _commands()
    commands.run(
        job,
        commands.RunArgs(
            replay=seq,
            report=report,
            json=output_format == "json",
            debug=context.meta.get("debug", False),
        ),
    )


@command.command("status")
@_job_argument
@click.option(
    "--last",
    type=click.IntRange(1),
    default=10,
    show_default=True,
    help="The number of runs to list, the newest first.",
)
@format_option()
def status_command(job: str, last: int, output_format: str) -> None:
    """Print the last runs, planned runs, unfinished attempts, and the number of new records."""
    _commands().status(job, as_json=output_format == "json", last=last)


@command.command("gc")
@_job_argument
@click.option(
    "--older-than",
    metavar="AGE",
    default="1h",
    show_default=True,
    help="Remove only files whose last write is at least this long ago, such as 30s, 10m, 1h or 2d."
    " Another machine may still write younger files.",
)
@click.option(
    "--superseded",
    is_flag=True,
    help="Also remove results that were replaced: by a replay, or with mode latest by a later run.",
)
@click.option("--dry-run", is_flag=True, help="Print the files to remove, and remove nothing.")
def gc_command(job: str, older_than: str, superseded: bool, dry_run: bool) -> None:
    """Remove the files of attempts that were not committed and whose process has ended."""
    _commands().gc(job, older_than_s=_age(older_than), superseded=superseded, dry_run=dry_run)


def _age(text: str) -> float:
    found = re.fullmatch(r"(\d+)([smhd])", text)
    if found is None:
        raise click.UsageError(f"--older-than is {text!r}, expected an age such as 30s, 10m or 1h")
    return float(int(found[1]) * _UNITS[found[2]])


def _commands() -> Any:
    """Return the module of the commands. The import loads Spark, so it happens only when a command
    runs."""
    try:
        return importlib.import_module("pybroker.spark.etl.command")
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("pybroker"):
            raise
        raise Failure(
            f"the Python module {error.name} is missing; install it with: pip install"
            " 'pybroker[spark]'"
        ) from error
