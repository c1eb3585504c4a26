"""The log of an internal topic's partition, for a coordinator. An append is checked like a Produce
request with acks=all."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final, cast

from pybroker.errors import BrokerError, ErrorCode, StorageError
from pybroker.model import TopicPartition
from pybroker.ports import Blocking, Buffer, KeyValue, Producer
from pybroker.records.batch import NO_SEQUENCE, read_header
from pybroker.records.builder import BatchBuilder
from pybroker.records.compression import Codec
from pybroker.replication.authority import NEEDED, Authority
from pybroker.replication.isr_changes import LeadNow
from pybroker.replication.manager import ReplicaManager
from pybroker.replication.partition import Partition
from pybroker.storage.producer_state import EXEMPT, Verification

log = logging.getLogger(__name__)

_ACKS_ALL: Final = -1
_LOOK_AGAIN_S: Final = 60.0
"""The interval at which `committed` checks the high watermark even if the purgatory reports no
change."""
_LOOK_FOR_FOLLOWERS_S: Final = 0.05

Verify = Callable[[Partition, str, Producer], Awaitable[object]]
"""Returns the guard for a producer's append to a partition; see `PartitionLog.verified`."""


async def unverified(partition: Partition, transactional_id: str, producer: Producer) -> object:
    """Accept every transactional append without verification."""
    return EXEMPT


class InternalLog:
    """The `PartitionLog` of an internal topic's partition that this broker leads. The object is
    usable as long as this broker leads the partition without interruption, possibly over several
    leader epochs."""

    def __init__(
        self,
        replicas: ReplicaManager,
        topic_partition: TopicPartition,
        *,
        blocking: Blocking,
        lead_now: LeadNow,
        codec: Codec = Codec.NONE,
        look: Callable[[], None] = lambda: None,
        verify: Verify = unverified,
    ) -> None:
        """Raises BrokerError if this broker does not lead the partition. `look` checks the broker's
        ZooKeeper lease; it is called before each append and each check of the leadership."""
        self._replicas = replicas
        self._blocking = blocking
        self._lead_now = lead_now
        self._codec = codec
        self._look = look
        self._verify = verify
        self._key = topic_partition
        self._partition = replicas.leader(topic_partition)
        self._since = self._partition.leading_since

    @property
    def topic_partition(self) -> TopicPartition:
        return self._key

    @property
    def leader_epoch(self) -> int:
        return self._partition.leader_epoch

    @property
    def start_offset(self) -> int:
        return self._partition.log.log_start_offset

    @property
    def end_offset(self) -> int:
        return self._partition.log.log_end_offset

    @property
    def high_watermark(self) -> int:
        return self._partition.high_watermark

    @property
    def has_zookeeper_lease(self) -> bool:
        return self._may(NEEDED["requests of group members"])

    @property
    def has_leader_lease(self) -> bool:
        return self._may(NEEDED["OffsetFetch"])

    async def is_led_now(self) -> bool:
        if self.has_leader_lease:
            return True
        if not self.has_zookeeper_lease:
            return False
        return self._key in await self._lead_now([self._partition]) and self.has_zookeeper_lease

    async def followed(self) -> None:
        while not self._require().is_followed:
            # A follower's fetch from an unchanged offset wakes no request.
            await self._replicas.produces.wait(
                [self._key], missing_bytes=1, timeout_s=_LOOK_FOR_FOLLOWERS_S
            )

    @property
    def has_other_copies(self) -> bool:
        return self._partition.is_replicated

    def suspect(self, offset: int) -> None:
        self._replicas.on_suspicion(self._key, offset)

    async def read(self, offset: int, bytes_max: int) -> Sequence[Buffer]:
        source = self._require().log
        read = partial(
            source.read,
            offset,
            bytes_max,
            upper_offset=source.log_end_offset,
            at_least_one_batch=True,
            cached_only=False,
        )
        try:
            data = await self._blocking.run(read)
        except BrokerError as error:
            self._require()
            if error.code is ErrorCode.CORRUPT_MESSAGE:
                self.suspect(offset)
            raise
        except StorageError as error:
            raise BrokerError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
        self._require()
        return [data] if data else []

    async def verified(self, transactional_id: str, producer: Producer) -> Producer:
        guard = await self._verify(self._require(), transactional_id, producer)
        return dataclasses.replace(producer, guard=guard)

    def append(
        self,
        records: Sequence[KeyValue],
        timestamp_ms: int,
        producer: Producer | None = None,
        *,
        is_awaited: bool = True,
    ) -> int:
        self._look()
        partition = self._require(NEEDED["Produce with acks=all"])
        builder = BatchBuilder(self._codec)
        for record in records:
            builder.append(timestamp_ms, record.key, record.value)
        if producer is None:
            data = bytearray(builder.build())
        else:
            owner = producer.producer_id, producer.epoch, NO_SEQUENCE
            data = bytearray(builder.build(*owner, transactional=True))
        config = partition.log.config
        if len(data) > min(config.max_message_bytes, config.segment_bytes):
            raise BrokerError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"{self._key}: the batch has {len(data)} bytes, expected at most"
                f" {config.max_message_bytes} (max.message.bytes) and at most"
                f" {config.segment_bytes} (segment.bytes)",
            )
        try:
            appended = partition.append(
                memoryview(data),
                read_header(data),
                acks=_ACKS_ALL,
                now_ms=timestamp_ms,
                guard=EXEMPT if producer is None else cast("Verification | None", producer.guard),
            )
        except (BrokerError, StorageError) as error:
            raise self._refused(error) from error
        if is_awaited and partition.is_replicated:
            self._replicas.appended(self._key, len(data))
        end = appended.last_offset + 1
        if partition.high_watermark >= end:
            self._replicas.became_readable(self._key, len(data))
        return end

    async def committed(self, offset: int) -> None:
        while True:
            missing = offset - self._require().high_watermark
            if missing <= 0:
                return
            # The purgatory of produce requests counts offsets, not bytes.
            await self._replicas.produces.wait(
                [self._key], missing_bytes=missing, timeout_s=_LOOK_AGAIN_S
            )

    def _may(self, needed: Authority) -> bool:
        self._look()
        replicas = self._replicas
        lease = Authority.COMMITTED if replicas.leadership_yield.leaves else replicas.lease
        try:
            partition = self._require()
        except BrokerError:
            return False
        return replicas.authority(partition, lease, needed) >= needed

    def _require(self, needed: Authority = Authority.READ) -> Partition:
        """Return this broker's replica. Raises BrokerError if the replica has less authority than
        `needed`. Also raises BrokerError if the leadership for which this object was created has
        ended: a later leadership of this broker does not count."""
        try:
            found = self._replicas.leader(self._key, needed=needed)
        except BrokerError as error:
            raise self._not_led(error.detail) from error
        if found is not self._partition or found.leading_since != self._since:
            raise self._not_led(f"this broker leads again since leader epoch {found.leading_since}")
        return found

    def _not_led(self, reason: str) -> BrokerError:
        detail = (
            f"the leadership of {self._key} that this broker had since leader epoch "
            f"{self._since} has ended: {reason}"
        )
        return BrokerError(ErrorCode.NOT_LEADER_OR_FOLLOWER, detail)

    def _refused(self, error: BrokerError | StorageError) -> BrokerError:
        if isinstance(error, BrokerError):
            return error
        log.error("append failed in an internal topic partition=%s error=%s", self._key, error)
        return BrokerError(ErrorCode.KAFKA_STORAGE_ERROR, str(error))
