"""A simulated broker: a real `BrokerApp`, run as a process of a simulated machine."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Final

from pybroker.admin.view import Phase, Rooms
from pybroker.broker.app import BrokerApp
from pybroker.broker.startup import Session, StartupInputs, serve_until, start_broker
from pybroker.config.broker_config import BrokerConfig
from pybroker.errors import StartupError
from pybroker.metrics import Metrics
from pybroker.ports import Disk
from pybroker.testing.simulation.disk import SimDisk
from pybroker.testing.simulation.disk_view import DiskView
from pybroker.testing.simulation.loop import LoopBlocking, ProcessLoop
from pybroker.testing.simulation.machine import Machine
from pybroker.testing.simulation.network import Network
from pybroker.testing.simulation.zookeeper import ZooKeeper
from pybroker.testing.simulation.zookeeper_session import ZooKeeperSession

log = logging.getLogger(__name__)

PORT: Final = 9092
LISTENER: Final = "PLAINTEXT"
OFFSETS: Final = "offsets"
"""The name that distinguishes a broker's second ZooKeeper session, for offsets, from the main
session."""


class SimBroker:
    """A simulated broker with its own machine. `app` is set while its process starts or serves."""

    def __init__(
        self,
        broker_id: int,
        machine: Machine,
        network: Network,
        zookeeper: ZooKeeper,
        properties: Mapping[str, str],
        *,
        log_dirs: int = 1,
    ) -> None:
        self.id = broker_id
        self.machine = machine
        data = f"/{machine.name}/data"
        self.log_dirs = (data, *(f"{data}-{number}" for number in range(2, log_dirs + 1)))
        self.properties = {
            **properties,
            "broker.id": str(broker_id),
            "log.dirs": ",".join(self.log_dirs),
            "listeners": f"{LISTENER}://{machine.name}:{PORT}",
            "zookeeper.connect": "zookeeper:2181",
        }
        self.disk = SimDisk.of_machine(machine)
        self.app: BrokerApp | None = None
        self.rooms: Rooms | None = None
        """The running broker's replicas and logs, for the checks. The attribute is set before the
        broker accepts connections."""
        self.serves = False
        self.reasons: list[str] = []
        """For each process of this broker that ended by itself, the reason."""
        self._network = network
        self._zookeeper = zookeeper
        self._end: Callable[[str | None], None] | None = None
        machine.on_stop.append(self._stopped)

    @property
    def address(self) -> str:
        return f"{self.machine.name}:{PORT}"

    @property
    def is_running(self) -> bool:
        return self.machine.loop is not None

    def start(self) -> None:
        """Start the broker's process without waiting until it serves. Do nothing if the process
        already runs."""
        if not self.is_running:
            self.machine.start(self._main, self._network.sockets(self.machine))

    def terminate(self) -> None:
        """Send SIGTERM: the broker hands over its partitions and ends."""
        loop = self.machine.loop
        if loop is not None and self._end is not None:
            loop.call_soon(self._end, None)

    async def _main(self, loop: ProcessLoop) -> None:
        ended: asyncio.Future[str | None] = loop.create_future()

        def end(reason: str | None) -> None:
            if not ended.done():
                ended.set_result(reason)

        self._end = end
        reason: str | None
        try:
            reason = await serve_until(ended, lambda stack: self._start(loop, stack, end))
        except StartupError as error:
            reason = str(error)
        except Exception as error:
            reason = f"crashed: {error!r}"
            loop.failures.append(reason)
        if reason is not None:
            self.reasons.append(reason)
        loop.environment.note(f"{loop.name} ends: {reason}")
        self.machine.kill()

    async def _start(
        self, loop: ProcessLoop, stack: AsyncExitStack, end: Callable[[str | None], None]
    ) -> None:
        config = BrokerConfig.parse(self.properties)
        machine, environment = self.machine, self.machine.environment
        disk: Disk = DiskView(self.disk)
        listening = self._network.listen(machine, machine.name, PORT)
        stack.callback(listening.close)

        def threads(number: int, name: str = "threads") -> LoopBlocking:
            blocking = LoopBlocking(loop, environment.rng(f"{name} of {loop.name}"), number)
            blocking.delay_s = self.disk.delay_s
            return blocking

        async def connect(_usable: Sequence[str]) -> tuple[Session, str]:
            session = self._zookeeper.session(
                machine, timeout_ms=config.zookeeper_session_timeout_ms
            )
            stack.push_async_callback(session.close)
            await session.start(config.zookeeper_wait_ms / 1000)
            return session, "zookeeper:2181"

        async def connect_offsets() -> ZooKeeperSession:
            session = self._zookeeper.session(
                machine, timeout_ms=config.zookeeper_session_timeout_ms, purpose=OFFSETS
            )
            await session.start(config.zookeeper_wait_ms / 1000)
            return session

        around = StartupInputs(
            clock=machine.clock,
            rng=environment.rng(f"choices of {loop.name}"),
            disk=disk,
            proc=machine,
            metrics=Metrics(),
            sockets={LISTENER: listening},
            threads=threads,
            new_cleaner_thread=lambda: threads(1, "log cleaner"),
            connect=connect,
            connect_offsets=connect_offsets,
            host_name=lambda: machine.name,
            report_phase=self._hear,
        )
        self.app = await start_broker(config, around, stack, end)
        self.serves = True
        environment.note(f"{loop.name} serves")

    def _hear(self, _phase: Phase, rooms: Rooms | None) -> None:
        self.rooms = rooms or self.rooms

    def _stopped(self, _heard: bool) -> None:
        self.app = None
        self.rooms = None
        self.serves = False
        self._end = None
