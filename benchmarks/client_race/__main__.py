"""The program: the list of all rows, and the options of the command line."""

from __future__ import annotations

import argparse
from typing import Final

from benchmarks.client_race import reads, sends
from benchmarks.client_race.rows import LOOPS, Row, Setting, run_row
from pybroker.testing import Cluster

ROWS: Final[tuple[Row, ...]] = (*reads.rows(), *sends.rows())


def main() -> None:
    parser = argparse.ArgumentParser(description="Compares three Kafka clients for Python.")
    parser.add_argument(
        "--only", default="", help="only rows whose name contains all of these words"
    )
    parser.add_argument("--records", type=int, default=400_000, help="records of a measurement")
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--loop", choices=LOOPS, default="asyncio")
    options = parser.parse_args()
    words = options.only.split(",")
    with Cluster(brokers=1) as cluster:
        setting = Setting(cluster.bootstrap, options.records, options.partitions)
        for row in ROWS:
            if all(word in row.name for word in words):
                run_row(row, setting, options)


if __name__ == "__main__":
    main()
