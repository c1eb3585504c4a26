"""Clients that load a simulated cluster and record its answers.

Each is a process on a machine of its own that runs the real `pybroker.client`: producers with every
kind of acks, consumers, a client that requests the ends of partitions, an admin. The seed decides
what they do. The answers go into one `pybroker.testing.history` in memory.
"""

from pybroker.testing.simulation.workload.options import ProducerKind, WorkloadOptions
from pybroker.testing.simulation.workload.workload import Workload

__all__ = ["ProducerKind", "Workload", "WorkloadOptions"]
