"""Clients that produce load on a simulated cluster and record its answers.

Each client is a process on its own machine that runs the real `pybroker.client`: producers with
every kind of acks, consumers, clients that request log end offsets, an admin client. The seed
decides the actions of the clients. Their answers are recorded in one `pybroker.testing.history` in
memory.
"""

from pybroker.testing.simulation.workload.options import ProducerKind, WorkloadOptions
from pybroker.testing.simulation.workload.workload import Workload

__all__ = ["ProducerKind", "Workload", "WorkloadOptions"]
