"""Replicas whose log has a hole: they leave the in-sync and the eligible replicas by themselves,
before anybody elects them for what they had, and are copied anew from whoever leads then.

Others have what the hole held, or nothing is done: the only replica that counts is used as far as
it is whole, and nobody shortens it. A hole is found at the start (`storage/recovery.py`) or, while
the log is in use, by `scrubber.py`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Container
from typing import Final

from pybroker.background import BackgroundTask
from pybroker.coordinator.zookeeper import paths, topic_nodes
from pybroker.coordinator.zookeeper.registry import end_earlier_lives
from pybroker.coordinator.zookeeper.schemas import decode_state, encode_state
from pybroker.errors import (
    BadVersion,
    CoordError,
    MalformedNode,
    NoNode,
    StorageError,
)
from pybroker.model import PartitionState, TopicPartition
from pybroker.ports import Coord, NodeStat, SetOp
from pybroker.replication.health.power_loss import without
from pybroker.replication.health.unfit import UnfitCopies
from pybroker.replication.manager import ReplicaManager
from pybroker.storage.log_parts import Damage
from pybroker.storage.manager import LogManager

log = logging.getLogger(__name__)
state_change = logging.getLogger("pybroker.state_change")

_LOOK_AGAIN_S: Final = 2.0
"""How soon a replica that nobody could do without is looked at again."""
_ATTEMPTS_MAX: Final = 10
"""Leaders and the controller may change a state meanwhile."""


class _Anybody:
    """Before the cluster is known every broker may be alive."""

    def __contains__(self, broker_id: object) -> bool:
        return True


def stepped_aside(
    state: PartitionState, broker_id: int, live: Container[int]
) -> PartitionState | None:
    """The state in which that broker's replica counts for nothing; None if nobody else who is in
    sync or eligible is alive. Also where it counts for nothing already the state is written again:
    a leader that is about to take it back must not, for what it had."""
    others = {*state.isr, *state.eligible} - {broker_id}
    if not any(other in live for other in others):
        return None
    return without(state, broker_id) or state


class Quarantine:
    """`settle` before the broker registers, then between `start` and `stop`."""

    def __init__(
        self,
        *,
        coord: Coord,
        broker_id: int,
        logs: LogManager,
        replicas: ReplicaManager,
        live: Callable[[], Collection[int]],
        changed: Callable[[], None],
        raised: Callable[[int], None],
    ) -> None:
        """`live` are the brokers that run, none before they are known; `changed` lets the
        controller look at what is stored of the replicas here, and tell this broker its roles
        again; `raised` is told the broker's new incarnation."""
        self._coord = coord
        self._broker_id = broker_id
        self._logs = logs
        self._replicas = replicas
        self._live = live
        self._changed = changed
        self._raised = raised
        self._damaged: dict[TopicPartition, Damage] = {}
        """Replicas that have not stepped aside yet."""
        self._told: set[TopicPartition] = set()
        self._stored_incarnation = -1
        """With which a replica has stepped aside that may still be followed."""
        self._unfit = UnfitCopies(coord, broker_id, logs, live)
        replicas.on_refusal = self._refused
        self._wake = asyncio.Event()
        self._task = BackgroundTask("quarantine")

    async def settle(self) -> None:
        """Let no replica with a hole be elected. Raises CoordError: then the broker may not
        register."""
        damaged = sorted(self._logs.damaged().items())
        if damaged:
            await end_earlier_lives(self._coord, self._broker_id)
        for key, damage in damaged:
            if await self._step_aside(key, damage, _Anybody()):
                self._logs.incomplete.replaceable.add(key)
            else:
                self._damaged[key] = damage

    def start(self) -> None:
        self._task.start(self._run)

    async def stop(self) -> None:
        """Idempotent."""
        await self._task.stop()

    @property
    def waiting(self) -> dict[TopicPartition, Damage]:
        """The holes in replicas that nobody else can stand in for now; a snapshot."""
        return dict(self._damaged)

    def found(self, key: TopicPartition, damage: Damage) -> None:
        """An open log is not what was written."""
        opened = self._logs.log(key)
        if key in self._damaged or opened is None or opened.damage is not None:
            return
        log.error(
            "log damaged partition=%s path=%s position=%d offset=%d reason=%r",
            key,
            damage.path,
            damage.position,
            damage.offset,
            damage.reason,
        )
        self._damaged[key] = damage
        self._wake.set()

    def _refused(self, key: TopicPartition) -> None:
        if self._unfit.refused(key):
            self._wake.set()

    async def _run(self) -> None:
        while True:
            is_over = not self._damaged and not self._unfit.waits
            try:
                async with asyncio.timeout(None if is_over else _LOOK_AGAIN_S):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()
            done = [key for key in list(self._damaged) if await self._try(key)]
            for key in done:
                del self._damaged[key]
                self._told.discard(key)
            if await self._unfit.look() or done:
                self._changed()

    async def _try(self, key: TopicPartition) -> bool:
        """Whether nothing is left to be done for that replica."""
        damage = self._damaged[key]
        opened = self._logs.log(key)
        live = self._live()
        try:
            if opened is None or opened.failure is not None:
                # Nothing is copied into it; all other replicas here go by the incarnation, too.
                await self._hear_incarnation()
                return True
            if damage.is_whole and opened.damage is None:
                return True  # it is the only replica, and believed
            if not live or not await self._step_aside(key, damage, live):
                return False
            self._logs.incomplete.replaceable.add(key)
            await self._replicas.withdraw(key, damage)
        except (CoordError, StorageError) as error:
            log.warning("damaged replica not withdrawn partition=%s error=%r", key, error)
            return False
        # Not before: what is still copied into the old log is no reason to take the replica back.
        self._raised(self._stored_incarnation)
        return True

    async def _step_aside(self, key: TopicPartition, damage: Damage, live: Container[int]) -> bool:
        """Whether the replica counts for nothing now. Raises CoordError."""
        for attempt in range(_ATTEMPTS_MAX):
            try:
                return await self._write(key, damage, live)
            except BadVersion:
                if attempt == _ATTEMPTS_MAX - 1:
                    raise
            except NoNode:
                return False  # the topic is gone, or the partition was never led
            except MalformedNode as error:
                log.error("damaged replica not settled partition=%s reason=%s", key, error)
                return False
        return False

    async def _write(self, key: TopicPartition, damage: Damage, live: Container[int]) -> bool:
        """A lost reply is a failure like any other: what was stored is found at the next look."""
        if self._task.runs:
            await self._hear_incarnation()
        topic = key.topic, await topic_nodes.stored_id(self._coord, key.topic)
        path = paths.partition_state(key)
        data, stat = await self._coord.get(path)
        state = decode_state(path, data)
        changed = stepped_aside(state, self._broker_id, live)
        if changed is None:
            if key not in self._told:
                self._told.add(key)
                log.error(
                    "damaged replica kept partition=%s offset=%d: no other replica that runs has"
                    " its records; what is whole is served",
                    key,
                    damage.offset,
                )
            return False
        await self._store(topic, SetOp(path, encode_state(changed, data), stat.version))
        state_change.warning(
            "replica steps aside partition=%s reason=damaged offset=%d leader=%d leader_epoch=%d"
            " isr=%s eligible=%s",
            key,
            damage.offset,
            changed.leader,
            changed.leader_epoch,
            ",".join(map(str, changed.isr)),
            ",".join(map(str, changed.eligible)),
        )
        return True

    async def _store(self, topic: topic_nodes.Topic, write: SetOp) -> None:
        """A broker that has registered becomes another incarnation with it: a fetch that is still
        on its way speaks for the log that was, and must bring nobody back. Raises CoordError."""
        if not self._task.runs:
            await topic_nodes.apply(self._coord, topic, write)
            return
        raises = SetOp(paths.incarnation(self._broker_id), b"")
        _, raised = await topic_nodes.apply(self._coord, topic, write, raises)
        assert isinstance(raised, NodeStat)
        self._stored_incarnation = raised.version

    async def _hear_incarnation(self) -> None:
        """The reply that told it may have been lost."""
        _, stat = await self._coord.get(paths.incarnation(self._broker_id))
        self._raised(stat.version)
