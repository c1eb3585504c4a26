"""Writes to ZooKeeper that only the current coordinator can make. Each write is a multi that checks
the version of the fence node (`fence.py`).

A shard sends its changes in rounds. A round repeats the unanswered changes until their time limit.
If several changes of the same nodes wait, a round sends only the newest change. All these changes
get the error code of the newest change.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from pybroker.background import BackgroundTask
from pybroker.bounded_gather import bounded_gather
from pybroker.coordinator.runtime.shard import ShardContext
from pybroker.coordinator.zookeeper import paths
from pybroker.coordinator.zookeeper.multi_batcher import (
    MultiBatcher,
    Multis,
)
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
from pybroker.ports import CheckOp, Coord, CoordOp, CreateOp, DeleteOp, OpResult, SetOp

log = logging.getLogger(__name__)

KNOWN_NODES_MAX: Final = 200_000
ATTEMPTS_MAX: Final = 4
"""The maximum number of attempts for a change that ZooKeeper refuses. Before each attempt, the
nodes of the change are read again."""
RETRY_S: Final = 0.05
RETRY_MAX_S: Final = 1.0
_OURS: Final = f"{paths.COMMITTED}/"


@dataclass(frozen=True, slots=True)
class Change:
    """The wanted content of some nodes, as pairs (path, data). Data None: the node must not exist.
    Changes with equal `key` must name the same nodes, because only the newest waiting change of a
    key is sent. `parents` are created if missing."""

    group_id: str
    key: object
    nodes: tuple[tuple[str, bytes | None], ...]
    parents: tuple[str, ...] = ()
    is_ephemeral: bool = False


class _Deposed(PybrokerError):
    """Another coordinator has taken the fence."""


@dataclass(slots=True)
class _Asked:
    """A requested change of ZooKeeper nodes. `decided` is the future for its error code."""

    change: Change
    decided: asyncio.Future[ErrorCode]
    refusals: int = 0


class FencedWrites:
    """Writes the changes of one shard to ZooKeeper, while this broker is the shard's coordinator.
    Call `end` when this broker stops coordinating the shard."""

    def __init__(
        self,
        coord: Coord,
        shard: ShardContext,
        *,
        timeout_s: float,
        joint: Multis | None = None,
    ) -> None:
        """`joint`: a batcher shared by all shards with the same `coord`. If it is None, the writes
        of this shard are never joined with those of other shards."""
        self._coord = coord
        self._joint = joint or coord
        self._batcher = MultiBatcher(self, at_once=1)
        self._shard = shard
        self._fence = paths.coordinator(shard.partition)
        self._timeout_s = timeout_s
        self._open: list[_Asked] = []
        """The changes without an outcome, and those that got their outcome in this round."""
        self._known: dict[str, bool] = {}
        """Path -> whether the node exists, as last read or written here. If another process has
        created or deleted the node since, a multi fails, and each of its changes is tried alone."""
        self._task = BackgroundTask("fenced-writes")
        self._has_ended = False

    # ---- calls

    async def write(self, changes: Sequence[Change]) -> list[ErrorCode]:
        """Write the changes, and return a code for each:

        - NONE: written
        - NOT_COORDINATOR: another broker is the coordinator, or `end` was called
        - COORDINATOR_NOT_AVAILABLE: outcome unknown after the time limit, or other clients kept
          creating or deleting the nodes
        - INVALID_COMMIT_OFFSET_SIZE: too large for ZooKeeper
        - UNKNOWN_SERVER_ERROR: refused by ZooKeeper
        """
        if self._has_ended or not changes:
            return [ErrorCode.NOT_COORDINATOR] * len(changes)
        loop = asyncio.get_running_loop()
        asked = [_Asked(change, loop.create_future()) for change in changes]
        self._open += asked
        self._task.start(self._run)
        await asyncio.wait([each.decided for each in asked], timeout=self._timeout_s)
        _decide(asked, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return [each.decided.result() for each in asked]

    async def settled(self, group_id: str) -> None:
        """Wait until the outcome of all earlier changes of the group is known (success or an
        error)."""
        of_group = [each.decided for each in self._open if each.change.group_id == group_id]
        if of_group:
            await asyncio.wait(of_group)

    async def confirm(self) -> None:
        """Wait until this broker's ZooKeeper server has applied all earlier writes. Raises
        BrokerError NOT_COORDINATOR if a later coordinator has taken the fence or `end` was called.
        Also raises CoordError."""
        try:
            if not self._has_ended:
                await self.multi(())
        except _Deposed as error:
            self._deposed(error)
        if self._has_ended:
            raise BrokerError(
                ErrorCode.NOT_COORDINATOR,
                f"another broker coordinates __consumer_offsets-{self._shard.partition}",
            )

    def end(self) -> None:
        """Stop writing. Waiting callers get NOT_COORDINATOR. Idempotent."""
        self._has_ended = True
        _decide(self._open, ErrorCode.NOT_COORDINATOR)
        self._task.cancel()

    async def multi(self, ops: Sequence[CoordOp]) -> list[OpResult]:
        """Send one multi that also checks the version of the fence node. Raises _Deposed if a later
        coordinator has taken the fence; ConnectionLoss or SessionExpired if the outcome is unknown;
        MultiFailed or RequestTooLarge if nothing was done."""
        try:
            return await self._joint.multi([CheckOp(self._fence, self._shard.fence_version), *ops])
        except MultiFailed as error:
            if error.index > 0:
                raise
            await self._look_at_fence()
            raise ConnectionLoss(
                f"ZooKeeper refused a write for __consumer_offsets-{self._shard.partition} because"
                f" of the version of {self._fence}, but a read afterwards returned the expected"
                " version"
            ) from error

    # ---- the task

    async def _run(self) -> None:
        pause_s = RETRY_S
        try:
            while batch := self._take():
                if await self._attempt(batch):
                    pause_s = RETRY_S
                    continue
                log.info(
                    "offset writes unanswered partition=%d changes=%d: the coordinator sends them"
                    " again",
                    self._shard.partition,
                    len(batch),
                )
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, RETRY_MAX_S)
        except _Deposed as error:
            self._deposed(error)
        except Exception:
            log.exception("offset writes failed partition=%d", self._shard.partition)
            _decide(self._open, ErrorCode.UNKNOWN_SERVER_ERROR)

    def _deposed(self, error: _Deposed) -> None:
        log.warning("coordinator replaced partition=%d reason=%s", self._shard.partition, error)
        self._shard.resign(str(error))
        self.end()

    def _take(self) -> list[list[_Asked]]:
        """Remove from `_open` the changes with a known outcome. Return the other changes: one list
        for each `Change.key`, with the oldest change first."""
        self._open = [each for each in self._open if not each.decided.done()]
        batch: dict[object, list[_Asked]] = {}
        for each in self._open:
            batch.setdefault(each.change.key, []).append(each)
        return list(batch.values())

    async def _attempt(self, batch: Sequence[Sequence[_Asked]]) -> bool:
        """Send the newest change of each element of `batch`. Return whether ZooKeeper has answered
        for all. Raises _Deposed if another coordinator has changed the fence node."""
        try:
            await self._look_at([waiting[-1].change for waiting in batch])
        except CoordError:
            return False
        sent = [self._batcher.submit(self._operations(waiting[-1].change)) for waiting in batch]
        answers = await asyncio.gather(*sent, return_exceptions=True)
        noted = [self._note(*each) for each in zip(batch, answers, strict=True)]
        return all(noted)

    def _note(self, waiting: Sequence[_Asked], answer: object) -> bool:
        """Handle ZooKeeper's `answer` to the newest change of one key. `waiting` has all changes of
        the key, oldest first: they share the outcome. Return False if the outcome is unknown.
        Raises `answer` if it is an exception other than CoordError."""
        oldest, change = waiting[0], waiting[-1].change
        if not isinstance(answer, BaseException):
            _decide(waiting, ErrorCode.NONE)
            return True
        if not isinstance(answer, CoordError):
            raise answer
        self._forget(change)
        if isinstance(answer, (ConnectionLoss, SessionExpired)):
            return False
        oldest.refusals += 1
        if oldest.refusals == ATTEMPTS_MAX:
            cause = answer.cause if isinstance(answer, MultiFailed) else answer
            log.warning("offset write refused group=%s reason=%r", change.group_id, cause)
            _decide(waiting, _code_of(cause))
        return True

    # ---- from changes to operations

    async def _look_at(self, changes: Sequence[Change]) -> None:
        """Find out whether the nodes of the changes and the parents of these nodes exist. Raises
        CoordError."""
        if len(self._known) > KNOWN_NODES_MAX:
            self._known.clear()
        for needed in (_own, self._missing_above):
            found = dict.fromkeys(path for change in changes for path in needed(change))
            await bounded_gather(self._look, [path for path in found if not self._is_known(path)])

    def _operations(self, change: Change) -> list[CoordOp]:
        """Return the operations of the change. Update `_known` as if ZooKeeper had already applied
        them."""
        known, ops = self._known, list[CoordOp]()
        for path in self._missing_above(change):
            ops.append(CreateOp(path))
            known[path] = True
        for path, data in change.nodes:
            exists, known[path] = known.get(path), data is not None
            if data is not None:
                create = CreateOp(path, data, change.is_ephemeral)
                ops.append(SetOp(path, data) if exists else create)
            elif exists:
                ops.append(DeleteOp(path))
        return ops

    def _missing_above(self, change: Change) -> list[str]:
        """Return the parents and ancestors that may have to be created for the change, the highest
        first."""
        known = self._known
        creates = [path for path, data in change.nodes if data is not None and not known.get(path)]
        needed = (*change.parents, *map(paths.parent, creates))
        every = [up for path in needed if not known.get(path) for up in _lineage(path)]
        return [path for path in dict.fromkeys(every) if not known.get(path)]

    def _is_known(self, path: str) -> bool:
        """Whether `_known` reliably tells if the node exists. An entry with the value False is
        reliable only below /pybroker/offsets, because other clients can create nodes elsewhere."""
        exists = self._known.get(path)
        return exists is True or (exists is False and path.startswith(_OURS))

    async def _look(self, path: str) -> None:
        self._known[path] = await self._coord.exists(path) is not None

    async def _look_at_fence(self) -> None:
        """Read the fence node. Raises _Deposed if the node is missing, or if another coordinator
        has changed the node."""
        expected = self._shard.fence_version
        await self._coord.sync(self._fence)
        try:
            _, stat = await self._coord.get(self._fence)
        except NoNode:
            raise _Deposed(f"the fence node {self._fence} does not exist any more") from None
        if stat.version != expected:
            raise _Deposed(
                f"the fence node {self._fence} has version {stat.version}, expected {expected}"
            )

    def _forget(self, change: Change) -> None:
        for path in (*change.parents, *_own(change)):
            for up in _lineage(path):
                self._known.pop(up, None)


def _decide(asked: Iterable[_Asked], code: ErrorCode) -> None:
    for each in asked:
        if not each.decided.done():
            each.decided.set_result(code)


def _own(change: Change) -> list[str]:
    return [path for path, _ in change.nodes]


def _lineage(path: str) -> list[str]:
    """Return the path and its ancestors, the highest first."""
    names = path.split("/")
    return ["/".join(names[:count]) for count in range(2, len(names) + 1)]


def _code_of(cause: CoordError) -> ErrorCode:
    if isinstance(cause, RequestTooLarge):
        return ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    if isinstance(cause, (NoNode, NodeExists)):
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    return ErrorCode.UNKNOWN_SERVER_ERROR
