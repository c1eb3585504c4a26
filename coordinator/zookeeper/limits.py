"""The size limit of a request to ZooKeeper."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pybroker.errors import RequestTooLarge
from pybroker.ports import CoordOp, CreateOp, SetOp

REQUEST_BYTES_MAX: Final = 512 * 1024
"""Half of the server's own limit (`jute.maxbuffer`, 1 MiB). A server closes the connection after a
larger request, and the client would not know whether the request was applied."""

_OPERATION_OVERHEAD_BYTES: Final = 64
"""An upper bound of the fixed part of any operation: header, lengths, access list, flags,
version."""


def check_request_size(ops: Sequence[CoordOp]) -> None:
    """Raise RequestTooLarge if a request with these operations could exceed the limit."""
    size = sum(map(operation_bytes, ops))
    if size > REQUEST_BYTES_MAX:
        raise RequestTooLarge(
            f"a ZooKeeper request of {len(ops)} operation(s), the first on {ops[0].path}, has"
            f" {size} bytes; the limit is {REQUEST_BYTES_MAX}"
        )


def operation_bytes(op: CoordOp) -> int:
    """Return an upper bound of the bytes that `op` takes in a request."""
    data = len(op.data) if isinstance(op, (CreateOp, SetOp)) else 0
    return _OPERATION_OVERHEAD_BYTES + len(op.path.encode()) + data
