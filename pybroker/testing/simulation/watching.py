"""Checks of the simulated brokers during a run, and of their files at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import lru_cache, partial
from typing import Final

from pybroker.model import TopicPartition, encode_uuid
from pybroker.replication.partition import Partition
from pybroker.testing.history.model import History
from pybroker.testing.simulation.broker import SimBroker
from pybroker.testing.simulation.cluster_record import ClusterRecord
from pybroker.testing.simulation.disk_view import DiskView
from pybroker.testing.simulation.environment import Environment
from pybroker.testing.simulation.invariants import Invariants, ReplicaNow
from pybroker.testing.simulation.replica_files import final_read, keyed_read, replica_files
from pybroker.testing.simulation.workload.options import KEYED_TOPIC
from pybroker.testing.simulation.workload.recorder import nanoseconds

_LOOK_S: Final = 0.02
_topic_id = lru_cache(maxsize=256)(encode_uuid)


class LiveWatch:
    """A repeated check of the invariants of all replicas, from `start` on.

    From `__enter__` to `__exit__`, the watch replaces methods of the class `Partition`. The Python
    process must run no other simulation meanwhile.
    """

    def __init__(
        self, environment: Environment, brokers: Mapping[int, SimBroker], record: ClusterRecord
    ) -> None:
        self.invariants = Invariants(record)
        self._environment = environment
        self._brokers = brokers
        self._seen: dict[int, tuple[str, Mapping[TopicPartition, Partition]]] = {}
        """For each broker id, the name of the last process that the watch has seen, and this
        process's replicas."""
        self._record = record
        self._last: list[ReplicaNow] = []
        self._last_changes = -1
        self._begins: dict[tuple[str, int], int] = {}
        """The highest log start offset that any leader had, by topic id and partition number."""
        self._undo = ExitStack()
        for broker in brokers.values():
            broker.machine.on_power_loss.append(partial(self.invariants.doubt, broker.id))

    def __enter__(self) -> LiveWatch:
        for name in ("truncate_to", "start_over"):
            original = getattr(Partition, name)
            self._undo.callback(setattr, Partition, name, original)
            setattr(Partition, name, self._followed(original))
        return self

    def __exit__(self, *_error: object) -> None:
        self._undo.close()

    def start(self) -> None:
        self.look()
        self._environment.after(_LOOK_S, self.start)

    def forget_deleted(self) -> None:
        """Remove from the final reads the records that retention has deleted: those below the
        highest log start offset of any leader. A replica may still have these records after a power
        loss."""
        history = self._record.history
        for place, read in enumerate(history.finals if history.expires else ()):
            topic, number = read.partition
            begin = self._begins.get((self._record.topic_ids.get(topic, ""), number), 0)
            if begin > read.start:
                records = tuple(each for each in read.records if each.offset >= begin)
                history.finals[place] = replace(read, start=begin, records=records)

    def look(self) -> None:
        """Check the invariants now, unless nothing has changed since the last check."""
        seen = [*self._replicas()]
        if seen != self._last or self._record.changes != self._last_changes:
            self._last, self._last_changes = seen, self._record.changes
            self.invariants.observe(seen)

    def _replicas(self) -> Iterator[ReplicaNow]:
        for broker in self._brokers.values():
            rooms, loop = broker.rooms, broker.machine.loop
            if rooms is not None and loop is not None:
                self._seen[broker.id] = (loop.name, rooms.replicas.partitions)
            process, partitions = self._seen.get(broker.id, ("", {}))
            for key, partition in partitions.items():
                if partition.topic_id is not None:
                    topic_id = _topic_id(partition.topic_id)
                    if partition.is_leader:
                        life, begin = (topic_id, key.partition), partition.log.log_start_offset
                        self._begins[life] = max(self._begins.get(life, 0), begin)
                    yield ReplicaNow(
                        broker.id,
                        process,
                        key,
                        topic_id,
                        partition.is_leader,
                        partition.leader_epoch,
                        partition.high_watermark,
                        partition.log.log_end_offset,
                        rooms is not None,
                        partition.log.log_start_offset,
                    )

    def _followed(self, cut: Callable[[Partition, int], None]) -> Callable[[Partition, int], None]:
        def following(partition: Partition, offset: int) -> None:
            before = partition.log.log_end_offset
            cut(partition, offset)
            end = min(partition.log.log_end_offset, offset)
            if end < before and partition.topic_id is not None:
                key, topic_id = partition.topic_partition, encode_uuid(partition.topic_id)
                self.invariants.shortened(partition.broker_id, key, topic_id, end)

        return following


def read_files(brokers: Iterable[SimBroker], record: ClusterRecord) -> None:
    """Add the content of all replicas' files to the history of `record`. The cluster must have
    recovered, and all clients must have stopped, so that all replicas are equal. Raises
    DamagedFile."""
    history: History = record.history
    loaded = {*record.loaded()}
    for key in record.alive():
        found = {each: part for each in brokers if (part := _partitions(each).get(key))}
        end = max((part.high_watermark for part in found.values()), default=0)
        start = max((part.log.log_start_offset for part in found.values()), default=0)
        for broker, partition in found.items():
            view = DiskView(broker.disk)
            entries = partition.log.producers.entries.values()
            directory = partition.log.directory.rpartition("/")[0]
            where = (view, directory, broker.id, key)
            if key.topic == KEYED_TOPIC:
                at = nanoseconds(broker.machine.environment.now)
                history.keyed.reads.append(keyed_read(*where, end, start=start, at=at))
                continue
            files = replica_files(*where, end, start=start, producers=entries)
            history.files.append(files)
            if key in loaded:
                history.finals.append(final_read(*where, end, start=start))


def _partitions(broker: SimBroker) -> Mapping[TopicPartition, Partition]:
    return {} if broker.rooms is None else broker.rooms.replicas.partitions
