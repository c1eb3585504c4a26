"""The race with Apache Kafka: throughput, latency, memory, start times, side by side.

    python benchmarks/race.py [--quick] [--rounds N] [--only MEASURE,MEASURE] [--output FOLDER]
    python benchmarks/race.py --report FILE.json [--rst]

It needs Java and the jars of Apache Kafka (which `mvn` fetches once), and takes about half an
hour. docs/performance.rst describes the method. The program itself is `benchmarks.racing`. This
file makes it callable by its path. It keeps the folder of the benchmarks out of the module path,
because its module `requests` would hide the library of that name.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    runpy.run_module("benchmarks.racing", run_name="__main__", alter_sys=True)
