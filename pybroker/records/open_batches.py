"""The choice of the implementation that appends single records to a producer's open batches: the
compiled one if it exists, otherwise `_pure_open_batches.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = ["OpenBatchAppender", "RecordPlace"]

if TYPE_CHECKING:
    from pybroker.records._pure_open_batches import OpenBatchAppender, RecordPlace
else:
    try:
        from pybroker.records._speedups import OpenBatchAppender, RecordPlace
    except ImportError:
        from pybroker.records._pure_open_batches import OpenBatchAppender, RecordPlace
