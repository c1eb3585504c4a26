"""The simulated brokers, ZooKeeper and links of one cluster."""

from __future__ import annotations

import gc
import logging
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Final

from pybroker.testing.cluster_parts import default_config, option_text
from pybroker.testing.simulation.broker import SimBroker
from pybroker.testing.simulation.environment import Environment
from pybroker.testing.simulation.links import Links
from pybroker.testing.simulation.machine import Machine
from pybroker.testing.simulation.network import Network
from pybroker.testing.simulation.zookeeper import ZooKeeper

ZOOKEEPER: Final = "zookeeper"
"""The ZooKeeper service, whose members are the machines `zookeeper-1`, `zookeeper-2` and so on."""


class SimCluster:
    """A simulated cluster of brokers with the ids 1 to `brokers`, on machines `broker-1`,
    `broker-2` and so on. Nothing runs before `start`."""

    def __init__(
        self,
        environment: Environment,
        brokers: int = 3,
        *,
        zookeepers: int = 3,
        log_dirs: int = 1,
        config: Mapping[str, object] | None = None,
    ) -> None:
        """Create the machines. `log_dirs` is the number of log directories of each broker; `config`
        holds options of all brokers."""
        self.environment = environment
        self.machines: dict[str, Machine] = {}
        self.links = Links(environment)
        self.network = Network(self.links)
        self.zookeeper = ZooKeeper(
            environment, self.links, [f"zookeeper-{number}" for number in range(1, zookeepers + 1)]
        )
        given = {name: option_text(value) for name, value in (config or {}).items()}
        properties = {**default_config(brokers), **given}
        self.brokers = {
            broker: SimBroker(
                broker,
                self.machine(f"broker-{broker}"),
                self.network,
                self.zookeeper,
                properties,
                log_dirs=log_dirs,
            )
            for broker in range(1, brokers + 1)
        }

    def __enter__(self) -> SimCluster:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    @property
    def bootstrap(self) -> str:
        """Return the bootstrap.servers of the cluster: HOST:PORT of each broker, joined by
        commas."""
        return ",".join(broker.address for broker in self.brokers.values())

    def machine(self, name: str) -> Machine:
        """Return the machine with this name. The first call creates the machine."""
        if name not in self.machines:
            self.machines[name] = Machine(self.environment, name)
        return self.machines[name]

    def start(self) -> None:
        """Start all brokers that do not run, without waiting until they serve."""
        for broker in self.brokers.values():
            broker.start()

    def run_until(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Advance virtual time until the condition holds, and return True. If it does not hold
        after `seconds`, return False."""
        return self.environment.run(self.environment.now + seconds, condition)

    def run_until_ready(self, seconds: float = 60.0) -> bool:
        """Advance virtual time until all brokers serve, and return True. If not all serve after
        `seconds`, return False."""
        return self.run_until(lambda: all(each.serves for each in self.brokers.values()), seconds)

    def close(self) -> None:
        """Stop all processes, and free the memory of the run."""
        level = logging.root.manager.disable
        hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
        logging.disable()  # tasks that are unwound after their process's death must not log
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                for machine in self.machines.values():
                    machine.bury()
                gc.collect()
        finally:
            logging.disable(level)
            sys.unraisablehook = hook
