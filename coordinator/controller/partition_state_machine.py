"""The partition state machine: it writes decisions to ZooKeeper, reads back writes with an unknown
outcome, and decides again if another client changed the state first."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from pybroker.coordinator.controller import partitions
from pybroker.coordinator.controller.broker_notifier import BrokerNotifier
from pybroker.coordinator.controller.context import ClusterContext
from pybroker.coordinator.controller.journal import Journal
from pybroker.coordinator.controller.partitions import (
    Partition,
    PartitionStatus,
    StateNode,
    StateWrite,
)
from pybroker.coordinator.controller.policies import Policies
from pybroker.coordinator.controller.reading import read_states
from pybroker.coordinator.controller.receipts import ReceiptBook, log_receipt
from pybroker.coordinator.controller.retries import Retries
from pybroker.coordinator.controller.writes import (
    ControllerMoved,
    FencedWriter,
    Write,
    WriteOutcome,
)
from pybroker.coordinator.zookeeper import paths, schemas
from pybroker.errors import ConnectionLoss, CoordError, NodeExists
from pybroker.model import NO_LEADER, TopicPartition
from pybroker.ports import CheckOp, Coord, CoordOp, CreateOp, NodeStat, SetOp
from pybroker.yield_every import yield_every

log = logging.getLogger(__name__)
state_change = logging.getLogger("pybroker.state_change")
"""Changes of leaders and in-sync replicas, as in Kafka's state-change log."""

ATTEMPTS_MAX: Final = 3
"""The maximum number of attempts to decide and store that follow each other without a pause. An
attempt fails if a leader has changed the ISR since the state was read."""

Decide = Callable[[Partition], StateWrite | None]


class PartitionStateMachine:
    """Moves the partitions in the controller's context to new states. `notifier` gets the
    partitions whose state was stored, `retries` those whose state could not be stored."""

    def __init__(
        self,
        coord: Coord,
        writer: FencedWriter,
        context: ClusterContext,
        policies: Policies,
        receipts: ReceiptBook,
        journal: Journal,
        notifier: BrokerNotifier,
        retries: Retries,
    ) -> None:
        self._coord = coord
        self._writer = writer
        self._context = context
        self._policies = policies
        self._receipts = receipts
        self._journal = journal
        self._notifier = notifier
        self._retries = retries

    async def move(self, topic_partitions: Iterable[TopicPartition], decide: Decide) -> None:
        """Call `decide` for each of the partitions, in order of their names, and store the states
        that it returns (None: no change). Raises ControllerMoved, CoordError."""
        waiting = sorted(topic_partitions)
        for _ in range(ATTEMPTS_MAX):
            found = (self._context.partitions.get(key) for key in waiting)
            known = [partition for partition in found if partition is not None]
            needing = filter(self._context.needs_topic_options, known)
            try:
                await self._policies.load({each.topic_partition.topic for each in needing})
            except ConnectionLoss as error:
                log.warning(
                    "topic options not read partitions=%d reason=%r: no state is stored without"
                    " min.insync.replicas and unclean.leader.election.enable, the controller tries"
                    " again",
                    len(known),
                    error,
                )
                break
            decided = [decide(partition) async for partition in yield_every(known)]
            writes = [write for write in decided if write is not None]
            try:
                waiting = await self._store(writes) if writes else []
            except ConnectionLoss as error:
                log.warning(
                    "loss receipts not prepared partitions=%d reason=%r: no state is stored, the"
                    " controller tries again",
                    len(writes),
                    error,
                )
                break
            if not waiting:
                return
        log.warning(
            "states not stored partitions=%d: the controller tries again after a pause",
            len(waiting),
        )
        self._retries.partitions.update(waiting)

    async def refresh(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Read the stored states of these partitions. Replace each older state in the context (a
        leader may have changed the ISR). Raises ControllerMoved, CoordError."""
        nodes, _ = await read_states(self._coord, topic_partitions)
        for key, node in nodes.items():
            known = self._context.partitions.get(key)
            if known is not None and node.version > known.version:
                self._adopt(key, node)

    async def _store(self, writes: Sequence[StateWrite]) -> list[TopicPartition]:
        """Store the states. Return the partitions whose state the caller must decide again, because
        ZooKeeper refused the write."""
        await self._create_parents(writes)
        texts = [
            schemas.encode_state(write.state, self._context.partitions[write.topic_partition].data)
            async for write in yield_every(writes)
        ]
        receipts = await self._receipts.prepare([write for write in writes if write.unclean])
        outcomes = await self._writer.write_all(
            [
                _state_write(write, text, receipts.get(write.topic_partition))
                async for write, text in yield_every(zip(writes, texts, strict=True))
            ]
        )
        stored, refused = [], []
        async for write, text, outcome in yield_every(zip(writes, texts, outcomes, strict=True)):
            if isinstance(outcome, CoordError):
                log.info(
                    "state refused or unknown partition=%s reason=%r: the controller reads the"
                    " stored state",
                    write.topic_partition,
                    outcome,
                )
                refused.append(write)
            else:
                self._note_stored(write, _version(outcome), text)
                stored.append(write)
        _log_stored(stored)
        return await self._read_back(refused) if refused else []

    async def _create_parents(self, writes: Sequence[StateWrite]) -> None:
        fresh = [write.topic_partition for write in writes if write.creates]
        parents = dict.fromkeys(paths.partitions(key.topic) for key in fresh)
        parents.update(dict.fromkeys(paths.partition(key) for key in fresh))
        outcomes = await self._writer.write_all([Write((CreateOp(parent),)) for parent in parents])
        for parent, outcome in zip(parents, outcomes, strict=True):
            if isinstance(outcome, CoordError) and not isinstance(outcome, NodeExists):
                log.warning("parent node not created node=%s reason=%r", parent, outcome)

    async def _read_back(self, refused: Sequence[StateWrite]) -> list[TopicPartition]:
        """Read the states after writes that ZooKeeper refused or did not answer. Return the
        partitions that need a new decision. A refused write may be stored all the same, if the
        reply to its first attempt was lost."""
        keys = [write.topic_partition for write in refused]
        try:
            nodes, damaged = await read_states(self._coord, keys)
        except ConnectionLoss as error:
            log.warning(
                "states not read back partitions=%d reason=%r: the controller decides again after"
                " a pause",
                len(keys),
                error,
            )
            self._retries.partitions.update(keys)
            return []
        again = []
        for write in refused:
            node = nodes.get(write.topic_partition)
            if node is not None and node.state == write.state:
                self._note_stored(write, node.version, node.data)
            elif node is not None:
                self._adopt(write.topic_partition, node)
                again.append(write.topic_partition)
            elif write.topic_partition not in damaged:
                again.append(write.topic_partition)
        return again

    def _note_stored(self, write: StateWrite, version: int, text: bytes) -> None:
        before = self._context.partitions[write.topic_partition]
        self._context.put_partition(partitions.stored(before, write.state, version, text))
        self._keep_stale(write)
        if write.unclean and before.state is not None:
            log_receipt(write, before.state.isr, before.replicas)
            self._context.unclean_epochs[write.topic_partition] = write.state.leader_epoch
        self._notifier.changed_state(write.topic_partition, created=write.creates)
        self._context.unclean_elections += write.unclean
        self._journal.state_stored(before, write, version)
        state_change.info(
            "state stored partition=%s leader=%d leader_epoch=%d isr=%s version=%d "
            "controller_epoch=%d reason=%s",
            write.topic_partition,
            write.state.leader,
            write.state.leader_epoch,
            ",".join(map(str, write.state.isr)),
            version,
            write.state.controller_epoch,
            write.reason.value,
        )

    def _keep_stale(self, write: StateWrite) -> None:
        """Update `ClusterContext.stale` after `write` was stored. Stale replicas are ISR members
        that the controller still has to remove, because their brokers ended or restarted. Only
        followers in the new ISR stay stale, and only if the new state has a leader."""
        known = self._context.stale.pop(write.topic_partition, frozenset())
        stale = known.intersection(write.state.isr) - {write.state.leader}
        if stale and write.state.leader != NO_LEADER:
            self._context.stale[write.topic_partition] = stale

    def _adopt(self, key: TopicPartition, node: StateNode) -> None:
        """Update the context with a stored state that this controller did not write, and tell the
        notifier. Raises ControllerMoved if a newer controller wrote the state."""
        if node.state.controller_epoch > self._context.controller_epoch:
            raise ControllerMoved(f"the state of {key} was written by a newer controller")
        context, before = self._context, self._context.partitions[key]
        adopted = partitions.found(key, before.replicas, node, context.brokers)
        were_stale = context.stale.pop(key, frozenset())
        stale = were_stale.intersection(node.state.isr)
        if stale:
            context.stale[key] = stale
        if node.state.leader in stale:
            adopted = adopted.moved(PartitionStatus.OFFLINE)
        context.put_partition(adopted)
        same_epoch = (
            before.state is not None and before.state.leader_epoch == node.state.leader_epoch
        )
        if same_epoch and stale == were_stale:
            self._notifier.describe([key])  # the leader wrote this ISR: it needs no LeaderAndIsr
        else:
            self._notifier.changed_state(key)


def _log_stored(writes: Iterable[StateWrite]) -> None:
    """Log the number of stored states, one line for each reason and controller epoch."""
    causes = Counter((write.reason.value, write.state.controller_epoch) for write in writes)
    for (reason, epoch), count in causes.items():
        log.info("states stored partitions=%d reason=%s epoch=%d", count, reason, epoch)


def _state_write(write: StateWrite, text: bytes, receipt: CoordOp | None) -> Write:
    path = paths.partition_state(write.topic_partition)
    if write.creates:
        return Write((CreateOp(path, text),))
    checks = [CheckOp(paths.incarnation(id), version) for id, version in write.incarnations]
    receipts = [] if receipt is None else [receipt]
    return Write((SetOp(path, text, write.expected_version), *receipts, *checks))


def _version(outcome: WriteOutcome) -> int:
    """Return the version of the state node after its write; 0 for a created node."""
    result = outcome[0] if isinstance(outcome, list) else None
    return result.version if isinstance(result, NodeStat) else 0
