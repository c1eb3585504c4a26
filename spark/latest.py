"""mode=latest: reads the last record of each key in a partition."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from pybroker.client.ranges.model import PartitionRange
from pybroker.errors import PybrokerError
from pybroker.spark.batch_reader import read_batches
from pybroker.spark.newest_rows import NewestRows
from pybroker.spark.options import ReadRequest

_DELETED: Final = "deleted"
_SAME_FOR_ALL: Final = ("topic", "partition")


class KeyMissing(PybrokerError):
    """A record has no key, which mode=latest needs."""


def read_latest(
    request: ReadRequest, isolation: str, wanted: PartitionRange, names: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield the last record of each key in the range, with the columns `names`, in no particular
    order. A key whose last record is a tombstone is left out, unless the request keeps tombstones.
    Raises KeyMissing for a record without a key, and the errors of `read_batches`."""
    held = [name for name in dict.fromkeys(["key", *names]) if name not in _SAME_FOR_ALL]
    drop = request.tombstones == "drop"
    asked = list(dict.fromkeys([*held, "offset", *(["value"] if drop else [])]))
    with NewestRows(request.latest_memory_bytes) as newest:
        for batch in read_batches(request, isolation, wanted, asked):
            _check_keys(batch, wanted)
            kept = batch.select(held)
            if drop:
                kept = kept.append_column(_DELETED, batch.column("value").is_null())
            newest.add(kept)
        for batch in newest.finish():
            found = batch.filter(pc.invert(batch.column(_DELETED))) if drop else batch
            if found.num_rows:
                yield _completed(found, wanted, names)


def _check_keys(batch: pa.RecordBatch, wanted: PartitionRange) -> None:
    keys = batch.column("key")
    if keys.null_count:
        row = pc.index(keys.is_null(), True).as_py()
        raise KeyMissing(
            f"{wanted.topic_partition}@{batch.column('offset')[row].as_py()}: the record has no"
            " key, but mode=latest keeps the last record of each key: read with mode=append"
        )


def _completed(
    batch: pa.RecordBatch, wanted: PartitionRange, names: Sequence[str]
) -> pa.RecordBatch:
    """Return a batch with exactly the columns `names`. The columns topic and partition are filled
    from `wanted`. The other columns are taken from `batch`."""
    same: dict[str, Any] = {
        "topic": pa.scalar(wanted.topic, pa.string()),
        "partition": pa.scalar(wanted.partition, pa.int32()),
    }
    columns = [
        pa.repeat(same[name], batch.num_rows) if name in same else batch.column(name)
        for name in names
    ]
    return pa.RecordBatch.from_arrays(columns, names=list(names))
