"""Follows a topic's state in ZooKeeper independently of the brokers: leaders, in-sync replicas, the
controller.

A thread reads repeatedly and records each new version with the time at which it was stored.
Callers may ask for the current state at any time.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import kazoo.client  # type: ignore[import-untyped]
import kazoo.exceptions  # type: ignore[import-untyped]
import kazoo.handlers.threading  # type: ignore[import-untyped]

from pybroker.testing.history.ops import OpsLog
from unit_tests.patience import PATIENCE_S

READ_S: Final = 0.1
_FAILURES: Final = (
    kazoo.exceptions.KazooException,
    kazoo.handlers.threading.KazooTimeoutError,
)
NOBODY: Final = -1


@dataclass(frozen=True, slots=True)
class PartitionNow:
    leader: int
    epoch: int
    isr: tuple[int, ...]
    eligible: tuple[int, ...]
    version: int
    controller_epoch: int
    written: int = field(compare=False)
    """The time of the write in ns of the monotonic clock, from ZooKeeper's stat, because the state
    may be read late.
    """


class Watch:
    """A watcher of one topic's state, from `start` until `close`."""

    def __init__(self, connect: str, topic: str, partitions: int, log: OpsLog) -> None:
        self._topic = topic
        self._partitions = partitions
        self._log = log
        self._client = kazoo.client.KazooClient(connect, timeout=10.0)
        self._stopping = threading.Event()
        self._versions: dict[int, int] = {}
        self._epochs: set[int] = set()
        self._thread = threading.Thread(target=self._follow, name=f"watch-{topic}", daemon=True)

    def start(self) -> None:
        self._client.start(timeout=PATIENCE_S)
        self._thread.start()

    def close(self) -> None:
        """Stop watching. Idempotent."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._client.stop()
        self._client.close()

    def now(self, partition: int) -> PartitionNow | None:
        """Return the partition's state; None while it has none. Raises kazoo's errors."""
        path = f"/brokers/topics/{self._topic}/partitions/{partition}/state"
        try:
            data, stat = self._client.get(path)
        except kazoo.exceptions.NoNodeError:
            return None
        told: dict[str, Any] = json.loads(data)
        return PartitionNow(
            leader=told["leader"],
            epoch=told["leader_epoch"],
            isr=tuple(told["isr"]),
            eligible=tuple(told.get("eligible", ())),
            version=stat.version,
            controller_epoch=told["controller_epoch"],
            written=time.monotonic_ns() - (time.time_ns() - stat.mtime * 1_000_000),
        )

    def all(self) -> dict[int, PartitionNow]:
        """Return the states of all partitions, except states that cannot be read at the moment."""
        found = {}
        for partition in range(self._partitions):
            try:
                state = self.now(partition)
            except _FAILURES:
                continue
            if state is not None:
                found[partition] = state
        return found

    def loss(self, partition: int) -> dict[str, Any] | None:
        """Return the loss receipt of the partition; None if it has none."""
        try:
            data, _ = self._client.get(f"/pybroker/losses/{self._topic}/{partition}")
        except kazoo.exceptions.NoNodeError:
            return None
        told: dict[str, Any] = json.loads(data)
        return told

    def controller(self) -> int:
        """Return the id of the controller, or NOBODY."""
        try:
            data, _ = self._client.get("/controller")
        except _FAILURES:
            return NOBODY
        return int(json.loads(data)["brokerid"])

    def registered(self) -> set[int]:
        """Return the ids of the registered brokers."""
        try:
            return {int(name) for name in self._client.get_children("/brokers/ids")}
        except _FAILURES:
            return set()

    def nodes(self, path: str = "/") -> Iterator[str]:
        """Return all nodes below `path` as lines, to analyse a failure."""
        try:
            data, stat = self._client.get(path)
            yield f"{path} version={stat.version} {data!r}"
            children = sorted(self._client.get_children(path))
        except _FAILURES as error:
            yield f"{path} {error!r}"
            return
        for child in children:
            yield from self.nodes(f"{path.rstrip('/')}/{child}")

    def _follow(self) -> None:
        while not self._stopping.wait(READ_S):
            for partition, state in self.all().items():
                if self._versions.get(partition) != state.version:
                    self._versions[partition] = state.version
                    self._write_state(partition, state)
            self._note_controller()

    def _write_state(self, partition: int, state: PartitionNow) -> None:
        self._log.write(
            "watch", "state", "ok",
            tp=[self._topic, partition],
            version=state.version,
            leader=state.leader,
            epoch=state.epoch,
            isr=list(state.isr),
            eligible=list(state.eligible),
            controller_epoch=state.controller_epoch,
            written=state.written,
        )  # fmt: skip

    def _note_controller(self) -> None:
        """Record the controller. Controller epoch and broker id belong together only if one
        transaction wrote both nodes.
        """
        try:
            data, epoch_stat = self._client.get("/controller_epoch")
            holder, stat = self._client.get("/controller")
        except _FAILURES:
            return
        epoch = int(data)
        if stat.czxid == epoch_stat.mzxid and epoch not in self._epochs:
            self._epochs.add(epoch)
            broker = json.loads(holder)["brokerid"]
            self._log.write("watch", "controller", "ok", epoch=epoch, broker=broker)
