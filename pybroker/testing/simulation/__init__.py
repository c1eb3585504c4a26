"""A simulated cluster in one process: real brokers and clients run over simulated time, network,
disks and ZooKeeper. The same seed always gives exactly the same run."""

from pybroker.testing.simulation.cluster import ZOOKEEPER
from pybroker.testing.simulation.simulation import (
    Application,
    Simulation,
    SimulationError,
)

__all__ = ["ZOOKEEPER", "Application", "Simulation", "SimulationError"]
