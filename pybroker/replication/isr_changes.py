"""Writes to ZooKeeper the ISR changes of the partitions that this broker leads, and notifies the
controller.

A multi writes the partition's state node if the node has the expected version, the topic exists,
and the broker of a joining replica has not registered again since the replica's last fetch
(KIP-903). After a lost reply the broker repeats the write. A read of the node cannot show that the
write failed, because a lagging ZooKeeper server may return old content.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from typing import Final

from pybroker.background import TaskOwner
from pybroker.bounded_gather import bounded_gather
from pybroker.coordinator.zookeeper import paths, topic_nodes
from pybroker.coordinator.zookeeper.multi_batcher import MultiBatcher
from pybroker.coordinator.zookeeper.schemas import decode_state, encode_partitions, encode_state
from pybroker.errors import CoordError, MalformedNode, MultiFailed, NoNode
from pybroker.metrics import Metrics
from pybroker.model import NO_TOPIC_ID, PartitionState, TopicPartition
from pybroker.ports import CheckOp, Clock, Coord, CoordOp, NodeStat, OpResult, SessionEvent, SetOp
from pybroker.replication.isr_notifications import CHECK_S, ChangedPartitions
from pybroker.replication.isr_review import IsrReview
from pybroker.replication.leader_state import NOBODY, REVIEW_SHARE, IsrChange
from pybroker.replication.manager import ReplicaManager
from pybroker.replication.partition import Partition

log = logging.getLogger(__name__)
state_change = logging.getLogger("pybroker.state_change")

_OPERATIONS_PER_MULTI_MAX: Final = 100
_AT_ONCE_MAX: Final = 500
_RETRY_S: Final = 0.2
_RETRY_S_MAX: Final = 5.0
"""The longest pause between two rounds of writes while ZooKeeper cannot be reached. A new
connection to ZooKeeper ends the pause."""
_GATHER_S: Final = 0.05
"""How long the broker waits before it notifies the controller of a stored change. Changes that are
stored meanwhile share the notification."""
_NEWS: Final = (SessionEvent.CONNECTED, SessionEvent.RECONNECTED)

_Led = tuple[Partition, int]
"""A partition that this broker leads, and the version of its state node, which names this broker as
leader."""
LeadNow = Callable[[Sequence[Partition]], Awaitable[Collection[TopicPartition]]]
"""Asks ZooKeeper which of these partitions this broker still leads, and returns them."""

_ANY_VERSION: Final = -1
_GONE: Final = "the topic is deleted"
_CONDITIONS_ON_WHO_JOINS: Final = 2
"""The number of checks before the write in a multi that adds a broker to the ISR."""


class IsrChanges:
    """Between `start` and `stop`, writes the ISR changes of the partitions that this broker
    leads."""

    def __init__(
        self, *, coord: Coord, replicas: ReplicaManager, clock: Clock, metrics: Metrics
    ) -> None:
        self._coord = coord
        self._multis = MultiBatcher(coord, operations_max=_OPERATIONS_PER_MULTI_MAX)
        self._replicas = replicas
        self._clock = clock
        self._review = IsrReview(replicas, clock)
        self._metrics = metrics
        self._again: list[IsrChange] = []
        """The changes of the current round whose result is unknown. The next round repeats them."""
        self._reachable = asyncio.Event()
        """Set when the broker is connected to ZooKeeper again."""
        self._untold = ChangedPartitions()
        self._has_untold = asyncio.Event()
        """Set while a stored change waits for its notification (`_untold`), so that an idle broker
        needs no timer."""
        self._tell_now = asyncio.Event()
        self._tasks = TaskOwner()
        coord.add_listener(self._on_session)

    def start(self) -> None:
        self._tasks.start(self._write_all(), "isr-changes")
        self._tasks.start(self._watch_lag(), "isr-lag")
        self._tasks.start(self._tell_controller(), "isr-notifications")

    async def stop(self) -> None:
        """Stop all tasks. A pending ISR change may or may not be stored. Idempotent."""
        await self._tasks.close()

    async def lead_now(self, partitions: Sequence[Partition]) -> frozenset[TopicPartition]:
        """Ask ZooKeeper which of these partitions this broker still leads. If ZooKeeper does not
        answer for a partition, the result omits this partition."""
        asked = [
            (each, version) for each in partitions if (version := each.led_version) is not None
        ]
        is_led = await bounded_gather(self._is_unreplaced, asked, _AT_ONCE_MAX)
        return frozenset(
            each.topic_partition
            for (each, version), is_led in zip(asked, is_led, strict=True)
            if is_led and each.led_version == version
        )

    async def _is_unreplaced(self, asked: _Led) -> bool:
        """Return whether the state node in ZooKeeper still has the version in `asked`. False if
        ZooKeeper does not answer."""
        partition, version = asked
        key = partition.topic_partition
        check = CheckOp(paths.partition_state(key), version)
        try:
            await self._multi((key.topic, partition.topic_id or NO_TOPIC_ID), [check])
        except CoordError:
            return False
        return True

    def _on_session(self, event: SessionEvent) -> None:
        if event in _NEWS:
            self._reachable.set()

    # writing

    async def _multi(
        self,
        topic: topic_nodes.Topic,
        ops: Sequence[CoordOp],
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> list[OpResult]:
        """Call `topic_nodes.multi`. The request to ZooKeeper may also contain writes for other
        partitions. If `is_wanted` returns False right before an attempt, `ops` are not sent, and
        ConnectionLoss is raised."""
        return await topic_nodes.multi(
            self._coord,
            topic,
            ops,
            lambda checks, ops: self._multis.multi(ops, is_wanted, checks),
        )

    async def _write_all(self) -> None:
        replicas, pause_s = self._replicas, _RETRY_S
        while True:
            await replicas.isr_change_wanted.wait()
            replicas.isr_change_wanted.clear()
            changes = list(replicas.isr_changes.values())
            replicas.isr_changes.clear()
            self._reachable.clear()
            try:
                await bounded_gather(self._carry_out, changes, _AT_ONCE_MAX)
            except Exception:
                # The task must outlive any defect: no ISR of this broker would change again.
                log.exception("isr changes failed, trying again partitions=%d", len(changes))
                self._again = changes
            if not self._again:
                pause_s = _RETRY_S
            else:
                for change in self._again:
                    if self._leader_of(change) is not None:
                        replicas.isr_changes[change.topic_partition] = change
                self._again = []
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause_s):
                        await self._reachable.wait()
                pause_s = min(2 * pause_s, _RETRY_S_MAX)
                replicas.isr_change_wanted.set()

    async def _carry_out(self, change: IsrChange) -> None:
        if change.only_looks:
            await self._verify(change)
        elif (data := await self._look(change)) is not None:
            await self._store(change, data)

    async def _verify(self, change: IsrChange) -> None:
        # A plain read would not suffice: a lagging ZooKeeper server could answer it.
        check = CheckOp(paths.partition_state(change.topic_partition), change.expected_version)
        try:
            await self._multi(_topic(change), [check])
        except MultiFailed as failure:
            await self._learn_why(change, failure)
        except CoordError:
            self._again.append(change)
        else:
            self._unchanged(change)

    async def _look(self, change: IsrChange) -> bytes | None:
        """Read the partition's state node in ZooKeeper. Return the node's content if `change` may
        still be written, otherwise None."""
        path = paths.partition_state(change.topic_partition)
        try:
            data, stat = await self._coord.get(path)
            state = decode_state(path, data)
            if stat.version > change.expected_version:
                await self._multi(_topic(change), [CheckOp(path, stat.version)])
        except NoNode:
            self._supersede(change, _GONE)
            return None
        except MultiFailed as failure:
            if failure.index < 0:
                self._supersede(change, _GONE)
            else:
                self._again.append(change)
            return None
        except MalformedNode as error:
            self._supersede(change, str(error))
            return None
        except CoordError:
            self._again.append(change)
            return None
        if stat.version <= change.expected_version:
            return data if self._leader_of(change) is not None else None
        self._found(change, state, stat.version)
        return None

    async def _store(self, change: IsrChange, data: bytes) -> None:
        try:
            *_, stored = await self._multi(
                _topic(change),
                _operations(change, data),
                lambda: self._leader_of(change) is not None,
            )
        except MultiFailed as failure:
            await self._learn_why(change, failure)
        except CoordError:
            self._again.append(change)
        else:
            assert isinstance(stored, NodeStat)
            self._stored(change, stored.version)

    async def _learn_why(self, change: IsrChange, failure: MultiFailed) -> None:
        if failure.index < 0:
            self._supersede(change, _GONE)
            return
        if await self._look(change) is None:
            return
        if change.joins == NOBODY or failure.index >= _CONDITIONS_ON_WHO_JOINS:
            self._again.append(change)
            return
        partition = self._leader_of(change)
        if partition is not None:
            log.info(
                "isr change refused partition=%s replica=%d: the broker of this replica is not"
                " registered, or has registered again since its last fetch",
                change.topic_partition,
                change.joins,
            )
            self._metrics.isr_update_failures += 1
            before = partition.high_watermark
            self._go_on(partition, before, partition.isr_refused(change))

    # outcomes

    def _leader_of(self, change: IsrChange) -> Partition | None:
        """Return the partition of `change` if this broker leads the partition and the change is
        still pending. Otherwise return None."""
        partition = self._replicas.partitions.get(change.topic_partition)
        return partition if partition is not None and partition.is_pending(change) else None

    def _found(self, change: IsrChange, state: PartitionState, version: int) -> None:
        """Record that the partition's state node in ZooKeeper has the content `state` and a later
        version than the change expected."""
        meant = change.state
        if state == meant and version == change.expected_version + 1:
            self._stored(change, version)
            return
        if (state.leader, state.leader_epoch) != (meant.leader, meant.leader_epoch):
            is_replaced = state.leader != meant.leader
            reason = f"leader={state.leader} leader_epoch={state.leader_epoch} is stored"
            self._supersede(change, reason, is_replaced=is_replaced)
            return
        partition = self._leader_of(change)
        if partition is not None:
            self._metrics.isr_update_failures += 1
            before = partition.high_watermark
            self._changed(change, state, version, "found")
            self._go_on(partition, before, partition.isr_adopted(state, version))

    def _stored(self, change: IsrChange, version: int) -> None:
        partition = self._leader_of(change)
        if partition is None:
            return
        before = partition.high_watermark
        was = () if partition.state is None else partition.state.isr
        if len(change.state.isr) < len(was):
            self._metrics.isr_shrinks += 1
        elif len(change.state.isr) > len(was):
            self._metrics.isr_expands += 1
        self._changed(change, change.state, version, "stored")
        self._go_on(partition, before, partition.isr_stored(change, version))

    def _unchanged(self, change: IsrChange) -> None:
        partition = self._leader_of(change)
        if partition is not None:
            partition.isr_unchanged()
            self._go_on(partition, partition.high_watermark, 0)

    def _supersede(self, change: IsrChange, reason: str, *, is_replaced: bool = False) -> None:
        partition = self._leader_of(change)
        if partition is not None:
            self._metrics.isr_update_failures += 1
            log.warning(
                "no isr changes until the next LeaderAndIsr partition=%s leader_epoch=%d reason=%s",
                change.topic_partition,
                change.state.leader_epoch,
                reason,
            )
            partition.superseded(is_replaced=is_replaced)
            if is_replaced:
                self._replicas.produces.disturbed(change.topic_partition)

    def _changed(
        self, change: IsrChange, state: PartitionState, version: int, outcome: str
    ) -> None:
        key = change.topic_partition
        state_change.info(
            "isr changed partition=%s isr=%s eligible=%s leader_epoch=%d partition_epoch=%d"
            " outcome=%s",
            key,
            ",".join(map(str, state.isr)),
            ",".join(map(str, state.eligible)),
            state.leader_epoch,
            version,
            outcome,
        )
        if self._untold.add(key, self._clock.monotonic()):
            self._tell_now.set()
        self._has_untold.set()

    def _go_on(self, partition: Partition, old_offset: int, readable_bytes: int) -> None:
        """React to the outcome of an ISR change: wake waiting requests, and propose the partition's
        next ISR change if due. `old_offset` is the high watermark before the outcome."""
        self._replicas.high_watermark_moved(partition, old_offset, readable_bytes)
        if not partition.may_have_enough_replicas():
            self._replicas.produces.disturbed(partition.topic_partition)
        self._replicas.review_isr(partition)

    # followers that lag

    async def _watch_lag(self) -> None:
        while True:
            interval_s = self._replicas.lag_max_s * REVIEW_SHARE
            begun = self._clock.monotonic()
            await asyncio.sleep(interval_s)
            if self._clock.monotonic() - begun > interval_s * 1.5:
                continue  # after a pause of the process, first read the fetches that have arrived
            await self.review_all()

    async def review_all(self) -> None:
        """Propose the ISR change that is due, if any, for each partition that this broker leads."""
        await self._review.run()

    # the controller

    async def _tell_controller(self) -> None:
        while True:
            await self._has_untold.wait()
            try:
                async with asyncio.timeout(CHECK_S):
                    await self._tell_now.wait()
            except TimeoutError:
                if not self._untold.is_due(self._clock.monotonic()):
                    continue
            self._tell_now.clear()
            await asyncio.sleep(_GATHER_S)
            while len(self._untold):
                batch = self._untold.take(self._clock.monotonic())
                log.info("isr changed partitions=%d: notifying the controller", len(batch))
                try:
                    await self._coord.create(
                        paths.ISR_CHANGE_PREFIX, encode_partitions(batch), sequence=True
                    )
                except CoordError as error:
                    log.info(
                        "isr change notification failed, trying again partitions=%d error=%r",
                        len(batch),
                        error,
                    )
                    self._untold.put_back(batch)
                    break
            else:
                self._has_untold.clear()


def _topic(change: IsrChange) -> topic_nodes.Topic:
    return change.topic_partition.topic, change.topic_id


def _operations(change: IsrChange, data: bytes) -> list[CoordOp]:
    path = paths.partition_state(change.topic_partition)
    stores = SetOp(path, encode_state(change.state, data), change.expected_version)
    if change.joins == NOBODY:
        return [stores]
    return [
        CheckOp(paths.broker(change.joins), _ANY_VERSION),
        CheckOp(paths.incarnation(change.joins), change.incarnation),
        stores,
    ]
