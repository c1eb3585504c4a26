"""Clients that produce load on a simulated cluster, and record the answers in a history
(`pybroker.testing.history`).

Each client is a simulated process on a machine of its own, and uses the real `pybroker.client`.
"""

from pybroker.testing.simulation.workload.options import ProducerKind, WorkloadOptions
from pybroker.testing.simulation.workload.workload import Workload

__all__ = ["ProducerKind", "Workload", "WorkloadOptions"]
