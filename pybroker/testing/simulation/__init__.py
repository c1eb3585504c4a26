"""A whole cluster in one process, under a seed: real brokers and clients over simulated time,
network, disks and ZooKeeper. The same seed gives the same run, to the byte.
"""

from pybroker.testing.simulation.cluster import ZOOKEEPER
from pybroker.testing.simulation.simulation import (
    Application,
    Simulation,
    SimulationError,
)

__all__ = ["ZOOKEEPER", "Application", "Simulation", "SimulationError"]
