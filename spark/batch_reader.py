"""Reads one offset range of a partition as Arrow batches. The batch size suits Spark."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

import pyarrow as pa

from pybroker.client.arrow import record_batch
from pybroker.client.errors import ClientError
from pybroker.client.range_reader import RangeReader
from pybroker.client.ranges.model import PartitionRange, RangeFailed, RangeFault
from pybroker.errors import BrokerError, CorruptionError
from pybroker.records.columns import ColumnBuilder
from pybroker.spark.failures import ReadFailed
from pybroker.spark.options import ReadRequest
from pybroker.spark.rows import BATCH_BYTES, BATCH_ROWS

log = logging.getLogger(__name__)

DECOMPRESSED_BYTES_MAX = 256 * 2**20
"""The largest decompressed size of a stored batch, in bytes; the consumer's limit is the same."""


def read_batches(
    request: ReadRequest, isolation: str, wanted: PartitionRange, names: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield the records of a range in offset order, with the columns `names`.

    Raises RangeFailed if records of the range cannot be read or have changed, and ReadFailed if the
    cluster does not answer. Both messages name topic-partition@offset.
    """
    builder = ColumnBuilder(
        headers="headers" in names, keys="key" in names, values="value" in names
    )
    for _ in _added(request, isolation, wanted, builder):
        if builder.rows >= BATCH_ROWS or builder.size >= BATCH_BYTES:
            yield record_batch(wanted.topic, wanted.partition, builder.finish(), names)
    if builder.rows:
        yield record_batch(wanted.topic, wanted.partition, builder.finish(), names)


def _added(
    request: ReadRequest, isolation: str, wanted: PartitionRange, builder: ColumnBuilder
) -> Iterator[None]:
    """Add the stored batches of the range to the builder. Yield after each batch, so that the
    caller can take the rows out of a full builder."""
    options = {
        **request.client,
        "kafkaConsumer.pollTimeoutMs": str(request.poll_timeout_ms),
    }
    where = wanted.topic_partition
    position = wanted.start
    with RangeReader(
        options, isolation=isolation, fail_on_data_loss=request.fail_on_data_loss
    ) as reader:
        try:
            for header, batch in reader.batches(wanted):
                builder.add(
                    batch,
                    header,
                    reader.first_offset,
                    wanted.end,
                    decompressed_bytes_max=DECOMPRESSED_BYTES_MAX,
                )
                position = header.next_offset
                yield
        except RangeFailed:
            raise
        except (CorruptionError, BrokerError) as error:
            text = (
                f"the batch cannot be decoded: {error}; read the offsets before and after the batch"
            )
            raise RangeFailed(where, position, RangeFault.CORRUPT, text) from None
        except ClientError as error:
            raise ReadFailed(f"{where}@{position}: {error}") from None
        for first, end in reader.lost:
            log.warning(
                "records lost topic_partition=%s first_offset=%d end_offset=%d",
                where, first, end,
            )  # fmt: skip
        for counted, records in reader.compacted:
            log.warning(
                "records compacted topic_partition=%s first_offset=%d end_offset=%d"
                " counted=%d found=%d",
                where, counted.first, counted.beyond, counted.records, records,
            )  # fmt: skip
