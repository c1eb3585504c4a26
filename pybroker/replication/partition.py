"""One replica of a partition on this broker: who leads it, how far it is committed, and its log.

Plain code: a command or a batch in, new state out, no waiting inside. Whoever calls `append` tells
the purgatories afterwards what became readable.
"""

from __future__ import annotations

import enum
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pybroker.errors import BrokerError, ErrorCode
from pybroker.metrics import TopicCounters
from pybroker.model import (
    NO_EPOCH,
    NO_OFFSET,
    NO_TOPIC_ID,
    PartitionFacts,
    PartitionState,
    TopicPartition,
)
from pybroker.ports import Buffer
from pybroker.records.batch import BatchHeader
from pybroker.records.compression import Codec
from pybroker.records.validate import BatchRules
from pybroker.replication.isr import committed_end, has_enough_replicas
from pybroker.storage.log import Log
from pybroker.storage.log_config import LogConfig
from pybroker.storage.log_parts import AppendResult

_STORED_CODECS: Final[Mapping[str, Codec | None]] = {
    "producer": None,
    "uncompressed": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}
"""By the words of `compression.type`; None keeps what came."""


@dataclass(frozen=True, slots=True)
class FollowerFetch:
    """What a follower's fetch says about the follower; its leader epoch has been checked."""

    replica_id: int
    fetch_offset: int
    """Its log end offset."""
    log_start_offset: int
    incarnation: int = -1
    """How often its id has registered (KIP-903), -1 if it did not say."""


class Role(enum.Enum):
    """What the controller last told this replica to be."""

    LEADER = "leader"
    FOLLOWER = "follower"


class Partition:
    """Owns the high watermark of its log.

    Invariant: log_start_offset <= high_watermark <= log_end_offset.
    """

    def __init__(
        self,
        *,
        topic_partition: TopicPartition,
        log: Log,
        broker_id: int,
        high_watermark: int,
        counters: TopicCounters | None = None,
    ) -> None:
        self.topic_partition = topic_partition
        self.log = log
        self._counters = TopicCounters() if counters is None else counters
        self._broker_id = broker_id
        self._facts: PartitionFacts | None = None
        # What follows from the facts, for those who ask with every request.
        self._leads = False
        self._isr_size = 0
        self._is_alone = False
        self.is_replicated = False
        """Whether other brokers hold replicas too, which may wait for what is appended."""
        self._follower_ends: dict[int, int] = {}
        self._follower_starts: dict[int, int] = {}
        self._rules: dict[int, BatchRules] = {}
        self._rules_config: LogConfig | None = None
        self._high_watermark = min(max(high_watermark, log.log_start_offset), log.log_end_offset)

    # what is known

    @property
    def role(self) -> Role:
        return Role.LEADER if self._leads else Role.FOLLOWER

    @property
    def is_leader(self) -> bool:
        return self._leads

    @property
    def leader_epoch(self) -> int:
        return NO_EPOCH if self._facts is None else self._facts.state.leader_epoch

    @property
    def state(self) -> PartitionState | None:
        """What the controller last said, or None before its first command."""
        return None if self._facts is None else self._facts.state

    @property
    def topic_id(self) -> uuid.UUID | None:
        return None if self._facts is None else self._facts.topic_id

    @property
    def high_watermark(self) -> int:
        return self._high_watermark

    @property
    def low_watermark(self) -> int:
        """Where the records begin that some replica still has: the lowest log start of all that
        this leader knows."""
        return min([self.log.log_start_offset, *self._follower_starts.values()])

    def last_stable_offset(self) -> int:
        """Below it every transaction is decided; never above the high watermark, nor below the log
        start, where an open transaction may have begun."""
        stable = self.log.last_stable_offset(self._high_watermark)
        return max(stable, self.log.log_start_offset)

    def readable_end(self, read_committed: bool) -> int:
        """The offset below which a consumer of that isolation level may read."""
        return self.last_stable_offset() if read_committed else self._high_watermark

    def batch_rules(self, api_version: int) -> BatchRules:
        """What a batch in a Produce request of that version must keep to; made once a version and
        configuration, as every request asks for it."""
        config = self.log.config
        if config is not self._rules_config:
            self._rules_config = config
            self._rules.clear()
        rules = self._rules.get(api_version)
        if rules is None:
            rules = self._rules[api_version] = BatchRules(
                max_message_bytes=config.max_message_bytes,
                segment_bytes=config.segment_bytes,
                compacted=config.compacts,
                timestamp_type=config.timestamp_type,
                timestamp_before_max_ms=config.message_timestamp_before_max_ms,
                timestamp_after_max_ms=config.message_timestamp_after_max_ms,
                stored_codec=_STORED_CODECS[config.compression_type],
                api_version=api_version,
            )
        return rules

    # what the controller says

    def check_epoch(self, facts: PartitionFacts) -> bool:
        """Whether these facts are news. False if they only repeat what is in force. Epochs of
        another topic, made again under the same name, say nothing about those of this one.

        Raises BrokerError STALE_CONTROLLER_EPOCH for an older leader epoch, or for the current one
        with another content.
        """
        if facts.state.leader_epoch > self.leader_epoch:
            return True
        if self._facts is not None and facts.topic_id not in (NO_TOPIC_ID, self._facts.topic_id):
            return True
        if self._facts is not None and facts.state == self._facts.state:
            return False
        raise BrokerError(
            ErrorCode.STALE_CONTROLLER_EPOCH,
            f"{self.topic_partition} is at leader epoch {self.leader_epoch}, "
            f"the command says {facts.state.leader_epoch}",
        )

    def lead(self, facts: PartitionFacts) -> None:
        """Lead from now on, with an epoch that starts where the log ends now. `check_epoch` must
        have said that this is news. The log records the epoch's start durably before the first
        append; calling its `persist_epochs` earlier saves that append the wait."""
        assert facts.state.leader == self._broker_id
        self.log.begin_epoch(facts.state.leader_epoch, self.log.log_end_offset)
        self._take(facts)
        self._advance_high_watermark()

    def follow(self, facts: PartitionFacts) -> None:
        """Stop leading: somebody else does, or nobody."""
        assert facts.state.leader != self._broker_id
        self._take(facts)

    def _take(self, facts: PartitionFacts) -> None:
        self._facts = facts
        self._leads = facts.state.leader == self._broker_id
        self._isr_size = len(facts.state.isr)
        self._is_alone = tuple(facts.state.isr) == (self._broker_id,)
        self.is_replicated = len(facts.replicas) > 1
        self._follower_ends.clear()
        self._follower_starts.clear()

    # what clients ask

    def require_leader(self, current_leader_epoch: int) -> None:
        """Check that this replica leads, and in the epoch that the client believes (-1: any).

        Raises BrokerError: FENCED_LEADER_EPOCH or UNKNOWN_LEADER_EPOCH (KIP-320), or
        NOT_LEADER_OR_FOLLOWER.
        """
        if current_leader_epoch != NO_EPOCH and current_leader_epoch != self.leader_epoch:
            older = current_leader_epoch < self.leader_epoch
            raise BrokerError(
                ErrorCode.FENCED_LEADER_EPOCH if older else ErrorCode.UNKNOWN_LEADER_EPOCH,
                f"{self.topic_partition} is at leader epoch {self.leader_epoch}, "
                f"the request says {current_leader_epoch}",
            )
        if not self._leads:
            raise BrokerError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                f"broker {self._broker_id} does not lead {self.topic_partition}",
            )

    def append(
        self, data: memoryview, header: BatchHeader, *, acks: int, now_ms: int
    ) -> AppendResult:
        """Append one validated batch as the leader; the high watermark follows as far as it may.

        Raises BrokerError: NOT_LEADER_OR_FOLLOWER, NOT_ENOUGH_REPLICAS (acks=-1 only, nothing is
        written), or what the producer's state says. StorageError if the disk refuses.
        """
        if not self._leads:
            self.require_leader(NO_EPOCH)
        assert self._facts is not None
        config = self.log.config
        if (
            acks == -1
            and self._isr_size < config.min_insync_replicas
            and (not self.has_enough_replicas())
        ):
            raise BrokerError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"{self.topic_partition} has {len(self._facts.state.isr)} replicas in sync, "
                f"min.insync.replicas is {self.log.config.min_insync_replicas}",
            )
        result = self.log.append(
            data, header, leader_epoch=self._facts.state.leader_epoch, now_ms=now_ms
        )
        counters = self._counters
        counters.produce_requests += 1
        counters.messages_in += header.record_count
        counters.bytes_in += len(data)
        if self._is_alone:
            self._high_watermark = max(self._high_watermark, result.last_offset + 1)
        else:
            self._advance_high_watermark()
        return result

    def follower_fetched(self, fetch: FollowerFetch, now: float) -> bool:
        """As the leader, note how far a follower is (`now`: monotonic seconds); whether the high
        watermark moved. Raises BrokerError NOT_LEADER_OR_FOLLOWER, UNKNOWN_LEADER_EPOCH for a
        broker that is no replica."""
        self.require_leader(NO_EPOCH)
        assert self._facts is not None
        if fetch.replica_id not in self._facts.replicas:
            raise BrokerError(
                ErrorCode.UNKNOWN_LEADER_EPOCH,
                f"broker {fetch.replica_id} holds no replica of {self.topic_partition}",
            )
        self._follower_ends[fetch.replica_id] = fetch.fetch_offset
        self._follower_starts[fetch.replica_id] = fetch.log_start_offset
        before = self._high_watermark
        self._advance_high_watermark()
        return self._high_watermark > before

    # what the leader tells a follower

    def append_replicated(
        self, data: Buffer, *, leader_high_watermark: int, leader_log_start: int, now_ms: int
    ) -> AppendResult | None:
        """As a follower, append what the leader sent, and follow its high watermark and log start;
        None if there was no whole batch. Raises BrokerError as `Log.append_replicated`."""
        assert not self._leads
        result = self.log.append_replicated(data, now_ms=now_ms) if data else None
        self._high_watermark = max(
            self._high_watermark, min(leader_high_watermark, self.log.log_end_offset)
        )
        if leader_log_start > self.log.log_start_offset:
            self.log.advance_log_start(min(leader_log_start, self.log.log_end_offset))
        return result

    def truncate_to(self, offset: int) -> None:
        """As a follower, give up what lies at or above `offset`."""
        assert not self._leads
        self.log.truncate_to(offset)
        self._high_watermark = min(self._high_watermark, self.log.log_end_offset)

    def start_over(self, offset: int) -> None:
        """As a follower, give up the whole log; the next record gets `offset`."""
        assert not self._leads
        self.log.truncate_fully_and_start_at(offset)
        self._high_watermark = offset

    def delete_records(self, before: int) -> int:
        """As the leader, serve nothing below `before` any more (-1: below the high watermark);
        gives the offset that was meant. Survives a restart once the checkpoints are written.

        Raises BrokerError: NOT_LEADER_OR_FOLLOWER, POLICY_VIOLATION for a topic that is only
        compacted, OFFSET_OUT_OF_RANGE for what is not committed, KAFKA_STORAGE_ERROR.
        """
        self.require_leader(NO_EPOCH)
        if not self.log.config.deletes:
            raise BrokerError(
                ErrorCode.POLICY_VIOLATION,
                f"{self.topic_partition} is compacted; its cleanup.policy does not delete",
            )
        if self.log.failure is not None or self.log.damage is not None:
            raise BrokerError(
                ErrorCode.KAFKA_STORAGE_ERROR, f"the log of {self.topic_partition} is damaged"
            )
        offset = self._high_watermark if before == NO_OFFSET else before
        if not 0 <= offset <= self._high_watermark:
            raise BrokerError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{self.topic_partition}: {offset} is not within 0 and {self._high_watermark}",
            )
        self.log.advance_log_start(offset)
        return offset

    def has_enough_replicas(self) -> bool:
        """Whether the ISR is as large as acks=all asks for."""
        assert self._facts is not None
        return has_enough_replicas(
            len(self._facts.state.isr),
            self.log.config.min_insync_replicas,
            len(self._facts.replicas),
        )

    def _advance_high_watermark(self) -> None:
        assert self._facts is not None
        advanced = committed_end(
            self._high_watermark,
            leader=self._broker_id,
            leader_end=self.log.log_end_offset,
            maximal_isr=self._facts.state.isr,
            follower_ends=self._follower_ends,
        )
        assert self._high_watermark <= advanced <= self.log.log_end_offset
        self._high_watermark = advanced
