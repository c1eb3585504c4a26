"""Clients that produce load on a simulated cluster, and record the answers in a history
(`pybroker.testing.history`).

Each client is a process on its own machine with the real `pybroker.client`.
"""

from pybroker.testing.simulation.workload.options import ProducerKind, WorkloadOptions
from pybroker.testing.simulation.workload.workload import Workload

__all__ = ["ProducerKind", "Workload", "WorkloadOptions"]
