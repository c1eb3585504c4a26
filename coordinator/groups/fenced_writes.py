"""Writes to ZooKeeper that only the coordinator in office can make: every one is in a multi that
checks the fence, `/pybroker/coordinators/<partition>`, whose version the next coordinator changes
before it does anything else.

What was asked for while a multi was under way goes together into the next one. One multi of a shard
is under way at a time, and it is decided before the next one begins, so changes take effect in the
order in which they were asked for, whatever answers are lost. A change whose caller has given up is
not tried again.

What a node means is none of this module's business.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from pybroker.coordinator.groups.gathering import for_each
from pybroker.coordinator.groups.joint_multis import (
    BYTES_PER_MULTI_MAX,
    OPERATIONS_PER_MULTI_MAX,
    JointMultis,
)
from pybroker.coordinator.runtime.shard import ShardContext
from pybroker.coordinator.zookeeper import paths
from pybroker.coordinator.zookeeper.limits import operation_bytes
from pybroker.errors import (
    BrokerError,
    ConnectionLoss,
    CoordError,
    ErrorCode,
    MultiFailed,
    NodeExists,
    NoNode,
    PybrokerError,
    RequestTooLarge,
    SessionExpired,
)
from pybroker.ports import CheckOp, Coord, CoordOp, CreateOp, DeleteOp, SetOp

logger = logging.getLogger(__name__)

KNOWN_NODES_MAX: Final = 200_000
ATTEMPTS_ALONE_MAX: Final = 3
RETRY_S: Final = 0.05
RETRY_MAX_S: Final = 1.0
_OURS: Final = f"{paths.COMMITTED}/"


@dataclass(frozen=True, slots=True)
class Change:
    """What some nodes shall hold; None: the node shall not exist. The changes of one `key` replace
    each other and name the same nodes. `parents` are made, without data, before."""

    group_id: str
    key: object
    nodes: tuple[tuple[str, bytes | None], ...]
    parents: tuple[str, ...] = ()


class _Deposed(PybrokerError):
    """The fence is not ours any more."""


class _Call:
    """One call of `write`: its changes, of which some may be decided."""

    __slots__ = ("codes", "done", "is_abandoned", "missing")

    def __init__(self, count: int) -> None:
        self.codes: list[ErrorCode] = [ErrorCode.COORDINATOR_NOT_AVAILABLE] * count
        self.missing = count
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.is_abandoned = False


@dataclass(slots=True)
class _Pending:
    """A change that is not decided, and the call that waits for it as its `index`-th."""

    change: Change
    call: _Call
    index: int
    is_decided: bool = False

    @property
    def is_open(self) -> bool:
        return not (self.is_decided or self.call.is_abandoned)

    def decide(self, code: ErrorCode) -> None:
        if self.is_decided:
            return
        self.is_decided = True
        call = self.call
        call.codes[self.index] = code
        call.missing -= 1
        if call.missing == 0 and not call.done.done():
            call.done.set_result(None)


Batch = dict[object, list[_Pending]]
"""By key, the newest change of each last."""


class FencedWrites:
    """The writes of one shard. Owns one task while there is something to write; `end` ends it."""

    def __init__(
        self,
        coord: Coord,
        shard: ShardContext,
        *,
        timeout_s: float,
        joint: JointMultis | None = None,
    ) -> None:
        """`joint`: shared with other shards over the same `coord`."""
        self._coord = coord
        self._joint = joint or JointMultis(coord)
        self._shard = shard
        self._fence = paths.coordinator(shard.partition)
        self._timeout_s = timeout_s
        self._queue: deque[_Pending] = deque()
        self._current: Batch = {}
        self._by_group: dict[str, set[_Call]] = {}
        self._known: dict[str, bool] = {}
        """Whether a node exists, where we have seen or made it so. Others delete and create nodes
        too: then a multi fails, and its changes are looked at alone."""
        self._task: asyncio.Task[None] | None = None
        self._has_ended = False
        self.multis = 0

    # ---- what others call

    async def write(self, changes: Sequence[Change]) -> list[ErrorCode]:
        """Make the changes; a code for each. NOT_COORDINATOR: not made, somebody else coordinates.
        COORDINATOR_NOT_AVAILABLE: not decided within the time limit. INVALID_COMMIT_OFFSET_SIZE:
        too large for ZooKeeper. UNKNOWN_SERVER_ERROR: ZooKeeper refuses it."""
        if self._has_ended:
            return [ErrorCode.NOT_COORDINATOR] * len(changes)
        if not changes:
            return []
        call = _Call(len(changes))
        for index, change in enumerate(changes):
            self._queue.append(_Pending(change, call, index))
        groups = {change.group_id for change in changes}
        for group_id in groups:
            self._by_group.setdefault(group_id, set()).add(call)
        call.done.add_done_callback(lambda _: self._forget_call(call, groups))
        if self._task is None:
            self._task = asyncio.ensure_future(self._run())
        await asyncio.wait([call.done], timeout=self._timeout_s)
        if not call.done.done():
            call.is_abandoned = True
            call.done.set_result(None)
        return call.codes

    def found(self, nodes: Iterable[str]) -> None:
        """The caller has read or created these nodes: they need not be created again."""
        self._known.update(dict.fromkeys(nodes, True))

    async def settled(self, group_id: str) -> None:
        """Wait until what was asked for the group before this call is decided or given up."""
        calls = self._by_group.get(group_id)
        if calls:
            await asyncio.wait([call.done for call in calls])

    async def confirm(self) -> None:
        """Returns when the server has caught up with all that was written before this call, and the
        fence was still ours then: no later coordinator had written anything. Raises BrokerError
        NOT_COORDINATOR; CoordError."""
        try:
            if not self._has_ended:
                await self._multi(())
        except _Deposed as error:
            self._deposed(error)
        if self._has_ended:
            raise BrokerError(
                ErrorCode.NOT_COORDINATOR, f"partition {self._shard.partition} is another's"
            )

    def end(self) -> None:
        """Nothing more is written; who waits hears NOT_COORDINATOR. Idempotent."""
        self._has_ended = True
        for pending in self._all_pending():
            pending.decide(ErrorCode.NOT_COORDINATOR)
        self._queue.clear()
        task, self._task = self._task, None
        if task is not None and task is not asyncio.current_task():
            task.cancel()

    # ---- the task

    def _forget_call(self, call: _Call, groups: set[str]) -> None:
        for group_id in groups:
            calls = self._by_group.get(group_id)
            if calls is not None:
                calls.discard(call)
                if not calls:
                    del self._by_group[group_id]

    def _all_pending(self) -> Iterator[_Pending]:
        for waiting in self._current.values():
            yield from waiting
        yield from self._queue

    async def _run(self) -> None:
        try:
            while self._queue:
                self._current = self._take()
                await self._decide(self._current)
        except _Deposed as error:
            self._deposed(error)
        except Exception:
            logger.exception("offset_writes_failed partition=%d", self._shard.partition)
            for pending in self._all_pending():
                pending.decide(ErrorCode.UNKNOWN_SERVER_ERROR)
            self._queue.clear()
        finally:
            self._current = {}
            if not self._has_ended:
                self._task = None

    def _deposed(self, error: _Deposed) -> None:
        logger.warning("coordinator_deposed partition=%d %s", self._shard.partition, error)
        self._shard.resign(str(error))
        self.end()

    def _take(self) -> Batch:
        """As much of the queue as goes into one multi, and at least one change."""
        batch: Batch = {}
        operations, size = 1, _check_bytes(self._fence)
        while self._queue:
            pending = self._queue[0]
            change = pending.change
            change_size = sum(map(operation_bytes, _as_sets(change)))
            too_many = operations + len(change.nodes) > OPERATIONS_PER_MULTI_MAX
            if batch and (too_many or size + change_size > BYTES_PER_MULTI_MAX):
                break
            self._queue.popleft()
            if pending.is_open:
                batch.setdefault(change.key, []).append(pending)
                operations += len(change.nodes)
                size += change_size
        return batch

    async def _decide(self, batch: Batch) -> None:
        """Until each change is made, refused or given up. Raises _Deposed."""
        pause_s = RETRY_S
        while True:
            still_open = {
                key: waiting
                for key, waiting in batch.items()
                if any(pending.is_open for pending in waiting)
            }
            if not still_open:
                return
            try:
                await self._attempt(still_open)
            except (ConnectionLoss, SessionExpired) as error:
                logger.info(
                    "offset_writes_unknown partition=%d changes=%d reason=%r",
                    self._shard.partition,
                    len(still_open),
                    error,
                )
                for waiting in still_open.values():
                    self._forget(waiting[-1].change)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, RETRY_MAX_S)

    async def _attempt(self, batch: Batch) -> None:
        """All changes together; if that is refused, each alone."""
        try:
            await self._make([waiting[-1].change for waiting in batch.values()])
        except (ConnectionLoss, SessionExpired):
            raise
        except CoordError as error:
            if len(batch) > 1:
                logger.info(
                    "offset_writes_redone_alone partition=%d changes=%d reason=%r",
                    self._shard.partition,
                    len(batch),
                    error,
                )
            await for_each(self._alone, list(batch.values()))
            return
        for waiting in batch.values():
            _decide_all(waiting, ErrorCode.NONE)

    async def _alone(self, waiting: list[_Pending]) -> None:
        change = waiting[-1].change
        cause: CoordError | None = None
        for _ in range(ATTEMPTS_ALONE_MAX):
            self._forget(change)
            try:
                await self._make([change])
            except (ConnectionLoss, SessionExpired):
                raise
            except MultiFailed as error:
                cause = error.cause
            except CoordError as error:
                cause = error
                break
            else:
                _decide_all(waiting, ErrorCode.NONE)
                return
        logger.warning("offset_write_refused group=%s reason=%r", change.group_id, cause)
        _decide_all(waiting, _code_of(cause))

    # ---- from changes to multis

    async def _make(self, changes: Sequence[Change]) -> None:
        """Raises CoordError, _Deposed."""
        wanted = {path: data for change in changes for path, data in change.nodes}
        unknown = [path for path in wanted if not self._is_known(path)]
        if unknown:
            await for_each(self._look, unknown)
        known = self._known
        missing = [path for path, data in wanted.items() if data is not None and not known[path]]
        parents = dict.fromkeys(path for change in changes for path in change.parents)
        parents.update(dict.fromkeys(paths.parent(path) for path in missing))
        await for_each(self._ensure, [path for path in parents if not known.get(path)])
        sets: list[CoordOp] = []
        for path, data in wanted.items():
            if data is not None and known[path]:
                sets.append(SetOp(path, data))
            elif data is None and known[path]:
                sets.append(DeleteOp(path))
        creates = [CreateOp(path, wanted[path] or b"") for path in missing]
        if creates:
            await self._multi(creates)
            known.update(dict.fromkeys(missing, True))
        if sets:
            await self._multi(sets)
            known.update({op.path: False for op in sets if isinstance(op, DeleteOp)})
        self._bound_knowledge()

    def _is_known(self, path: str) -> bool:
        """That a node does not exist is known for longer only where nobody else makes any."""
        exists = self._known.get(path)
        return exists is True or (exists is False and path.startswith(_OURS))

    async def _look(self, path: str) -> None:
        self._known[path] = await self._coord.exists(path) is not None

    async def _ensure(self, path: str) -> None:
        """Make the node, without data, and its parents where they are missing."""
        try:
            await self._multi([CreateOp(path)])
        except MultiFailed as error:
            if isinstance(error.cause, NoNode):
                await self._ensure(paths.parent(path))
                await self._ensure(path)
            elif not isinstance(error.cause, NodeExists):
                raise
        self._known[path] = True

    async def _multi(self, ops: Sequence[CoordOp]) -> None:
        """Raises _Deposed, ConnectionLoss, SessionExpired; MultiFailed or RequestTooLarge: nothing
        was done."""
        self.multis += 1
        try:
            await self._joint.multi([CheckOp(self._fence, self._shard.fence_version), *ops])
        except MultiFailed as error:
            if error.index > 0:
                raise
            await self._look_at_fence()
            raise ConnectionLoss(f"the fence of partition {self._shard.partition}") from error

    async def _look_at_fence(self) -> None:
        """Raises _Deposed unless the fence is ours in spite of all."""
        expected = self._shard.fence_version
        await self._coord.sync(self._fence)
        try:
            _, stat = await self._coord.get(self._fence)
        except NoNode:
            raise _Deposed(f"{self._fence} does not exist any more") from None
        if stat.version != expected:
            raise _Deposed(f"{self._fence} has version {stat.version}, not {expected}")

    def _forget(self, change: Change) -> None:
        """What others may have changed behind our back."""
        for path in (*change.parents, *(path for path, _ in change.nodes)):
            while path != "/":
                self._known.pop(path, None)
                path = paths.parent(path)

    def _bound_knowledge(self) -> None:
        if len(self._known) > KNOWN_NODES_MAX:
            self._known.clear()


def _decide_all(waiting: Sequence[_Pending], code: ErrorCode) -> None:
    for pending in waiting:
        pending.decide(code)


def _as_sets(change: Change) -> Iterator[SetOp]:
    for path, data in change.nodes:
        yield SetOp(path, data or b"")


def _check_bytes(path: str) -> int:
    return operation_bytes(CheckOp(path, 0))


def _code_of(cause: CoordError | None) -> ErrorCode:
    if isinstance(cause, RequestTooLarge):
        return ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    if isinstance(cause, (NoNode, NodeExists)):
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    return ErrorCode.UNKNOWN_SERVER_ERROR
