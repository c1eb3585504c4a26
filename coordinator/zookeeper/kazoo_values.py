"""Translation of operations, results and errors between pybroker and kazoo."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from kazoo import exceptions as kazoo  # type: ignore[import-untyped]

from pybroker.errors import (
    BadVersion,
    ConnectionLoss,
    CoordError,
    MultiFailed,
    NoChildrenForEphemerals,
    NodeExists,
    NoNode,
    NotEmpty,
    SessionExpired,
)
from pybroker.ports import CheckOp, CoordOp, CreateOp, DeleteOp, NodeStat, OpResult, SetOp

KazooException: Final[type[Exception]] = kazoo.KazooException

_NOT_A_CAUSE: Final = (kazoo.RolledBackError, kazoo.RuntimeInconsistency)
"""In a failed transaction, kazoo's results for the operations that did not fail themselves."""

_MEANINGS: Final[tuple[tuple[type[Exception], type[CoordError]], ...]] = (
    (kazoo.NoNodeError, NoNode),
    (kazoo.NodeExistsError, NodeExists),
    (kazoo.BadVersionError, BadVersion),
    (kazoo.NotEmptyError, NotEmpty),
    (kazoo.NoChildrenForEphemeralsError, NoChildrenForEphemerals),
    (kazoo.SessionExpiredError, SessionExpired),
    (kazoo.ConnectionLoss, ConnectionLoss),
    (kazoo.OperationTimeoutError, ConnectionLoss),
    (kazoo.SessionMovedError, ConnectionLoss),
)


def meaning_of(error: Exception, path: str) -> CoordError:
    """Return pybroker's error for kazoo's `error`. An error of kazoo that pybroker does not
    distinguish becomes a plain CoordError."""
    for theirs, ours in _MEANINGS:
        if isinstance(error, theirs):
            return ours(path)
    return CoordError(f"{path}: {error!r}")


def stat_of(stat: Any) -> NodeStat:
    return NodeStat(
        czxid=stat.czxid,
        mzxid=stat.mzxid,
        version=stat.version,
        ephemeral_owner=stat.ephemeralOwner,
        ctime_ms=stat.ctime,
        mtime_ms=stat.mtime,
        data_length=stat.dataLength,
        num_children=stat.numChildren,
    )


def add_operation(transaction: Any, op: CoordOp, path: str) -> None:
    """Add `op` to a kazoo transaction. `path` includes the chroot."""
    match op:
        case CreateOp():
            transaction.create(path, op.data, ephemeral=op.ephemeral, sequence=op.sequence)
        case SetOp():
            transaction.set_data(path, op.data, op.version)
        case DeleteOp():
            transaction.delete(path, op.version)
        case CheckOp():
            transaction.check(path, op.version)


def multi_results(ops: Sequence[CoordOp], results: Sequence[Any]) -> list[OpResult]:
    """Convert kazoo's `results` of a transaction with the operations `ops`. The path of a created
    node still includes the chroot. Raises MultiFailed if kazoo's results are errors."""
    for index, (op, result) in enumerate(zip(ops, results, strict=True)):
        if isinstance(result, Exception) and not isinstance(result, _NOT_A_CAUSE):
            raise MultiFailed(index, meaning_of(result, op.path))
    return [_op_result(op, result) for op, result in zip(ops, results, strict=True)]


def _op_result(op: CoordOp, result: Any) -> OpResult:
    match op:
        case CreateOp():
            return str(result)
        case SetOp():
            return stat_of(result)
        case _:
            return None
