"""The choice of the implementation that loops over the records of a batch. `columns.py`,
`key_table.py` and `record_buffer.py` choose theirs.

`_speedups` exists if a C compiler was found at installation; otherwise `_pure` does the same in
Python. Both raise the same errors, and the same tests check both.
"""

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
