"""Compares pybroker's client with aiokafka and confluent-kafka, in the same process and against the
same pybroker broker.

    python benchmarks/clients.py [--only WORD,WORD] [--records N] [--rounds R] [--loop uvloop]

The program prints the rate of each client in thousands of records per second, and for each goal the
ratio of the two rates. The program itself is `benchmarks.client_race`, whose docstring describes
the measures. This file starts it, for a call by path (see `benchmarks/race.py`).
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    runpy.run_module("benchmarks.client_race", run_name="__main__", alter_sys=True)
