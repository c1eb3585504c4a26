"""A real cluster for tests: broker processes on free ports of 127.0.0.1, and a ZooKeeper process
that survives the death of any broker.

    with Cluster(3) as cluster:
        ...  # any Kafka client, at cluster.bootstrap
        cluster.kill(cluster.leader("orders", 0))

Every call blocks and has a deadline; the error after the deadline shows the brokers' last log
lines. All processes end with the test run, even if the run is killed."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from shutil import rmtree
from types import TracebackType
from typing import Final

from pybroker.coordinator.zookeeper.connect_string import parse_connect_string
from pybroker.errors import StartupError
from pybroker.host.child_process import wait_until_stopped
from pybroker.host.embedded_zookeeper import EmbeddedZooKeeper
from pybroker.model import PartitionState, TopicPartition
from pybroker.testing.cluster_links import Links, Side
from pybroker.testing.cluster_parts import (
    BROKERS,
    CLIENTS,
    OWN_OPTIONS,
    BrokerProcess,
    ClusterError,
    default_config,
    option_text,
)
from pybroker.testing.cluster_waits import Waits
from pybroker.testing.loop_thread import LoopThread
from pybroker.testing.place import Place
from pybroker.testing.relay import Direction, Tap
from pybroker.testing.sockets import free_ports

__all__ = ["Cluster", "ClusterError", "Direction", "Tap"]

WAIT_SECONDS_MAX: Final = 60.0
STOP_SECONDS_MAX: Final = 30.0
_NOT_STARTED: Final = "the cluster was not started: call start(), or use a with block"


class Cluster:
    """A cluster of brokers with the ids 1 to `brokers`. Nothing runs before `start` (or `with`).

    - `config`: options of every broker; they override the test defaults.
    - `zookeeper`: HOST:PORT/chroot, in place of the cluster's own ZooKeeper.
    - `data`: the directory for all files, which is never removed. The default is a temporary
      directory, removed if no test failed.
    - `proxied`: put a proxy on each connection, as `cut`, `delay`, `reset` and `tap` require.
    - `places`: broker id -> the network namespace or user of the broker.
    - `environment`: environment variables of the brokers.
    """

    def __init__(
        self,
        brokers: int = 3,
        *,
        config: Mapping[str, object] | None = None,
        zookeeper: str | None = None,
        data: Path | str | None = None,
        proxied: bool = False,
        places: Mapping[int, Place] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        given = {name: option_text(value) for name, value in (config or {}).items()}
        if refused := sorted(OWN_OPTIONS & given.keys()):
            raise ClusterError(
                f"the cluster itself sets {', '.join(refused)}: remove these options from `config`"
            )
        self._config = {**default_config(brokers), **given}
        self._environment = dict(environment or {})
        self._given_zookeeper = zookeeper
        self._is_temporary = data is None
        self._size = brokers
        self._places = dict(places or {})
        self._proxied = proxied
        self._data = None if data is None else Path(data).absolute()
        self._brokers: dict[int, BrokerProcess] = {}
        self._links: Links | None = None
        self._embedded: EmbeddedZooKeeper | None = None
        self._zookeeper_runs = False
        self._waits = Waits(self._brokers, self._reachable, lambda: self.zookeeper)
        self._thread: LoopThread | None = None

    def __enter__(self) -> Cluster:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None and self._brokers:
            error.add_note(f"data and logs of the cluster are kept in {self.data}")
        self.close(keep=error is not None)

    # facts

    @property
    def ids(self) -> list[int]:
        """Return the ids of all brokers, whether they run or not."""
        return list(range(1, self._size + 1))

    @property
    def running(self) -> list[int]:
        """Return the ids of the brokers whose process runs, including paused brokers."""
        return [each.id for each in self._brokers.values() if each.is_running]

    @property
    def bootstrap(self) -> str:
        """Return the bootstrap.servers of the cluster: HOST:PORT of each broker, joined by
        commas."""
        return ",".join(self.address(broker) for broker in self.ids)

    @property
    def zookeeper(self) -> str:
        """Return HOST:PORT/chroot of the cluster's ZooKeeper. A connection to this address bypasses
        all proxies."""
        if self._given_zookeeper is not None:
            return self._given_zookeeper
        if self._embedded is None:
            raise ClusterError(_NOT_STARTED)
        return self._embedded.connect

    @property
    def data(self) -> Path:
        """Return the directory of the cluster. It has the files (`broker-ID`) and the output
        (`broker-ID.log`) of each broker, and the files of ZooKeeper (`zookeeper`)."""
        if self._data is None:
            raise ClusterError(_NOT_STARTED)
        return self._data

    def address(self, broker: int) -> str:
        """Return HOST:PORT of one broker, for clients."""
        return self._broker(broker).bootstrap

    def pid(self, broker: int) -> int:
        """Return the process id of a running broker."""
        child = self._broker(broker).child
        if child is None or child.poll() is not None:
            raise ClusterError(f"broker {broker} does not run; start it with restart({broker})")
        return child.pid

    def log_dir(self, broker: int) -> Path:
        """Return the directory of a broker's partitions (log.dirs)."""
        return self._broker(broker).data

    def log_text(self, broker: int) -> str:
        """Return the output of all processes that have run as this broker."""
        return self._broker(broker).log_text()

    def last_lines(self) -> str:
        """Return the last lines of every broker's output."""
        return "\n".join(process.last_lines() for process in self._brokers.values())

    # life

    def start(self) -> None:
        """Start ZooKeeper and all brokers that do not run. Return when each broker serves and has
        all other brokers in its metadata. A failed start leaves no process running."""
        if self._thread is None:
            self._thread = LoopThread("pybroker-cluster")
        try:
            self._thread.run(self._start())
        except BaseException as error:
            self.close(keep=True)
            if self._data is not None:
                error.add_note(f"data and logs of the cluster are kept in {self._data}")
            raise

    def stop(self) -> None:
        """Stop the brokers one after another by a controlled shutdown, then ZooKeeper. All data
        stays."""
        self._loop.run(self._stop())

    def close(self, *, keep: bool = False) -> None:
        """Kill all processes. Remove the temporary directory, unless `keep` is set. Idempotent."""
        thread, self._thread = self._thread, None
        if thread is not None:
            try:
                thread.run(self._end())
            finally:
                thread.close()
        if self._is_temporary and not keep and self._data is not None:
            rmtree(self._data, ignore_errors=True)
            self._data = None

    def kill(self, broker: int) -> None:
        """Send SIGKILL to a broker and wait until its process has ended."""
        self._loop.run(self._signal_and_wait(broker, signal.SIGKILL))

    def terminate(self, broker: int, *, seconds: float = STOP_SECONDS_MAX) -> int:
        """Send SIGTERM to a broker and return its exit code. Raises ClusterError if the process
        still runs after `seconds`."""
        return self._loop.run(self._signal_and_wait(broker, signal.SIGTERM, seconds))

    def pause(self, broker: int) -> None:
        """Send SIGSTOP to a broker: its connections stay open, but it sends nothing."""
        process = self._broker(broker)
        process.signal(signal.SIGSTOP)
        process.is_paused = True
        if process.child is not None:
            wait_until_stopped(process.child.pid)

    def resume(self, broker: int) -> None:
        """Send SIGCONT to a broker: it continues after `pause`."""
        self._broker(broker).signal(signal.SIGCONT)
        self._broker(broker).is_paused = False

    def restart(self, broker: int, *, config: Mapping[str, object] | None = None) -> None:
        """Stop a broker by SIGTERM if it runs, and start it with `config` added to its options.
        Return when the broker serves and the other brokers have the broker in their metadata.
        Raises ClusterError."""
        process = self._broker(broker)
        if process.is_running:
            self.terminate(broker)
        process.properties |= {name: option_text(value) for name, value in (config or {}).items()}
        self._loop.call(self._launch, process)
        self._loop.run(self._waits.ready(WAIT_SECONDS_MAX, launched=[process]))

    def mend(self) -> None:
        """Start, resume and reconnect all brokers and ZooKeeper. Return when all brokers serve."""
        paused = [process for process in self._brokers.values() if process.is_paused]
        for process in paused:
            if process.is_running:
                self.resume(process.id)
        was_cut = self._links is not None and self._links.cut_off
        self.heal()
        if self._embedded is not None and self._embedded.pid:
            self.resume_zookeeper()
        if paused or was_cut or self.running != self.ids or self._thread is None:
            self.start()

    def pause_zookeeper(self) -> None:
        """Send SIGSTOP to the cluster's own ZooKeeper."""
        self._signal_zookeeper(signal.SIGSTOP)
        if self._embedded is not None and self._embedded.pid:
            wait_until_stopped(self._embedded.pid)

    def resume_zookeeper(self) -> None:
        """Send SIGCONT to the cluster's own ZooKeeper."""
        self._signal_zookeeper(signal.SIGCONT)

    def kill_zookeeper(self) -> None:
        """Send SIGKILL to the cluster's own ZooKeeper. ZooKeeper restarts after a second."""
        self._signal_zookeeper(signal.SIGKILL)

    # links

    def cut(
        self,
        broker: int,
        from_: int | str | Iterable[int | str] | None = None,
        *,
        direction: str = "both",
    ) -> None:
        """Hold back all data between a broker and the peers in `from_`: `"zookeeper"`, `"clients"`
        or broker ids. None means ZooKeeper and all other brokers. Connections stay open, and `heal`
        delivers the data.

        `direction` is "in" (only data to the broker), "out" or "both". Raises ClusterError without
        `proxied=True`.
        """
        others: list[int | str]
        if from_ is None:
            others = ["zookeeper", *(other for other in self.ids if other != broker)]
        else:
            others = [from_] if isinstance(from_, int | str) else list(from_)
        self._loop.call(self._proxies().cut, broker, others, Side(direction))

    def delay(self, seconds: float, *, jitter: float = 0.0, to: str | None = None) -> None:
        """Delay each piece of data (at most 64 KiB) by `seconds` plus a random time of up to
        `jitter` seconds, in order. `to` selects the connections: `"zookeeper"` (from brokers to
        ZooKeeper), `"clients"` (from clients to brokers), `"brokers"` (between brokers), or None
        (all). Requires `proxied=True`."""
        self._loop.call(self._proxies().delay, seconds, jitter, to)

    def reset(self, broker: int) -> None:
        """Reset all connections of a broker. New connections are accepted. Requires
        `proxied=True`."""
        self._loop.call(self._proxies().reset, broker)

    def tap(self, broker: int, from_: str, make: Callable[[], Tap] | None) -> None:
        """Let the test inspect the traffic between a broker and `from_` (`"zookeeper"` or
        `"clients"`). Existing connections are reset.

        `make()` returns a tap for each new connection: a function of a `Direction` and the bytes to
        pass on. A tap that returns False resets the connection. Taps run in a thread of the
        cluster. `heal`, or a `make` of None, ends the inspection. Requires `proxied=True`.
        """
        self._loop.call(self._proxies().tap, broker, from_, make)

    def heal(self) -> None:
        """End the effects of `cut`, `delay` and `tap`. Data that a cut or delay has held back
        arrives now."""
        if self._links is not None:
            self._loop.call(self._links.heal)

    # queries

    def wait_until_ready(self, *, seconds: float = WAIT_SECONDS_MAX) -> None:
        """Wait until every reachable broker serves and has all reachable brokers in its metadata. A
        paused or isolated broker is not reachable. Raises ClusterError after `seconds`."""
        self._loop.run(self._waits.ready(seconds))

    def wait_until_in_sync(
        self, topic: str | None = None, *, seconds: float = WAIT_SECONDS_MAX
    ) -> None:
        """Wait until ZooKeeper and every reachable broker's metadata show a leader and a full
        ISR for all partitions of the topic (None: of all topics). Raises ClusterError after
        `seconds`."""
        self._loop.run(self._waits.in_sync(topic, seconds))

    def controller(
        self, *, other_than: int | None = None, seconds: float = WAIT_SECONDS_MAX
    ) -> int:
        """Wait until a running broker other than `other_than` is the controller. Return the id of
        this broker. Raises ClusterError after `seconds`."""
        return self._loop.run(self._waits.controller(other_than, seconds))

    def leader(
        self,
        topic: str,
        partition: int,
        *,
        other_than: int | None = None,
        seconds: float = WAIT_SECONDS_MAX,
    ) -> int:
        """Wait until a running broker other than `other_than` leads the partition. Return the id of
        this broker. Raises ClusterError after `seconds`."""
        return self._loop.run(
            self._waits.leader(TopicPartition(topic, partition), other_than, seconds)
        )

    def partition(self, topic: str, partition: int) -> PartitionState | None:
        """Return the partition's state in ZooKeeper (leader, epochs, ISR). None: the partition does
        not exist."""
        return self._loop.run(self._waits.view.state(TopicPartition(topic, partition)))

    # private

    @property
    def _loop(self) -> LoopThread:
        if self._thread is None:
            raise ClusterError(_NOT_STARTED)
        return self._thread

    def _broker(self, broker: int) -> BrokerProcess:
        found = self._brokers.get(broker)
        if found is None:
            raise ClusterError(
                f"there is no broker {broker}; the brokers are {', '.join(map(str, self._brokers))}"
                if self._brokers
                else _NOT_STARTED
            )
        return found

    def _proxies(self) -> Links:
        if self._links is None:
            raise ClusterError("cut, delay, reset and tap need proxies: Cluster(proxied=True)")
        return self._links

    def _reachable(self) -> list[BrokerProcess]:
        cut_off: Collection[int] = self._links.cut_off if self._links is not None else ()
        return [
            each
            for each in self._brokers.values()
            if each.is_running and not each.is_paused and each.id not in cut_off
        ]

    async def _start(self) -> None:
        if self._data is None:
            self._data = Path(tempfile.mkdtemp(prefix="pybroker-cluster-"))
        self._data.mkdir(parents=True, exist_ok=True)
        if self._given_zookeeper is None and self._embedded is None:
            port = free_ports(1)[0]
            self._embedded = EmbeddedZooKeeper(str(self._data / "zookeeper"), port=port)
        begins = self._embedded is not None and not self._zookeeper_runs
        try:
            if self._embedded is not None and begins:
                await self._embedded.launch()
                self._zookeeper_runs = True
            if not self._brokers:
                self._make_brokers()
            if self._proxied and self._links is None:
                self._links = Links(self._brokers, parse_connect_string(self.zookeeper))
                await self._links.start()
            for process in self._brokers.values():
                if not process.is_running:
                    self._launch(process)
            if self._embedded is not None and begins:
                await self._embedded.wait_until_serving()
        except StartupError as error:
            raise ClusterError(str(error)) from error
        await self._waits.ready(WAIT_SECONDS_MAX, launched=list(self._brokers.values()))

    def _make_brokers(self) -> None:
        listeners = (CLIENTS, BROKERS) if self._proxied else ("PLAINTEXT",)
        free = iter(free_ports(2 * len(listeners) * self._size))
        for broker in self.ids:
            ports = {name: next(free) for name in listeners}
            told = {name: next(free) for name in listeners} if self._proxied else ports
            place = self._places.get(broker, Place())
            self._brokers[broker] = BrokerProcess(
                id=broker,
                data=self.data / f"broker-{broker}",
                log_file=self.data / f"broker-{broker}.log",
                place=place,
                ports=ports,
                advertised=told,
                properties=dict(self._config),
            )

    def _launch(self, process: BrokerProcess) -> None:
        connect = self.zookeeper
        if self._links is not None:
            connect = self._links.zookeeper_of(process.id)
        process.launch(connect, self._environment)

    async def _stop(self) -> None:
        for process in self._brokers.values():
            if process.is_running:
                await self._signal_and_wait(process.id, signal.SIGTERM)
        await self._stop_zookeeper()

    async def _end(self) -> None:
        for process in self._brokers.values():
            if process.is_running:
                process.signal(signal.SIGKILL)
        for process in self._brokers.values():
            if process.child is not None:
                await process.wait(STOP_SECONDS_MAX)
        await self._stop_zookeeper()
        links, self._links = self._links, None
        if links is not None:
            await links.close()

    async def _stop_zookeeper(self) -> None:
        await self._waits.view.close()
        if self._embedded is not None:
            await self._embedded.stop()
        self._zookeeper_runs = False

    async def _signal_and_wait(
        self, broker: int, number: signal.Signals, seconds: float = STOP_SECONDS_MAX
    ) -> int:
        process = self._broker(broker)
        process.signal(number)
        if process.is_paused:
            if number != signal.SIGKILL:  # SIGKILL also ends a stopped process
                process.signal(signal.SIGCONT)
            process.is_paused = False
        return await process.wait(seconds)

    def _signal_zookeeper(self, number: signal.Signals) -> None:
        if self._embedded is None:
            raise ClusterError(
                "this cluster does not run its ZooKeeper: it was created with an address in"
                " `zookeeper`"
            )
        pid = self._embedded.pid
        if not pid:  # os.kill(0) would signal all processes of the test
            raise ClusterError(
                "the cluster's ZooKeeper does not run now; wait until it has restarted"
            )
        with suppress(ProcessLookupError):
            os.kill(pid, number)
