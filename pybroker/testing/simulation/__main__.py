"""`python -m pybroker.testing.simulation`: see docs/simulation.rst."""

from __future__ import annotations

import signal

from pybroker.testing.simulation.cli import command
from pybroker.testing.simulation.run import simulate

if __name__ == "__main__":
    # As Ctrl-C: the default would leave the processes of the seeds behind.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    command(simulate)()
