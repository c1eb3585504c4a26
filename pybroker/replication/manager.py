"""Owns the replicas of one broker, executes the controller's commands, and finds partitions for
requests. The broker executes one command at a time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

from pybroker.errors import BrokerError, ErrorCode, PybrokerError, StorageError
from pybroker.metrics import Metrics
from pybroker.model import (
    INTERNAL_TOPICS,
    LEADER_DURING_DELETION,
    Everything,
    Extent,
    LeaderAndIsr,
    PartitionFacts,
    StopReplica,
    StopReplicaPartition,
    TopicPartition,
    is_orphaned,
)
from pybroker.ports import Blocking, Clock
from pybroker.replication.authority import SHORT_OF, Authority, authority
from pybroker.replication.fetchers import ReplicaFetchers
from pybroker.replication.followed_partition import FollowedPartition
from pybroker.replication.high_watermarks import HighWatermarks
from pybroker.replication.leader_state import FollowerFetch, IsrChange
from pybroker.replication.leadership_yield import LeadershipYield
from pybroker.replication.marker_listener import MarkerListener
from pybroker.replication.opening import LogOpener, TopicConfigReader, cannot_exist
from pybroker.replication.partition import Partition
from pybroker.replication.purgatory import Purgatory
from pybroker.replication.spread import persist_epochs
from pybroker.storage.log import Log
from pybroker.storage.log_parts import Damage, Flushable
from pybroker.storage.manager import LogManager
from pybroker.storage.moves import ReplicaMove
from pybroker.storage.replica_health import Event
from pybroker.yield_every import yield_every

log = logging.getLogger(__name__)
state_change = logging.getLogger("pybroker.state_change")
"""Changes of roles and in-sync replicas are logged here, as in Kafka's state.change.logger."""

_ALL: Final = 2**62
_READ, _ALONE = Authority.READ, Authority.ALONE  # a look-up of a member is slow


class ReplicaManager:
    """Owns the replicas of this broker. The broker's registration sets `broker_epoch`."""

    def __init__(
        self,
        *,
        broker_id: int,
        logs: LogManager,
        blocking: Blocking,
        clock: Clock,
        topic_configs: TopicConfigReader,
        fetches: Purgatory,
        produces: Purgatory,
        metrics: Metrics | None = None,
        fetchers: ReplicaFetchers | None = None,
        exists: Callable[[TopicPartition], bool] = lambda key: False,
    ) -> None:
        """`exists` returns whether a given partition exists in the cluster."""
        self.broker_id = broker_id
        self._fetchers = fetchers
        if fetchers is not None:
            fetchers.listen(self.replica_failed)
        self._metrics = Metrics() if metrics is None else metrics
        self.broker_epoch = self.roles_epoch = -1
        """`roles_epoch`: the broker epoch of the last command that named all replicas' roles."""
        self.on_orphaned: Callable[[Partition], None] = lambda partition: None
        """Called with a replica of an orphaned partition, which then reports its log end."""
        self.on_internal: dict[str, Callable[[TopicPartition], None]] = {}
        """Internal topic -> function, called with each partition that may have a new role here."""
        self.on_marker: MarkerListener = lambda *marker: None
        self.on_refusal: Callable[[TopicPartition], None] = lambda key: None  # not opened
        self.on_suspicion: Callable[[TopicPartition, int], None] = lambda key, offset: None
        """Called in any thread with an offset at which a partition's log may be damaged."""
        self.lease = Authority.ALL
        """The level of the broker's ZooKeeper lease: it limits the authority of its replicas."""
        self.fetches = fetches
        self.replica_fetches = Purgatory()
        """Fetches of followers that wait for data; they may read up to the log end."""
        self.produces = produces
        self.deletions = Purgatory()
        """DeleteRecords requests that wait until followers have raised their log start."""
        self.lag_max_s = 30.0  # replica.lag.time.max.ms
        self.isr_changes: dict[TopicPartition, IsrChange] = {}
        """Proposed ISR changes that `IsrChanges` must write. Each sets `isr_change_wanted`."""
        self.isr_change_wanted = asyncio.Event()
        self.leadership_yield = LeadershipYield(broker_id, clock)
        self._exists = exists
        self._logs, self.changes = logs, logs.changes
        self._blocking = blocking
        self.clock = clock
        self._opener = LogOpener(
            broker_id=broker_id, logs=logs, blocking=blocking, topic_configs=topic_configs
        )
        self._partitions: dict[TopicPartition, Partition] = {}
        self.by_topic: dict[bytes, dict[int, Partition]] = {}
        """Topic name in bytes -> partition number -> open replica; without internal topics."""
        self._not_opened: dict[TopicPartition, str] = {}
        self._dropped: dict[TopicPartition, int] = {}
        """Closed replica -> its last high watermark, which may be above the last checkpoint."""
        self._controller_epoch = -1
        self._all_roles = Everything()
        self._commands = asyncio.Lock()

    # for requests

    def partition(self, topic_partition: TopicPartition) -> Partition:
        """Return the open replica. Raises BrokerError: KAFKA_STORAGE_ERROR if the replica failed,
        NOT_LEADER_OR_FOLLOWER if other brokers have replicas, else UNKNOWN_TOPIC_OR_PARTITION."""
        found = self._partitions.get(topic_partition)
        if found is None and topic_partition in self._not_opened:
            raise BrokerError(ErrorCode.KAFKA_STORAGE_ERROR, self._not_opened[topic_partition])
        if found is None:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if self._exists(topic_partition):
                code = ErrorCode.NOT_LEADER_OR_FOLLOWER
            raise BrokerError(code, f"broker {self.broker_id} has no replica of {topic_partition}")
        return found

    def leader(self, key: TopicPartition, epoch: int = -1, needed: Authority = _READ) -> Partition:
        """Return the local replica if it leads in `epoch` (-1: any) and may answer requests of
        level `needed`. Otherwise raises BrokerError."""
        found = self.partition(key)
        if self.lease:
            found.require_epoch(epoch)
        self.require(found, needed)
        return found

    def require(self, partition: Partition, needed: Authority) -> None:
        """Raise BrokerError NOT_LEADER_OR_FOLLOWER if the replica's authority is below `needed`."""
        if partition.granted >= needed <= self.lease and needed <= _ALONE:
            return  # the usual case
        reached = self.authority(partition, self.lease, needed)
        if reached < needed:
            reason = SHORT_OF[reached].format(partition.topic_partition)
            raise BrokerError(ErrorCode.NOT_LEADER_OR_FOLLOWER, reason)

    def authority(self, partition: Partition, lease: Authority, needed: Authority) -> Authority:
        """Return the level of requests that this replica may answer as the leader. `lease`: the
        highest level that the ZooKeeper session allows. A result above `needed` is unreliable, so
        test only `result >= needed`."""
        has_heard, has_asked = True, False
        if needed > _ALONE:
            has_heard = partition.certainly_leads(self.clock.monotonic(), self.lag_max_s)
            has_asked = self.leadership_yield.has_asked(partition, self.lag_max_s)
        return authority(partition.granted, lease, partition.is_replicated, has_heard, has_asked)

    @property
    def partitions(self) -> Mapping[TopicPartition, Partition]:
        """The open replicas of this broker. The mapping is live."""
        return self._partitions

    @property
    def not_opened(self) -> Mapping[TopicPartition, str]:
        """A replica that was closed after a failure or could not be opened -> the reason."""
        return self._not_opened

    def high_watermarks(self) -> Mapping[TopicPartition, int]:
        """Partition -> current high watermark, for the open replicas."""
        return HighWatermarks(self._partitions)

    def became_readable(self, key: TopicPartition, more_bytes: int, offsets: int = _ALL) -> None:
        """Tell waiting Fetch and Produce requests how many more bytes and offsets are readable."""
        self.fetches.progressed(key, more_bytes)
        self.produces.progressed(key, offsets)

    def appended(self, topic_partition: TopicPartition, appended_bytes: int) -> None:
        """Wake waiting fetches of followers after an append to a leader's log."""
        self.replica_fetches.progressed(topic_partition, appended_bytes)

    def log_synced(self, synced: Flushable) -> None:
        """After a sync of the log, wake the requests that wait for durable records."""
        key = synced.topic_partition
        partition = self._partitions.get(key)
        if partition is None or partition.log is not synced:
            return
        self.high_watermark_moved(partition, partition.high_watermark, partition.settle())
        self.produces.progressed(key, 1)
        if self._fetchers is not None:
            self._fetchers.synced(key)

    def follower_fetched(self, partition: Partition, fetch: FollowerFetch, now: float) -> None:
        """Record a follower's fetch that arrived at `now` (monotonic seconds). The caller has
        checked the fetch's leader epoch. Raises the errors of `Partition.follower_fetched`."""
        before = partition.high_watermark
        readable_bytes = partition.follower_fetched(fetch, now, self.lag_max_s)
        self.high_watermark_moved(partition, before, readable_bytes)
        if len(self.deletions):
            self.deletions.progressed(partition.topic_partition, 1)
        if not partition.is_in_isr(fetch.replica_id):
            self.want_isr_change(partition.propose_join(fetch.replica_id))

    def high_watermark_moved(self, partition: Partition, old: int, readable_bytes: int) -> None:
        """Wake waiting requests if `readable_bytes`, the number of bytes that became readable, is
        above 0. `old` is the high watermark before the move."""
        if readable_bytes:
            offsets = partition.high_watermark - old
            self.became_readable(partition.topic_partition, readable_bytes, offsets)

    def want_isr_change(self, change: IsrChange | None) -> None:
        """Queue `change`, if any, for the task that writes ISR changes to ZooKeeper."""
        if change is not None:
            self.isr_changes[change.topic_partition] = change
            self.isr_change_wanted.set()

    def review_isr(self, partition: Partition) -> None:
        """Propose the ISR change that is due, if any, and advance the high watermark."""
        before = partition.high_watermark
        self.want_isr_change(partition.propose_isr(self.clock.monotonic(), self.lag_max_s))
        self.high_watermark_moved(partition, before, partition.settle())

    async def persist_log_starts(self) -> None:
        """Write all log start offsets to disk. A disk error takes the log directory offline. A full
        disk delays the write until the next checkpoint."""
        await self._blocking.run(self._logs.write_checkpoints, self.high_watermarks())

    # log directories

    @property
    def copies(self) -> Mapping[TopicPartition, FollowedPartition]:
        """Partition that this broker follows -> the fetcher's state of this partition, such as its
        lag."""
        return {} if self._fetchers is None else self._fetchers.copies

    @property
    def busy(self) -> frozenset[TopicPartition]:
        """Replicas whose logs are being truncated. No other code may change these logs."""
        return frozenset() if self._fetchers is None else self._fetchers.busy

    def replica_failed(self, key: TopicPartition, reason: str) -> None:
        """Close the replica. Requests get KAFKA_STORAGE_ERROR until LeaderAndIsr opens it again."""
        if self._drop(key):
            self._not_opened[key] = reason
            log.error("replica failed and is closed partition=%s reason=%s", key, reason)
            self._disturbed(key)

    async def withdraw(self, key: TopicPartition, damage: Damage) -> None:
        """Close the replica because its log has `damage`. A later command can open the replica
        again. Raises StorageError."""
        async with self._commands:
            await self._let_go((key,))
            found = self._logs.log(key)
            if found is not None and self._logs.health.allows(key, Event.STEPPED_ASIDE):
                await self._blocking.run(self._logs.health.give_up, found, damage)
            self.replica_failed(key, damage.told(key))

    def directory_failed(self, path: str, error: StorageError) -> None:
        """Close the replicas in the log directory `path`, which has failed with `error`."""
        for key in self._logs.partitions_in(path):
            if self._drop(key):
                self._not_opened[key] = f"log directory {path} has failed: {error}"
                self._disturbed(key)

    def swap(self, move: ReplicaMove) -> bool:
        """Replace a replica's log by the copy that the move wrote to another log directory. Return
        False if the caller must try again."""
        if self._commands.locked() or move.topic_partition in self.busy:
            return False
        if not self._logs.moves.swap(move):
            return False
        partition = self._partitions.get(move.topic_partition)
        if partition is not None:
            partition.replace_log(move.log)
        return True

    # for the controller

    async def leader_and_isr(self, command: LeaderAndIsr) -> Mapping[TopicPartition, ErrorCode]:
        """Make each replica in `command` leader or follower. Once commands have named all replicas
        of this broker (see `Extent`), rename all other logs to `*-stray`. Raises BrokerError:
        STALE_CONTROLLER_EPOCH, STALE_BROKER_EPOCH, or NETWORK_EXCEPTION if ZooKeeper returns no
        configuration."""
        async with self._commands:
            self._accept(command.controller_epoch, command.broker_epoch)
            answers: dict[TopicPartition, ErrorCode] = {}
            news = []
            for facts in command.partitions:
                code = self._check(facts)
                answers[facts.topic_partition] = code or ErrorCode.NONE
                if code is None:
                    news.append(facts)
            configs = await self._opener.configs_of(news, self._partitions)
            await self._let_go(facts.topic_partition for facts in news)
            orders = [(facts, configs[facts.topic_partition.topic]) for facts in news]
            opened = await self._opener.open(orders)
            following, internal = list[TopicPartition](), list[Log]()
            async for facts, result in yield_every(zip(news, opened, strict=True)):
                key = facts.topic_partition
                if isinstance(result, PybrokerError):
                    answers[key] = self._cannot_open(key, result)
                elif not self._assign(facts, result).is_leader:
                    following.append(key)
                elif key.topic in INTERNAL_TOPICS:
                    internal.append(result)
            self._copy(following)
            if internal:  # a coordinator's first append cannot wait for a thread
                await persist_epochs(self._blocking, internal)
            for facts in command.partitions:
                if answers[facts.topic_partition] is ErrorCode.NONE:
                    answers[facts.topic_partition] = self.leadership_yield.answer(facts)
            assigned = self._all_roles.after(command)
            if assigned is not None:
                await self._set_strays_aside(assigned)
            if command.extent not in (Extent.BEGINS, Extent.GOES_ON):
                self.roles_epoch = max(self.roles_epoch, command.broker_epoch)
            return answers

    async def _set_strays_aside(self, assigned: Collection[TopicPartition]) -> None:
        """Close the replicas that are not `assigned` to this broker, and rename their directories
        to `*-stray`."""
        strays = sorted(self._logs.all().keys() - assigned)
        await self._let_go(strays)
        if strays:
            log.warning("replicas renamed to stray count=%d first=%s", len(strays), strays[0])
        for key in strays:
            self._drop(key)
            self._dropped.pop(key, None)
            self._disturbed(key)
            try:
                await self._blocking.run(self._logs.set_aside, key)
            except StorageError as error:
                log.error("log cannot be renamed to stray partition=%s error=%s", key, error)

    async def stop_replica(self, command: StopReplica) -> Mapping[TopicPartition, ErrorCode]:
        """Stop serving each partition, and delete its log if the command requests it. Raises
        BrokerError for the whole command: STALE_CONTROLLER_EPOCH or STALE_BROKER_EPOCH."""
        async with self._commands:
            self._accept(command.controller_epoch, command.broker_epoch)
            answers = {item.topic_partition: await self._stop(item) for item in command.partitions}
            self._copy(())
            for topic in {key.topic for key in answers} - {key.topic for key in self._partitions}:
                self._metrics.forget_topic(topic)
            return answers

    async def reconfigure(self, topics: Collection[str] | None) -> None:
        """Read the configuration of these topics again (None: of all topics with open replicas),
        and apply it to their logs. Raises the errors of the TopicConfigReader."""
        async with self._commands:
            opened = {key.topic for key in self._partitions}
            wanted = opened if topics is None else opened.intersection(topics)
            configs = await self._opener.configs(wanted)
            for key in self._partitions:
                config = configs.get(key.topic)
                if config is not None:
                    self._logs.set_config(key, config)
                    self.review_isr(self._partitions[key])

    def _accept(self, controller_epoch: int, broker_epoch: int) -> None:
        if controller_epoch < self._controller_epoch:
            raise BrokerError(
                ErrorCode.STALE_CONTROLLER_EPOCH,
                f"controller epoch {controller_epoch}, expected {self._controller_epoch} or more",
            )
        if broker_epoch != -1 and broker_epoch < self.broker_epoch:
            raise BrokerError(
                ErrorCode.STALE_BROKER_EPOCH,
                f"broker epoch {broker_epoch}, expected {self.broker_epoch} or more",
            )
        self._controller_epoch = controller_epoch

    def _check(self, facts: PartitionFacts) -> ErrorCode | None:
        """Return None if `facts` must now be applied, else the LeaderAndIsr response code."""
        key = facts.topic_partition
        if cannot_exist(key):
            return ErrorCode.INVALID_TOPIC_EXCEPTION
        if self.broker_id not in facts.replicas:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        partition = self._partitions.get(key)
        try:
            is_news = partition is None or partition.check_epoch(facts)
            if partition is not None and not is_news:
                before = partition.high_watermark
                self.high_watermark_moved(partition, before, partition.told_again(facts))
                if partition.is_leader and not partition.may_have_enough_replicas():
                    self.produces.disturbed(key)
                if is_orphaned(facts.state):
                    self.on_orphaned(partition)
        except BrokerError as error:
            state_change.warning("LeaderAndIsr refused partition=%s error=%s", key, error)
            return error.code
        return None if is_news else ErrorCode.NONE

    def _cannot_open(self, key: TopicPartition, error: PybrokerError) -> ErrorCode:
        reason = error.detail if isinstance(error, BrokerError) else str(error)
        if self._not_opened.get(key) != reason:
            self._not_opened[key] = reason
            log.error("partition cannot be opened partition=%s error=%s", key, reason)
        self.on_refusal(key)
        return error.code if isinstance(error, BrokerError) else ErrorCode.KAFKA_STORAGE_ERROR

    def _assign(self, facts: PartitionFacts, opened: Log) -> Partition:
        """Make the replica the leader or a follower, as `facts` says. Must not await."""
        key = facts.topic_partition
        partition = self._partitions.get(key)
        if partition is None or partition.log is not opened:
            if partition is not None:
                partition.changed()
            known = max(self._logs.high_watermark_checkpoint(key), self._dropped.pop(key, 0))
            partition = self._partitions[key] = Partition(
                topic_partition=key,
                log=opened,
                broker_id=self.broker_id,
                high_watermark=known,
                counters=self._metrics.topic(key.topic),
            )
            partition.on_decided = lambda: self.fetches.disturbed(key)
            if key.topic not in INTERNAL_TOPICS:
                self.by_topic.setdefault(key.topic.encode(), {})[key.partition] = partition
        if opened.latest_epoch > facts.state.leader_epoch:  # no checksum covers epochs
            self.on_suspicion(key, opened.epoch_end_offset(facts.state.leader_epoch)[1])
        if facts.state.leader == self.broker_id:
            partition.lead(facts, self.clock.monotonic())
            self.review_isr(partition)
        else:
            partition.follow(facts)
            if is_orphaned(facts.state):
                self.on_orphaned(partition)
        state_change.info(
            "replica role partition=%s role=%s leader=%d leader_epoch=%d isr=%s controller_epoch=%d"
            " log_start=%d log_end=%d hw=%d",
            key,
            "leader" if partition.is_leader else "follower",
            facts.state.leader,
            facts.state.leader_epoch,
            ",".join(map(str, facts.state.isr)),
            facts.state.controller_epoch,
            opened.log_start_offset,
            opened.log_end_offset,
            partition.high_watermark,
        )
        self._not_opened.pop(key, None)
        self._disturbed(key)
        return partition

    def _copy(self, keys: Iterable[TopicPartition]) -> None:
        """Fetch these partitions from their leaders. Stop each fetcher without partitions."""
        if self._fetchers is None:
            return
        copied = [self._partitions[key] for key in keys]
        self._fetchers.follow(each for each in copied if self.leadership_yield.may_copy(each.state))
        self._fetchers.end_idle()

    async def _let_go(self, keys: Iterable[TopicPartition]) -> None:
        """Stop fetching these partitions, and wait until none of their logs is being truncated."""
        if self._fetchers is not None:
            gone = list(keys)
            self._fetchers.leave(gone)
            await self._fetchers.settled(gone)

    async def _stop(self, item: StopReplicaPartition) -> ErrorCode:
        key = item.topic_partition
        partition = self._partitions.get(key)
        if partition and LEADER_DURING_DELETION != item.leader_epoch < partition.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        await self._let_go((key,))
        self._drop(key)
        self._not_opened.pop(key, None)
        self._disturbed(key)
        if item.delete:
            self._dropped.pop(key, None)
            self.leadership_yield.remove(key)
            try:
                await self._blocking.run(self._logs.delete, key)
            except StorageError as error:
                log.error("log cannot be deleted partition=%s error=%s", key, error)
                return ErrorCode.KAFKA_STORAGE_ERROR
            state_change.info("partition deleted partition=%s", key)
        return ErrorCode.NONE

    def _drop(self, key: TopicPartition) -> bool:
        """Close the replica. Return whether it was open."""
        if self._fetchers is not None:
            self._fetchers.leave((key,))
        name = key.topic.encode()
        partitions = self.by_topic.get(name, {})
        partitions.pop(key.partition, None)
        if not partitions:
            self.by_topic.pop(name, None)
        partition = self._partitions.pop(key, None)
        if partition is None:
            return False
        self._dropped[key] = partition.high_watermark
        partition.changed()
        return True

    def _disturbed(self, key: TopicPartition) -> None:
        for waiting in (self.fetches, self.replica_fetches, self.produces, self.deletions):
            waiting.disturbed(key)
        if key.topic in self.on_internal:
            self.on_internal[key.topic](key)
