"""The commands of `pybroker etl`: run a job, print its state, remove leftover files."""

from __future__ import annotations

import json
import logging
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final, NoReturn, TextIO

from pyspark.sql import SparkSession

from pybroker.errors import PybrokerError
from pybroker.spark.etl import orphans, proposal, report
from pybroker.spark.etl.job import Job
from pybroker.spark.etl.layout import AttemptName
from pybroker.spark.etl.moments import timestamp_ms
from pybroker.spark.etl.orphans import Kind
from pybroker.spark.etl.progress import Silent, for_stream
from pybroker.spark.etl.report import RunResult, megabytes
from pybroker.spark.spark_session import session

YOUNG_S: Final = 3600.0
DEFAULTS: Final = {
    "spark.ui.showConsoleProgress": "false",
    # UTC makes times equal on every machine; TIMESTAMP_MICROS is the form other readers expect.
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}
"""Defaults of Spark options, for options that the job does not set."""
QUIET: Final = "OFF"
"""The level of Spark's log: off, because Spark adds pages of stack traces to the error message of a
job. With --debug the log stays on."""


@dataclass(frozen=True)
class RunArgs:
    """The parsed command line, without the path of the job file."""

    once: bool = False
    until: str | None = None
    replay: int | None = None
    dry_run: bool = False
    new_plan: bool = False
    report: str | None = None
    json: bool = False
    debug: bool = False


def run(path: str, args: RunArgs, out: TextIO | None = None) -> None:
    """Run a job. The report is written even if a run fails. Raises PybrokerError."""
    if args.report is not None:
        report.check_path(args.report)
    results: list[RunResult] = []
    error: str | None = None
    try:
        _run(Job.from_file(path), args, results, out)
    except PybrokerError as failure:
        error = str(failure)
        raise
    except KeyboardInterrupt as interruption:
        error = _told(interruption)
        print(error, file=sys.stderr)
        if isinstance(interruption, Terminated):
            raise SystemExit(128 + signal.SIGTERM) from None
        raise
    except BaseException as mistake:
        error = type(mistake).__name__
        raise
    finally:
        if args.report is not None:
            report.write(args.report, results, error)
        if args.json:
            print(json.dumps(report.document(results, error)), file=out)


def _run(job: Job, args: RunArgs, results: list[RunResult], out: TextIO | None) -> None:
    until_ms = _until(args.until)

    def show(result: RunResult) -> None:
        results.append(result)
        if not args.json:
            print(result, file=out, flush=True)

    if args.dry_run:
        found = job.dry_run(until_ms)
        show(found)
        if not args.json:
            for line in _ranges(found):
                print(line, file=out)
        return
    if args.new_plan:
        job.drop_plan()
    if args.replay is not None:
        job.committed(args.replay)
    else:
        found = job.dry_run(until_ms)
        if found.state == "nothing-new":  # the result is known without starting Spark
            show(found)
            return
    progress = Silent() if args.json else for_stream(sys.stderr)
    job = replace(job, progress=progress)
    try:
        spark = _spark(job, args.debug)
        with _signals_as_exceptions():
            if args.replay is not None:
                show(job.replay(spark, args.replay))
            elif args.once:
                show(job.run_once(spark, until_ms))
            else:
                for result in job.run(spark, until_ms):
                    show(result)
    finally:
        progress.close()


class Terminated(KeyboardInterrupt):
    """The process received SIGTERM. The class is a KeyboardInterrupt, because only then does Py4J
    close the interrupted call's connection. The next call would otherwise receive the interrupted
    call's response."""


@contextmanager
def _signals_as_exceptions() -> Iterator[None]:
    """Let SIGINT and SIGTERM raise an exception, so that a run removes its files. PySpark's own
    SIGINT handler would disturb the interrupted call: the handler calls Java on the same
    connection."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, _leave)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _leave(number: int, _: object) -> NoReturn:
    raise Terminated if number == signal.SIGTERM else KeyboardInterrupt


def _told(interruption: KeyboardInterrupt) -> str:
    name = "SIGTERM" if isinstance(interruption, Terminated) else "SIGINT"
    return f"the run was stopped by {name}: the next run reads the uncommitted records again"


def _silence_pyspark() -> None:
    """Suppress what PySpark prints in addition to the one-line error: stack traces, positions in
    the user's program, and warnings about pandas."""
    logging.getLogger().addFilter(_is_not_of_py4j)
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        logging.getLogger(name).disabled = True
    warnings.filterwarnings("ignore", category=FutureWarning, module="pyspark")


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    return "py4j" not in record.pathname


def status(path: str, *, as_json: bool, last: int, out: TextIO | None = None) -> None:
    """Print the committed and planned runs, the unfinished attempts, and the number of new records.
    Raises PybrokerError."""
    job = Job.from_file(path)
    store = job.store
    store.check(job.file.owner)
    names = store.commit_names()
    plan = store.plan(names[-1].seq + 1 if names else 0)
    found: dict[str, Any] = {
        "job": job.name,
        "output": str(store.output),
        "runs": len(names),
        "last": [report.summary(store.commit(name)) for name in names[-last:]],
        "planned": None if plan is None else plan.seq,
        "writing": [
            _writer(job, name) for name in store.attempts() if store.is_attempt_locked(name)
        ],
        **_new_offsets(job),
    }
    if as_json:
        print(json.dumps(found), file=out)
    else:
        _print_status(found, out)


def gc(
    path: str, *, older_than_s: float, superseded: bool, dry_run: bool, out: TextIO | None = None
) -> None:
    """Remove the files of crashed attempts. `superseded`: also remove the results that a later
    commit replaced. Attempts written in the last `older_than_s` seconds are kept. Raises
    PybrokerError."""
    job = Job.from_file(path)
    job.store.check(job.file.owner)
    kinds = {Kind.ORPHAN, Kind.SUPERSEDED} if superseded else {Kind.ORPHAN}
    now_s = time.time()
    found = orphans.leftovers(job.store, job.file.places, now_s, older_than_s)
    for item in found:
        verb = "kept"
        if item.kind in kinds:
            verb = "would be removed" if dry_run else "removed"
        print(
            f"seq={item.name.seq} attempt={item.name.attempt} {megabytes(item.size)} "
            f"{item.kind.value}: {verb}",
            file=out,
        )
    if not dry_run:
        orphans.remove(job.store, [item for item in found if item.kind in kinds])
        orphans.remove_temporary(job.store, now_s, older_than_s)
    if not found:
        print("nothing to remove", file=out)


def _spark(job: Job, debug: bool) -> SparkSession:
    conf = {name: value for name, value in job.file.spark.items() if name != "master"}
    for name, value in DEFAULTS.items():
        conf.setdefault(name, value)
    quiet = not debug and SparkSession.getActiveSession() is None
    if quiet:
        _silence_pyspark()
    spark = session(app=job.name, master=job.file.spark.get("master"), conf=conf)
    if quiet:
        spark.sparkContext.setLogLevel(QUIET)
    return spark


def _until(text: str | None) -> int | None:
    if text is None:
        return None
    try:
        return timestamp_ms(text)
    except ValueError:
        raise report.InvalidArgument(
            f"--until is {text!r}, expected a time such as 2026-01-31T12:00:00Z or ms since 1970"
        ) from None


def _ranges(result: RunResult) -> list[str]:
    snapshot = result.snapshot
    return [
        f"  {item.topic}-{item.partition}: {item.start} to {item.end}"
        for item in (snapshot.ranges() if snapshot is not None else ())
        if item.offsets
    ]


def _writer(job: Job, name: AttemptName) -> dict[str, Any]:
    writer = job.store.attempt_writer(name)
    return {
        "seq": name.seq,
        "attempt": name.attempt,
        "host": writer.host if writer else None,
        "process": writer.process if writer else None,
        "started_at_ms": writer.started_at_ms if writer else None,
    }


def _new_offsets(job: Job) -> dict[str, Any]:
    """Return a dict with `new_offsets`, the number of new offsets (None: unknown), and `problem`,
    the reason why it is unknown."""
    try:
        source = replace(job.file.source, max_bytes_per_run=None)
        snapshot = proposal.propose(replace(job.file, source=source), job.store.last_commit())
    except PybrokerError as error:
        return {"new_offsets": None, "problem": str(error)}
    counts = snapshot.counts() if snapshot is not None else {}
    return {"new_offsets": sum(counts.values()), "problem": None}


def _print_status(found: dict[str, Any], out: TextIO | None) -> None:
    runs = report.many(found["runs"], "run")
    print(f"{found['job']}: {runs} committed to {found['output']}", file=out)
    for each in found["last"]:
        moment = datetime.fromtimestamp(each["committed_at_ms"] / 1000, UTC)
        revision = f" revision={each['revision']}" if each["revision"] else ""
        lost = f", {each['lost']} offsets lost" if each["lost"] else ""
        print(
            f"  seq={each['seq']}{revision} {moment:%Y-%m-%dT%H:%M:%SZ}: {each['rows']} rows, "
            f"{megabytes(each['bytes'])}, {each['dead_letters']} dead letters{lost}, "
            f"{each['seconds']} s",
            file=out,
        )
    if found["planned"] is not None:
        print(f"  seq={found['planned']} is planned and not committed", file=out)
    for each in found["writing"]:
        print(
            f"  seq={each['seq']} is being written by process {each['process']} on {each['host']}",
            file=out,
        )
    if found["problem"] is not None:
        print(f"  new: not known: {found['problem']}", file=out)
    else:
        print(f"  new: {found['new_offsets']} offsets", file=out)
