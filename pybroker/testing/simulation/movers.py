"""Simulated clients that move replicas between log directories (AlterReplicaLogDirs), and the check
that an accepted move ends in the requested directory."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from pybroker.client import Admin, Replica
from pybroker.client.errors import ClientError, ResponseError
from pybroker.model import TopicPartition
from pybroker.storage.filename import (
    MOVED_HERE,
    MOVING_AWAY,
    OUTDATED,
    parse_future_directory,
    parse_partition_directory,
)
from pybroker.testing.history.model import UNKNOWN, Violation
from pybroker.testing.simulation.broker import SimBroker
from pybroker.testing.simulation.cluster import SimCluster
from pybroker.testing.simulation.disk_view import DiskView
from pybroker.testing.simulation.loop import ProcessLoop
from pybroker.testing.simulation.view import stored_states
from pybroker.testing.simulation.workload.options import CLIENT_OPTIONS

MOVED: Final = "moves-kept"
ONE_PLACE: Final = "one-directory-per-replica"
_AT_ONCE_MOST: Final = 3
_MARKS: Final = (MOVED_HERE, MOVING_AWAY, OUTDATED)


class _ReplicaIdentity(NamedTuple):
    """The identity of a replica: the process of its broker, and the topic id."""

    process: str
    topic_id: uuid.UUID | None


@dataclass(frozen=True, slots=True)
class _Accepted:
    """A move to `directory` that the broker has accepted."""

    life: _ReplicaIdentity
    directory: str


class Moves:
    """All requests of a run to move replicas between log directories. `counts` has the number of
    answers of each kind. `failures` has the unexpected errors of the clients."""

    def __init__(self, cluster: SimCluster) -> None:
        self.counts: Counter[str] = Counter()
        self.failures: list[str] = []
        self.cluster = cluster
        self._requesters: list[_MoveRequester] = []
        self._accepted: dict[tuple[int, TopicPartition], _Accepted] = {}
        self._under_way: Counter[tuple[int, TopicPartition]] = Counter()
        self._crossed: set[tuple[int, TopicPartition]] = set()
        """The replicas for which several requests are under way, in an unknown order."""
        self._unsure: set[tuple[str, TopicPartition]] = set()
        """Pairs of a broker process and a replica. The process may still carry out a request to
        move the replica, although the client received no answer."""

    def ask(self, broker: SimBroker, each_s: float, rng: random.Random) -> Callable[[], None]:
        """Start a client that sends a move request to the broker about every `each_s` seconds.
        Return a function that stops the client."""
        requester = _MoveRequester(self, broker, f"mover-{len(self._requesters) + 1}", each_s, rng)
        self._requesters.append(requester)
        requester.start()
        return requester.stop

    @property
    def are_finished(self) -> bool:
        """Return whether all clients have stopped, and no broker has an unfinished move."""
        return not any(requester.is_running for requester in self._requesters) and not any(
            broker.rooms.logs.moves.current or broker.rooms.logs.moves.unfinished
            for broker in self.cluster.brokers.values()
            if broker.rooms is not None
        )

    def asked(self, broker: SimBroker, partition: TopicPartition) -> _ReplicaIdentity | None:
        """Record a request to move the replica. Return the replica's identity, which the caller
        passes to `answered`. Return None if the broker does not run or has no such replica."""
        key = (broker.id, partition)
        self._accepted.pop(key, None)
        self._under_way[key] += 1
        if self._under_way[key] > 1:
            self._crossed.add(key)
        return _identity(broker, partition)

    def answered(
        self,
        broker: SimBroker,
        replica: Replica,
        directory: str,
        asked_identity: _ReplicaIdentity | None,
        error: object,
    ) -> None:
        """Record the answer to a request to move a replica to `directory`. `asked_identity` is the
        result of `asked`. `error` is None if the broker accepted the move."""
        partition = replica.topic_partition
        key, now = (broker.id, partition), _identity(broker, partition)
        if error is None:
            self.counts["accepted"] += 1
            if now is not None and now == asked_identity and key not in self._crossed:
                self._accepted[key] = _Accepted(now, directory)
        elif isinstance(error, ResponseError):
            self.counts["refused"] += 1
        else:
            self.counts["unanswered"] += 1
            # The broker may not have the replica yet: it still starts, but it can move the log.
            if broker.machine.loop is not None:
                self._unsure.add((broker.machine.loop.name, partition))
        self._under_way[key] -= 1
        if not self._under_way[key]:
            self._crossed.discard(key)

    # verdict

    def judge(self, errors: Collection[str], *, disks_were_harmed: bool) -> Iterator[Violation]:
        """Yield a violation for each accepted move whose replica is not in the requested directory,
        and for each replica in two directories. Call this after recovery, when `are_finished` is
        true.

        Moves that failed according to the brokers' error lines `errors` are allowed. With
        `disks_were_harmed`, moves are not checked.
        """
        for broker in self.cluster.brokers.values():
            yield from _misplaced(broker, spares_copies=disks_were_harmed)
        for (number, partition), move in {} if disks_were_harmed else self._accepted.items():
            broker, process = self.cluster.brokers[number], move.life.process
            if broker.rooms is None or _identity(broker, partition) != move.life:
                continue
            home = broker.rooms.logs.home(partition)
            told = any(
                process in line and f"move failed partition={partition} " in line for line in errors
            )
            if home != move.directory and not told and (process, partition) not in self._unsure:
                text = (
                    f"broker {number} accepted a move of the replica to {move.directory}, but has"
                    f" it in {home}"
                )
                yield Violation(MOVED, partition, UNKNOWN, text)


def _identity(broker: SimBroker, partition: TopicPartition) -> _ReplicaIdentity | None:
    """Return the identity of the broker's replica, None if the broker does not run or has no
    replica."""
    rooms, loop = broker.rooms, broker.machine.loop
    replica = None if rooms is None else rooms.replicas.partitions.get(partition)
    return (
        None if replica is None or loop is None else _ReplicaIdentity(loop.name, replica.topic_id)
    )


def _misplaced(broker: SimBroker, *, spares_copies: bool) -> Iterator[Violation]:
    """Yield a violation for each replica in two directories, or with a marker file of a move.
    `spares_copies` allows the incomplete copies that a broker with a damaged disk keeps."""
    if broker.rooms is None:
        return
    disk = DiskView(broker.disk)
    found: dict[TopicPartition, list[str]] = {}
    for directory in broker.log_dirs:
        for name in disk.list_dir(directory):
            partition = parse_partition_directory(name)
            if partition is None and not spares_copies:
                partition = parse_future_directory(name)
            if partition is not None:
                found.setdefault(partition, []).append(f"{directory}/{name}")
    for partition, log in broker.rooms.logs.all().items():
        paths = found.get(partition, [])
        marks = [mark for mark in _MARKS if disk.exists(f"{log.directory}/{mark}")]
        if paths != [log.directory] or marks:
            text = f"broker {broker.id} has {', '.join([*paths, *marks])}"
            yield Violation(ONE_PLACE, partition, UNKNOWN, text)


class _MoveRequester:
    """A client on its own machine that sends move requests to one broker."""

    def __init__(
        self, moves: Moves, broker: SimBroker, name: str, each_s: float, rng: random.Random
    ) -> None:
        self._moves = moves
        self._broker = broker
        self._each_s = each_s
        self._rng = rng
        self._machine = moves.cluster.machine(name)
        self._is_stopping = False

    @property
    def is_running(self) -> bool:
        return self._machine.loop is not None

    def start(self) -> None:
        self._machine.start(self._main, self._moves.cluster.network.sockets(self._machine))

    def stop(self) -> None:
        self._is_stopping = True

    async def _main(self, loop: ProcessLoop) -> None:
        try:
            await self._run()
        except Exception as error:
            if loop.is_dead:
                return  # cancelled because its process was killed
            self._moves.failures.append(f"{loop.name}: {error!r}")
        self._moves.failures += [f"{loop.name}: {failure}" for failure in loop.failures]
        self._machine.kill()

    async def _run(self) -> None:
        admin = Admin(
            self._moves.cluster.bootstrap,
            clock=self._machine.clock,
            rng=self._rng,
            client_id=self._machine.name,
            **CLIENT_OPTIONS,
        )
        while not self._is_stopping:
            try:
                await admin.start()
                break
            except ClientError:
                await asyncio.sleep(self._each_s)
        while not self._is_stopping:
            await self._move(admin)
            await asyncio.sleep(self._rng.expovariate(1 / self._each_s))
        await admin.close()

    async def _move(self, admin: Admin) -> None:
        """Send one request that moves some replicas. Each replica is sent to a random log
        directory, which may be the directory that the replica already has."""
        broker, moves, rng = self._broker, self._moves, self._rng
        known = sorted(stored_states(moves.cluster))
        chosen = rng.sample(known, min(rng.randint(1, _AT_ONCE_MOST), len(known)))
        wanted = {Replica(each, broker.id): rng.choice(broker.log_dirs) for each in chosen}
        before = {each: moves.asked(broker, each.topic_partition) for each in wanted}
        outcomes = await admin.alter_replica_log_dirs(wanted)
        for replica, error in outcomes.items():
            moves.answered(broker, replica, wanted[replica], before[replica], error)
