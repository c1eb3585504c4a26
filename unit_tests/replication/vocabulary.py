"""A replica manager over real logs, and the commands of a controller to it."""

from __future__ import annotations

import random
import uuid
from collections.abc import Collection
from pathlib import Path

from pybroker.clock import ManualClock
from pybroker.errors import BrokerError, ErrorCode
from pybroker.metrics import Metrics
from pybroker.model import (
    LEADER_DURING_DELETION,
    LeaderAndIsr,
    PartitionFacts,
    PartitionState,
    StopReplica,
    StopReplicaPartition,
    TopicPartition,
)
from pybroker.records.batch import read_header
from pybroker.replication.manager import ReplicaManager
from pybroker.replication.partition import Partition
from pybroker.replication.purgatory import Purgatory
from pybroker.storage.files import SystemDisk
from pybroker.storage.log_config import LogConfig
from pybroker.storage.log_parts import AppendResult
from pybroker.storage.manager import LogManager
from unit_tests.handlers.bench import NOW_MS, FixedProc, ImmediateBlocking, batch

ME = 1
T0 = TopicPartition("t", 0)
T1 = TopicPartition("t", 1)
TOPIC_ID = uuid.UUID(int=10)


def facts(
    key: TopicPartition = T0,
    *,
    leader: int = ME,
    epoch: int = 0,
    isr: tuple[int, ...] = (ME,),
    replicas: tuple[int, ...] | None = None,
    topic_id: uuid.UUID = TOPIC_ID,
) -> PartitionFacts:
    state = PartitionState(leader, epoch, isr, 1)
    return PartitionFacts(key, topic_id, state, epoch, replicas or isr)


class Replicas:
    """The replica manager and the logs of broker ME, from `open` until the end of the test."""

    def __init__(
        self, home: Path, config: LogConfig | None = None, metrics: Metrics | None = None
    ) -> None:
        self.home = home
        self.metrics = metrics
        self.config = config or LogConfig()
        self.config_reads: list[str] = []
        self.config_failure: Exception | None = None
        self.open()

    def open(self) -> None:
        self.clock = ManualClock(NOW_MS)
        self.logs = LogManager(
            directories=[str(self.home)],
            disk=SystemDisk(),
            clock=self.clock,
            proc=FixedProc(),
            defaults=self.config,
            rng=random.Random(0),
        )
        self.logs.start(ME, "cluster")
        self.manager = ReplicaManager(
            broker_id=ME,
            logs=self.logs,
            blocking=ImmediateBlocking(),
            clock=self.clock,
            topic_configs=self._configs,
            fetches=Purgatory(),
            produces=Purgatory(),
            metrics=self.metrics,
        )

    async def _configs(self, topics: Collection[str]) -> dict[str, LogConfig]:
        self.config_reads.extend(topics)
        if self.config_failure is not None:
            raise self.config_failure
        return dict.fromkeys(topics, self.config)

    async def told(
        self, *partitions: PartitionFacts, controller_epoch: int = 1, broker_epoch: int = -1
    ) -> list[ErrorCode]:
        """Return the answers to LeaderAndIsr, in the order of the command."""
        command = LeaderAndIsr(ME, controller_epoch, broker_epoch, partitions)
        answers = await self.manager.leader_and_isr(command)
        return [answers[each.topic_partition] for each in partitions]

    async def stopped(
        self,
        key: TopicPartition = T0,
        *,
        epoch: int = LEADER_DURING_DELETION,
        delete: bool = False,
        controller_epoch: int = 1,
        broker_epoch: int = -1,
    ) -> ErrorCode:
        item = StopReplicaPartition(key, epoch, delete)
        command = StopReplica(ME, controller_epoch, broker_epoch, (item,))
        return (await self.manager.stop_replica(command))[key]

    def partition(self, key: TopicPartition = T0) -> Partition:
        return self.manager.partition(key)

    def append(self, *values: bytes, acks: int = 1, key: TopicPartition = T0) -> AppendResult:
        data = bytearray(batch(*(values or (b"v",))))
        return self.partition(key).append(
            memoryview(data), read_header(data), acks=acks, now_ms=NOW_MS
        )

    def refusal(self, epoch: int = -1, key: TopicPartition = T0) -> ErrorCode:
        """Return the error code of a request for the leader."""
        try:
            self.manager.leader(key, epoch)
        except BrokerError as error:
            return error.code
        return ErrorCode.NONE

    def directories(self) -> list[str]:
        return sorted(path.name for path in self.home.iterdir() if path.is_dir())
