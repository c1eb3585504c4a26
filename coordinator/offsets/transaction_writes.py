"""Writes the offsets of committed transactions to ZooKeeper (`offsets.storage=zookeeper`), in the
order of their commit markers.

Readers of ZooKeeper may see only a part of a transaction's offsets. `OffsetStore.undecided` returns
the transaction's partitions until a ZooKeeper node (`applied_marker.py`) records that all of them
are written.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from typing import Final

from pybroker.background import BackgroundTask
from pybroker.coordinator.groups.fenced_writes import Change, FencedWrites
from pybroker.coordinator.groups.offset_store import CommittedOffset
from pybroker.coordinator.groups.records import OffsetKey
from pybroker.coordinator.offsets.applied_marker import AppliedMarker
from pybroker.coordinator.offsets.log_records import Ended
from pybroker.coordinator.offsets.nodes import commit_change, removal
from pybroker.coordinator.runtime.shard import ShardContext
from pybroker.errors import BrokerError, ErrorCode
from pybroker.model import TopicPartition

log = logging.getLogger(__name__)

OFFSETS_AT_A_TIME_MAX: Final = 500
RETRY_S: Final = 0.1
RETRY_MAX_S: Final = 5.0
_REPEATED: Final = (ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR)
"""The codes of a change that has to be written again, by this or by the next coordinator."""

Offsets = Mapping[OffsetKey, CommittedOffset | None]


class TransactionWrites:
    """Writes the offsets of committed transactions to ZooKeeper. Writing starts with the call of
    `begin` and stops with the call of `end`."""

    def __init__(
        self,
        shard: ShardContext,
        writes: FencedWrites,
        applied: AppliedMarker,
        *,
        is_ending: Callable[[OffsetKey], bool],
        release: Callable[[Ended], None],
        keep: Callable[[Offsets], Awaitable[None]],
    ) -> None:
        """- `is_ending`: returns whether a transaction with an offset for the given key is about to
        end: the log has its marker, but the in-sync replicas do not have the marker yet
        - `release`: called when ZooKeeper has a transaction's offsets, and `applied` has reached
          the offset of the transaction's commit marker
        - `keep`: writes to the log the offsets that ZooKeeper refuses; may raise BrokerError"""
        self._shard = shard
        self._writes = writes
        self._applied = applied
        self._is_ending = is_ending
        self._release = release
        self._keep = keep
        self._waiting: list[Ended] = []
        """The committed transactions that are not applied yet, in the order of their markers."""
        self._keys: dict[OffsetKey, int] = {}
        """Group and partition -> the number of waiting transactions that have an offset of it."""
        self._changed: set[asyncio.Future[None]] = set()
        self._task = BackgroundTask("transactional-offsets")
        self._has_begun = self._has_ended = False

    def begin(self) -> None:
        """Start to write offsets to ZooKeeper, beginning with the transactions that were already
        given to `add`. Call this once, after all offsets found by the replay are in ZooKeeper."""
        self._has_begun = True
        if self._waiting:
            self._task.start(self._run)

    def end(self) -> None:
        """Stop writing. Idempotent."""
        self._has_ended = True
        self._task.cancel()
        self._wake()

    def add(self, ended: Ended) -> None:
        """Write the offsets of a transaction, after those of all earlier calls."""
        if not ended.offsets:
            self._wake()
            return
        self._waiting.append(ended)
        for key in ended.offsets:
            self._keys[key] = self._keys.get(key, 0) + 1
        if self._has_begun:
            self._task.start(self._run)

    async def settled(
        self, group_id: str, partitions: Collection[TopicPartition], timeout_s: float
    ) -> None:
        """Wait until the offsets of ended transactions for these partitions are stored. Otherwise a
        late write could overwrite the caller's next commit. Raises BrokerError."""
        keys = [OffsetKey(group_id, partition) for partition in partitions]
        try:
            async with asyncio.timeout(timeout_s):
                while any(map(self._is_due, keys)) and not self._has_ended:
                    await self._change()
        except TimeoutError as error:
            raise BrokerError(
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
                f"the offsets of a committed transaction of group {group_id} are not in ZooKeeper"
                " yet; retry",
            ) from error

    def _is_due(self, key: OffsetKey) -> bool:
        return key in self._keys or self._is_ending(key)

    async def _change(self) -> None:
        future = asyncio.get_running_loop().create_future()
        self._changed.add(future)
        try:
            await future
        finally:
            self._changed.discard(future)

    def _wake(self) -> None:
        for future in self._changed:
            if not future.done():
                future.set_result(None)

    async def _run(self) -> None:
        while self._waiting:
            batch = [*self._waiting]
            offsets: dict[OffsetKey, CommittedOffset | None] = {}
            for ended in batch:
                offsets.update(ended.offsets)
            refused = await self._write_all(offsets)
            if refused:
                await self._repeat(partial(self._keep_all, refused))
            await self._repeat(partial(self._applied.put, batch[-1].marker_offset))
            if self._has_ended:
                return
            del self._waiting[: len(batch)]
            for ended in batch:
                self._forget(ended)
            self._wake()

    async def _write_all(self, offsets: Offsets) -> Offsets:
        """Write the offsets until each is stored or refused, or the shard has ended. Return the
        refused offsets."""
        rest = dict(offsets)
        refused: dict[OffsetKey, CommittedOffset | None] = {}

        async def write_some() -> ErrorCode:
            some = [*rest][:OFFSETS_AT_A_TIME_MAX]
            codes = await self._writes.write([self._change_of(key, rest[key]) for key in some])
            for key, code in zip(some, codes, strict=True):
                if code in _REPEATED:
                    continue
                committed = rest.pop(key)
                if code is not ErrorCode.NONE:
                    refused[key] = committed
                    log.error(
                        "transactional offset refused group=%s partition=%s reason=%s: the next"
                        " coordinator that loads the partition tries again",
                        key.group_id,
                        key.topic_partition,
                        code.name,
                    )
            return next((code for code in codes if code in _REPEATED), ErrorCode.NONE)

        while rest and not self._has_ended:
            await self._repeat(write_some)
        return refused

    async def _keep_all(self, refused: Offsets) -> ErrorCode:
        try:
            await self._keep(refused)
        except BrokerError as error:
            return error.code
        return ErrorCode.NONE

    async def _repeat(self, step: Callable[[], Awaitable[ErrorCode]]) -> None:
        """Call `step` until it returns NONE, or the shard has ended."""
        pause_s = RETRY_S
        while not self._has_ended:
            code = await step()
            if code is ErrorCode.NONE or self._has_ended:
                return
            log.info(
                "transactional offsets not written partition=%d transactions=%d code=%s: the"
                " coordinator tries again",
                self._shard.partition,
                len(self._waiting),
                code.name,
            )
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, RETRY_MAX_S)

    def _change_of(self, key: OffsetKey, committed: CommittedOffset | None) -> Change:
        if committed is None:
            return removal(key.group_id, key.topic_partition)
        now_ms = self._shard.clock.wall_ms()
        return commit_change(key.group_id, key.topic_partition, committed, now_ms)

    def _forget(self, ended: Ended) -> None:
        for key in ended.offsets:
            self._keys[key] -= 1
            if not self._keys[key]:
                del self._keys[key]
        self._release(ended)
