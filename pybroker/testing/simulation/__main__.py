"""`python -m pybroker.testing.simulation`: see docs/simulation.rst."""

from __future__ import annotations

from pybroker.testing.simulation.cli import command
from pybroker.testing.simulation.run import simulate

if __name__ == "__main__":
    command(simulate)()
