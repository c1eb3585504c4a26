"""A complete broker in the process of the tests, composed like in `pybroker start`: real loopback
sockets, logs and threads, and a ZooKeeper in memory. It needs no other program.
"""

from __future__ import annotations

import io
import logging
import random
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from integration_tests.process import ChildProcess, free_port
from pybroker.broker.startup import StartupInputs, start_broker
from pybroker.clock import SystemClock
from pybroker.config.broker_config import BrokerConfig
from pybroker.host.process import BackgroundThread, SystemProc, ThreadedBlocking
from pybroker.metrics import Metrics
from pybroker.server.listener import Bind, bind
from pybroker.storage.files import SystemDisk
from pybroker.testing.loop_thread import LoopThread
from pybroker.testing.simulation.memory_tree import MemoryTree
from pybroker.tools.start import broker_properties
from unit_tests.coordinator.memory_coord import MemoryCoord

LISTENER = "PLAINTEXT"


class MemoryBroker:
    """A `Broker` in this process, without the methods that need a separate process. The broker's
    nodes in ZooKeeper survive its stops.
    """

    def __init__(self, data: Path, *, overrides: Mapping[str, str] | None = None) -> None:
        self.data = data
        self.port = free_port()
        self._overrides = dict(overrides or {})
        self._clock = SystemClock()
        self._tree = MemoryTree(self._clock)
        self._log = io.StringIO()
        self._handler = logging.StreamHandler(self._log)
        self._loop: LoopThread | None = None
        self._stack = AsyncExitStack()

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def process(self) -> ChildProcess:
        raise AssertionError("no process of its own: mark the test with `process`")

    @property
    def log_text(self) -> str:
        """Return the log lines of this process while the broker ran."""
        return self._log.getvalue()

    def start(self) -> None:
        logging.getLogger().addHandler(self._handler)
        self._loop = LoopThread("broker")
        self._loop.run(self._start())

    def stop(self) -> int:
        assert self._loop is not None, "the broker does not run"
        self._loop.run(self._stack.aclose())
        self._loop.close()
        self._loop = None
        logging.getLogger().removeHandler(self._handler)
        return 0

    def kill9(self) -> None:
        raise AssertionError("no process of its own: mark the test with `process`")

    def close(self) -> None:
        if self._loop is not None:
            self.stop()

    async def _start(self) -> None:
        overrides = {"pybroker.http.listener": "", **self._overrides}
        properties = broker_properties(
            None,
            data=str(self.data),
            port=self.port,
            zookeeper=None,
            overrides=tuple(f"{name}={value}" for name, value in overrides.items()),
        )
        bound = bind(Bind(LISTENER, "127.0.0.1", self.port))
        self._stack.callback(bound.close)
        around = StartupInputs(
            clock=self._clock,
            rng=random.SystemRandom(),
            disk=SystemDisk(clock=self._clock),
            proc=SystemProc(),
            metrics=Metrics(),
            sockets={LISTENER: bound},
            threads=ThreadedBlocking,
            new_cleaner_thread=BackgroundThread,
            connect=self._connect,
            connect_offsets=self._session,
        )
        await start_broker(BrokerConfig.parse(properties), around, self._stack, self._fail)

    async def _connect(self, usable: Sequence[str]) -> tuple[MemoryCoord, str]:
        coord = await self._session()
        self._stack.push_async_callback(coord.close)
        return coord, "memory"

    async def _session(self) -> MemoryCoord:
        coord = MemoryCoord(self._tree)
        await coord.start()
        return coord

    def _fail(self, reason: str | None) -> None:
        logging.getLogger(__name__).error("the broker must not go on: %s", reason)
