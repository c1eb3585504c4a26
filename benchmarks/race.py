"""The race of pybroker with Apache Kafka: throughput, latency, memory and start times, on the same
machine.

    python benchmarks/race.py [--quick] [--rounds N] [--only MEASURE,MEASURE] [--output FOLDER]
    python benchmarks/race.py --report FILE.json [--rst]

The program needs Java and the jars of Apache Kafka (which `mvn` fetches once), and takes about half
an hour. docs/performance.rst describes the method. The program itself is `benchmarks.racing`; this
file starts it, for a call by path. It removes the folder `benchmarks` from the module path, because
its module `requests` would hide the library `requests`.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    runpy.run_module("benchmarks.racing", run_name="__main__", alter_sys=True)
