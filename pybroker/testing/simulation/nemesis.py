"""The nemesis: applies the faults of a schedule to a simulated cluster. A fault without a target,
or above the limit of `data_loss_budget.py`, is skipped."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from pybroker.model import TopicPartition
from pybroker.testing.simulation.broker import SimBroker
from pybroker.testing.simulation.cluster import SimCluster
from pybroker.testing.simulation.data_loss_budget import DataLossBudget
from pybroker.testing.simulation.faults import FAULTS, Scene, Undo, heal
from pybroker.testing.simulation.kinds import BY_NAME, Harm, Target
from pybroker.testing.simulation.movers import Moves
from pybroker.testing.simulation.schedule import FaultEvent, Schedule
from pybroker.testing.simulation.view import controller_of, leader_of


class Nemesis:
    """The faults of one run. `begun` counts the applied faults by kind."""

    def __init__(
        self,
        cluster: SimCluster,
        schedule: Schedule,
        topic: str,
        doubt: Callable[[int], object],
        coordinators: Mapping[str, Sequence[TopicPartition]] | None = None,
    ) -> None:
        """Prepare the faults of the schedule. A fault may name a broker by its role:

        - `leader/N`: the leader of partition N of `topic`;
        - `follower/N`: a random broker other than this leader;
        - `coordinator/N`: the leader of `coordinators["coordinator"][N]`;
        - `transactions/N`: the leader of `coordinators["transactions"][N]`.

        For `coordinator/N` and `transactions/N`, N is taken modulo the length of the list in
        `coordinators`. `doubt` gets the id of each broker whose disk may have lost data.
        """
        self.begun: Counter[str] = Counter()
        self.moves = Moves(cluster)
        self._cluster = cluster
        self._environment = cluster.environment
        self._schedule = schedule
        self._topic = topic
        self._coordinators = coordinators or {}
        self._doubt = doubt
        self._budget = DataLossBudget(cluster, schedule.options.min_isr)
        self._undo: dict[int, Undo] = {}

    @property
    def has_harmed(self) -> bool:
        """Return whether any fault of the run may have lost or damaged data on a disk."""
        return any(BY_NAME[kind].harm is not Harm.NONE for kind in self.begun)

    def start(self) -> None:
        """Start the schedule. Its times count from now."""
        for number, event in enumerate(self._schedule.events):
            self._environment.after(event.at, self._begin, number, event)

    def heal(self) -> None:
        """End all faults, and start all processes that are down. Idempotent."""
        for number in sorted(self._undo):
            self._end(number)
        heal(self._cluster)

    def _begin(self, number: int, event: FaultEvent) -> None:
        rng = self._environment.rng(f"fault {event.kind} {event.target}")
        brokers = self._brokers(event, rng)
        if brokers is None or not self._is_allowed(event, brokers):
            self._environment.note(f"not now: {event}")
            return
        self._environment.note(f"fault: {event}: {','.join(str(each.id) for each in brokers)}")
        self.begun[event.kind] += 1
        if BY_NAME[event.kind].harm is not Harm.NONE:
            for broker in brokers:
                self._doubt(broker.id)
        undo = FAULTS[event.kind](Scene(self._cluster, event, brokers, rng, self.moves))
        if undo is not None:
            self._undo[number] = undo
            self._environment.after(event.until - event.at, self._end, number)

    def _end(self, number: int) -> None:
        undo = self._undo.pop(number, None)
        if undo is not None:
            self._environment.note(f"fault ends: {self._schedule.events[number]}")
            undo()

    def _is_allowed(self, event: FaultEvent, brokers: list[SimBroker]) -> bool:
        options, kind = self._schedule.options, BY_NAME[event.kind]
        if options.lossy or kind.harm is Harm.NONE:
            return True
        if kind.harm is Harm.UNSYNCED and options.flush:
            return True
        if not all(self._budget.allows(broker.id) for broker in brokers):
            return False
        for broker in brokers:
            self._budget.spend(broker.id)
        return True

    def _brokers(self, event: FaultEvent, rng: random.Random) -> list[SimBroker] | None:
        """Return the target brokers. The list is empty for a fault of ZooKeeper. Return None if a
        target does not exist, or if the two targets of a fault are the same broker."""
        target = BY_NAME[event.kind].target
        if target is Target.ALL:
            return [*self._cluster.brokers.values()]
        if target is Target.BROKER:
            names = [event.target]
        elif target is Target.PAIR:
            names = event.target.replace(">", "-").split("-")
        else:
            return []
        found = [self._broker(name, rng) for name in names]
        known = [each for each in found if each is not None]
        return known if len({each.id for each in known}) == len(names) else None

    def _broker(self, name: str, rng: random.Random) -> SimBroker | None:
        brokers = self._cluster.brokers
        if name.isdecimal():
            return brokers.get(int(name))
        if name == "controller":
            return controller_of(self._cluster)
        word, _, number = name.partition("/")
        if word in ("coordinator", "transactions"):
            partitions = self._coordinators.get(word)
            if not partitions:
                return None
            return leader_of(self._cluster, *partitions[int(number) % len(partitions)])
        leader = leader_of(self._cluster, self._topic, int(number))
        if word == "leader":
            return leader
        return rng.choice([each for each in brokers.values() if each is not leader])
