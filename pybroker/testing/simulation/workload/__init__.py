"""Clients that load a simulated cluster, and write down what they were told.

Each is a process on a machine of its own that runs the real `pybroker.client`: producers with
every kind of acks, consumers, one that asks where partitions end, an admin. What they do hangs on
the seed, what comes of it goes into one `pybroker.testing.history` in memory.
"""

from pybroker.testing.simulation.workload.options import ProducerKind, WorkloadOptions
from pybroker.testing.simulation.workload.workload import Workload

__all__ = ["ProducerKind", "Workload", "WorkloadOptions"]
