"""Says in ZooKeeper what a replica has, when the controller asks by a state in which nobody leads
and nobody is in sync or eligible (see `coordinator/controller/suspects.py`)."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Mapping
from typing import Final

from pybroker.background import BackgroundTask
from pybroker.coordinator.zookeeper import paths
from pybroker.coordinator.zookeeper.claims import Claim, write_claim
from pybroker.coordinator.zookeeper.schemas import encode_partitions
from pybroker.errors import CoordError
from pybroker.model import NO_TOPIC_ID, TopicPartition, is_orphaned
from pybroker.ports import Coord
from pybroker.replication.isr_notifications import PARTITIONS_MAX
from pybroker.replication.manager import ReplicaManager
from pybroker.replication.partition import Partition

log = logging.getLogger(__name__)

_RETRY_S: Final = 0.5

_Claimed = tuple[uuid.UUID, Claim]
"""For the topic of that id."""


class Claims:
    """Runs between `start` and `stop`."""

    def __init__(
        self, coord: Coord, replicas: ReplicaManager, incarnation: Callable[[], int]
    ) -> None:
        """`incarnation` of this broker, or -1 while that is not known."""
        self._coord = coord
        self._replicas = replicas
        self._incarnation = incarnation
        self._told: dict[TopicPartition, _Claimed] = {}
        """What the controller was told last: it need not be told again."""
        self._asked: dict[TopicPartition, None] = {}
        self._wake = asyncio.Event()
        self._task = BackgroundTask("claims")
        replicas.on_orphaned = self._orphaned

    def start(self) -> None:
        self._task.start(self._run)

    async def stop(self) -> None:
        """Idempotent."""
        await self._task.stop()

    def again(self) -> None:
        """The broker has another incarnation: what was claimed in the one before does not hold."""
        self._asked.update(dict.fromkeys(self._told))
        self._wake.set()

    def _orphaned(self, partition: Partition) -> None:
        self._asked[partition.topic_partition] = None
        self._wake.set()

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            asked = list(self._asked)
            for start in range(0, len(asked), PARTITIONS_MAX):
                some = asked[start : start + PARTITIONS_MAX]
                claims = {key: await self._claim(key) for key in some}
                written = {key: claim for key, claim in claims.items() if claim is not None}
                if written:
                    await self._tell(written)
            if self._asked:
                await asyncio.sleep(_RETRY_S)
                self._wake.set()

    async def _claim(self, key: TopicPartition) -> _Claimed | None:
        """Write the claim, if it is still asked for; None where that was not done."""
        partition = self._replicas.partitions.get(key)
        state = None if partition is None else partition.state
        if partition is None or state is None or not is_orphaned(state):
            self._asked.pop(key, None)
            self._told.pop(key, None)
            return None
        incarnation = self._incarnation()
        if incarnation < 0:
            return None
        claim = Claim(
            replica=self._replicas.broker_id,
            epoch=partition.log.latest_epoch,
            end=partition.log.log_end_offset,
            leader_epoch=state.leader_epoch,
            incarnation=incarnation,
        )
        topic_id = partition.topic_id or NO_TOPIC_ID
        if self._told.get(key) == (topic_id, claim):
            self._asked.pop(key, None)
            return None
        try:
            await write_claim(self._coord, key, topic_id, claim)
        except CoordError as error:
            log.info("claim not written partition=%s error=%r", key, error)
            return None
        log.info("claim partition=%s epoch=%d log_end=%d", key, claim.epoch, claim.end)
        return topic_id, claim

    async def _tell(self, claims: Mapping[TopicPartition, _Claimed]) -> None:
        """Let the controller look at them, as at a changed ISR."""
        try:
            notice = encode_partitions(claims)
            await self._coord.create(paths.ISR_CHANGE_PREFIX, notice, sequence=True)
        except CoordError as error:
            log.info("claims not told partitions=%d error=%r", len(claims), error)
            return
        self._told.update(claims)
        for key in claims:
            self._asked.pop(key, None)
