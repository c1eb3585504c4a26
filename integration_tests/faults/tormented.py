"""The cluster of the fault runs: three brokers of `pybroker.testing.Cluster` over a ZooKeeper
ensemble of three, with a session and a lag time of a few seconds and small segments."""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Final

from integration_tests.apache import end_session
from integration_tests.ensemble import Ensemble
from integration_tests.faults.clocks import WallClocks
from pybroker.testing.cluster import Cluster
from pybroker.testing.place import Place

SESSION_S: Final = 3.0
LAG_S: Final = 2.0
CONFIG: Final[Mapping[str, object]] = {
    "zookeeper.session.timeout.ms": int(SESSION_S * 1000),
    "replica.lag.time.max.ms": int(LAG_S * 1000),
    "replica.fetch.wait.max.ms": 50,
    "log.segment.bytes": 65536,
    "min.insync.replicas": 2,
    "unclean.leader.election.enable": False,
    "auto.leader.rebalance.enable": False,
    "controlled.shutdown.enable": True,
    "pybroker.log.levels": "pybroker.state_change=DEBUG",
}
_SESSION_FILE: Final = "zookeeper.session"
_OFFSETS_SESSION_FILE: Final = "zookeeper.offsets.session"


class Tormented:
    """A cluster of brokers 1, 2 and 3 with data in `folder`, which runs from `start_all` (or
    `with`) to `close`.

    `places` runs brokers on other addresses than 127.0.0.1. `set_clock` needs `clocks`. `close`
    stops `ensemble`, too.
    """

    brokers = (1, 2, 3)

    def __init__(
        self,
        folder: Path,
        *,
        config: Mapping[str, object] | None = None,
        proxied: bool = False,
        places: Mapping[int, Place] | None = None,
        clocks: WallClocks | None = None,
        ensemble: Ensemble | None = None,
    ) -> None:
        self.ensemble = ensemble or Ensemble(folder / "ensemble")
        self._folder = folder
        self._config = {**CONFIG, **(config or {})}
        self._proxied = proxied
        self._clocks = clocks
        self._places = places if clocks is None else clocks.places
        self._cluster: Cluster | None = None
        self._paused: set[int] = set()
        self.is_spoiled = False
        """Whether a run failed. The cluster is then recreated, so that its state does not influence
        the next run.
        """

    def __enter__(self) -> Tormented:
        try:
            self.start_all()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def cluster(self) -> Cluster:
        assert self._cluster is not None, "the cluster was not started"
        return self._cluster

    @property
    def bootstrap(self) -> str:
        return self.cluster.bootstrap

    @property
    def config(self) -> Mapping[str, object]:
        """Return the configuration of all brokers."""
        return self._config

    @property
    def zookeeper(self) -> str:
        return self.ensemble.connect

    # life

    def fit(self) -> Tormented:
        """Return this cluster, recreated with empty disks if a run has failed."""
        if self.is_spoiled:
            self.close()
            self._cluster = None
            self._paused.clear()
            self._folder = self._folder.with_name(self._folder.name + "-anew")
            self.ensemble = Ensemble(self._folder / "ensemble")
            self.start_all()
            self.is_spoiled = False
        return self

    def start_all(self) -> None:
        """Start the brokers that do not run, concurrently. Return when all brokers serve."""
        if self._cluster is None:
            self.ensemble.start()
            self._cluster = self._new_cluster()
        self.cluster.start()

    def _new_cluster(self) -> Cluster:
        return Cluster(
            len(self.brokers),
            config=self._config,
            zookeeper=self.ensemble.connect,
            data=self._folder / "brokers",
            proxied=self._proxied,
            places=self._places,
        )

    def running(self) -> Collection[int]:
        return self.cluster.running

    def start(self, broker: int, *, config: Mapping[str, object] | None = None) -> None:
        """Start the broker with these options in addition to its own."""
        self.cluster.restart(broker, config=config)

    def stop(self, broker: int) -> int:
        return self.cluster.terminate(broker)

    def kill9(self, broker: int) -> None:
        self._paused.discard(broker)
        self.cluster.kill(broker)

    def kill9_all(self) -> None:
        """Kill all running brokers at once."""
        with ThreadPoolExecutor() as threads:
            list(threads.map(self.kill9, self.running()))

    def pause(self, broker: int) -> None:
        self._paused.add(broker)
        self.cluster.pause(broker)

    def resume(self, broker: int) -> None:
        self._paused.discard(broker)
        self.cluster.resume(broker)

    def close(self) -> None:
        """Kill all processes. Idempotent."""
        if self._cluster is not None:
            self._cluster.close(keep=True)
        self.ensemble.close()

    # links, sessions and clocks

    def set_clock(self, broker: int, seconds: float) -> None:
        """Set the broker's wall clock ahead of the right time by `seconds` (negative: behind
        it).
        """
        assert self._clocks is not None, "the brokers' clocks are those of the machine"
        self._clocks.set(broker, seconds)

    def cut(self, broker: int, *others: int | str, direction: str = "both") -> None:
        """Cut the broker off from these peers: brokers, "zookeeper" or "clients"; by default from
        all brokers and ZooKeeper."""
        self.cluster.cut(broker, others or None, direction=direction)

    def heal(self) -> None:
        for broker in list(self._paused):
            if broker in self.running():
                self.resume(broker)
        self._paused.clear()
        for member in self.ensemble.members.keys() - set(self.ensemble.running):
            self.ensemble.restart(member)
        self.cluster.heal()

    def expire_session(self, broker: int, *, of_offsets: bool = False) -> int:
        """Expire the broker's session, or its session for offsets, at once, as ZooKeeper does after
        the session timeout. Return the session id.
        """
        name = _OFFSETS_SESSION_FILE if of_offsets else _SESSION_FILE
        told = json.loads(self._session_file(broker, name).read_text())
        return end_session(self.zookeeper, told["sessions"][-1])

    # files

    def log_dir(self, broker: int) -> Path:
        return self.cluster.log_dir(broker)

    def log_text(self, broker: int) -> str:
        return self.cluster.log_text(broker)

    def wipe(self, broker: int) -> None:
        """Replace the broker's disk by an empty disk. The broker must not run."""
        shutil.rmtree(self.log_dir(broker))

    def _session_file(self, broker: int, name: str) -> Path:
        return self.log_dir(broker) / name
