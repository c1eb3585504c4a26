"""Converts the changes of a simulated cluster's ZooKeeper nodes into a history.

The checks share no code with the brokers, so this module parses the nodes itself.
"""

from __future__ import annotations

import json
from typing import Any, Final, Protocol
from urllib.parse import unquote

from pybroker.model import TopicPartition
from pybroker.testing.history.model import (
    ControllerTerm,
    CoordinatorTerm,
    History,
    Loss,
    State,
    TopicLife,
)
from pybroker.testing.simulation.workload.options import KEYED_TOPIC
from pybroker.testing.simulation.workload.recorder import nanoseconds

_INTERNAL: Final = "__"
_MIN_ISR: Final = "min.insync.replicas"


class Change(Protocol):
    """A ZooKeeper node's content after a transaction; `data` is None for a deleted node. `at` is in
    virtual seconds."""

    @property
    def zxid(self) -> int: ...

    @property
    def path(self) -> str: ...

    @property
    def data(self) -> bytes | None: ...

    @property
    def version(self) -> int: ...

    @property
    def at(self) -> float: ...


class ClusterRecord:
    """The record of a cluster's changes in ZooKeeper. Call `committed` for every change, in order.
    `states`, `lives` and `topic_ids` contain only topics and partitions that exist now."""

    def __init__(self, history: History, *, min_isr: int = 1) -> None:
        """The record adds each change that it receives to `history`. `min_isr` is the default of
        min.insync.replicas."""
        self.history = history
        self.states: dict[TopicPartition, State] = {}
        self.lives: dict[str, TopicLife] = {}
        self.topic_ids: dict[str, str] = {}
        self.changes = 0
        """The number of changes passed to `committed`."""
        self._min_isr = min_isr
        self._min_isr_of: dict[str, int] = {}
        self._admitted: dict[tuple[TopicPartition, int], Loss] = {}
        self._epoch: tuple[int, int] = (0, 0)
        self._holder: tuple[int, int] = (0, 0)

    def committed(self, change: Change) -> None:
        self.changes += 1
        at = nanoseconds(change.at)
        match change.path.split("/")[1:]:
            case ["brokers", "topics", name]:
                self._topic(unquote(name), at, change.data)
            case ["brokers", "topics", name, "partitions", number, "state"]:
                self._state(TopicPartition(unquote(name), int(number)), at, change)
            case ["admin", "delete_topics", name] if change.data is not None:
                self._doom(unquote(name), at)
            case ["config", "topics", name]:
                self._config(unquote(name), change.data)
            case ["pybroker", "losses", name, number]:
                self._receipts(TopicPartition(unquote(name), int(number)), at, change.data)
            case ["pybroker", "coordinators", number] if change.data is not None:
                broker = int(json.loads(change.data)["broker"])
                self.history.groups.coordinator_terms.append(
                    CoordinatorTerm(int(number), broker, at)
                )
            case ["controller"] if change.data is not None:
                self._holder = (change.zxid, int(json.loads(change.data)["brokerid"]))
                self._controller_term()
            case ["controller_epoch"] if change.data is not None:
                self._epoch = (change.zxid, int(change.data))
                self._controller_term()

    def alive(self) -> list[TopicPartition]:
        """Return the partitions of all topics whose deletion was not requested."""
        return [
            TopicPartition(life.topic, number)
            for life in self.lives.values()
            if not life.doomed
            for number in sorted(life.replicas)
        ]

    def loaded(self) -> list[TopicPartition]:
        """Return the partitions to which producers send numbered values. These are the partitions
        of all topics whose deletion was not requested, without internal topics and without the
        compacted topic."""
        return [
            each
            for each in self.alive()
            if not each.topic.startswith(_INTERNAL) and each.topic != KEYED_TOPIC
        ]

    def required(self, partition: TopicPartition) -> int:
        """Return the number of in-sync replicas that the partition needs for acks=all."""
        life = self.lives[partition[0]]
        return min(life.min_isr, len(life.replicas.get(partition[1], ())))

    def _topic(self, name: str, at: int, data: bytes | None) -> None:
        if data is None:
            self._doom(name, at)
            self.lives.pop(name, None)
            self.topic_ids.pop(name, None)
            return
        content: dict[str, Any] = json.loads(data)
        replicas = {int(number): tuple(row) for number, row in content["partitions"].items()}
        life = self.lives.get(name)
        if life is None:
            min_isr = self._min_isr_of.get(name, self._min_isr)
            life = self.lives[name] = TopicLife(name, at, replicas, min_isr)
            self.history.lives.append(life)
        life.replicas = replicas
        self.topic_ids[name] = content.get("topic_id", "")

    def _doom(self, name: str, at: int) -> None:
        life = self.lives.get(name)
        if life is not None and not life.doomed:
            life.doomed = at

    def _config(self, name: str, data: bytes | None) -> None:
        """Record min.insync.replicas from the topic's options in ZooKeeper. The smallest value of a
        run applies to the whole history."""
        config: dict[str, str] = {} if data is None else json.loads(data)["config"]
        min_isr = int(config.get(_MIN_ISR, self._min_isr))
        self._min_isr_of[name] = min_isr
        life = self.lives.get(name)
        if life is not None:
            life.min_isr = min(life.min_isr, min_isr)

    def _state(self, partition: TopicPartition, at: int, change: Change) -> None:
        if change.data is None:
            self.states.pop(partition, None)
            return
        told: dict[str, Any] = json.loads(change.data)
        state = self.states[partition] = State(
            partition=partition,
            version=change.version,
            leader=told["leader"],
            epoch=told["leader_epoch"],
            isr=tuple(told["isr"]),
            eligible=tuple(told.get("eligible", ())),
            controller_epoch=told["controller_epoch"],
            at=at,
            current_controller_epoch=self._epoch[1],
        )
        self.history.states.append(state)

    def _receipts(self, partition: TopicPartition, at: int, data: bytes | None) -> None:
        """Add to the history each data loss that `data`, the content of a ZooKeeper node,
        describes. Add at most one loss for each leader epoch. Forget the epochs if the node was
        deleted (`data` is None), because a recreated topic may have the same epochs again."""
        if data is None:
            self._admitted = {
                key: loss for key, loss in self._admitted.items() if key[0] != partition
            }
            return
        for receipt in json.loads(data)["receipts"]:
            key = (partition, int(receipt["leader_epoch"]))
            if key not in self._admitted:
                loss = self._admitted[key] = Loss(partition, at, receipt["reason"])
                self.history.losses.append(loss)
            self._admitted[key].given_up = tuple(
                (int(each["from"]), int(each["to"])) for each in receipt.get("given_up", ())
            )

    def _controller_term(self) -> None:
        """Record the new controller and its epoch, if one ZooKeeper transaction wrote both."""
        if self._epoch[0] == self._holder[0]:
            self.history.controller_terms.append(ControllerTerm(self._epoch[1], self._holder[1]))
