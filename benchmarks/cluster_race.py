"""The race of two clusters: three pybroker brokers against three Apache Kafka brokers.

    python benchmarks/cluster_race.py [--rounds N] [--quick] [--only MEASURE,...]

The program itself is `benchmarks.racing.cluster`, whose docstring describes the measures. This file
starts it, for a call by path (see `benchmarks/race.py`).
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    runpy.run_module("benchmarks.racing.cluster", run_name="__main__", alter_sys=True)
