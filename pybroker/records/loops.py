"""The choice of the implementation that loops over the records of a batch: `_speedups` if a C
compiler was found at installation, otherwise `_pure`. Both raise the same errors."""

from __future__ import annotations

__all__ = ["IMPLEMENTATION", "read_records", "scan_records"]

try:
    from pybroker.records._speedups import (
        IMPLEMENTATION,
        read_records,
        scan_records,
    )
except ImportError:
    from pybroker.records._pure import (
        IMPLEMENTATION,
        read_records,
        scan_records,
    )
