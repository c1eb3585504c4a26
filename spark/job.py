"""The script that runs a job. `spark-submit .../pybroker/spark/job.py orders.yaml` and `python -m
pybroker.spark.job orders.yaml` do the same as `pybroker etl run orders.yaml`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

if __name__ == "__main__" and sys.path and Path(sys.path[0]).resolve() == Path(__file__).parent:
    # Run as a script: the modules in this folder must not be importable as top-level modules.
    del sys.path[0]

from pybroker.errors import ConfigError, PybrokerError
from pybroker.spark.etl import command


def main(words: Sequence[str]) -> int:
    """Run the script. Return its exit code."""
    parser = argparse.ArgumentParser(
        prog="job.py", description="Run a job of pybroker: see `pybroker etl run --help`."
    )
    parser.add_argument("job", metavar="JOB.yaml")
    parser.add_argument(
        "--once", action="store_true", help="execute one run, even if records remain to be read"
    )
    parser.add_argument(
        "--until",
        metavar="TIME",
        help="read up to the first record with this timestamp (ISO 8601, or ms since 1970)",
    )
    parser.add_argument(
        "--new-plan",
        action="store_true",
        help="discard the offset ranges that a failed run planned",
    )
    parser.add_argument(
        "--replay",
        metavar="SEQ",
        type=int,
        help="repeat the committed run SEQ with the present job file",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="print the offset ranges that a run would read"
    )
    parser.add_argument("--report", metavar="FILE", help="write a JSON report of the runs to FILE")
    parser.add_argument(
        "--json", action="store_true", help="print the JSON report on standard output"
    )
    parser.add_argument("--debug", action="store_true", help="print Spark's log, and stack traces")
    given = vars(parser.parse_args(words))
    try:
        command.run(given.pop("job"), command.RunArgs(**given))
    except PybrokerError as error:
        for line in error.faults if isinstance(error, ConfigError) else [str(error)]:
            print(line, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
