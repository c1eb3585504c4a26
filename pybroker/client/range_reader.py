"""A reader of exact offset ranges for blocking code, such as a Spark task, without a consumer
group. The reader returns whole batches with verified checksums."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Generator, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Final, Self

from pybroker.background import cancel_and_wait
from pybroker.client import defaults
from pybroker.client.cluster import Cluster
from pybroker.client.errors import ClientError, Closed
from pybroker.client.ranges.counts import Difference
from pybroker.client.ranges.cursor import Batch, Gap
from pybroker.client.ranges.fetcher import Patience, RangeFetcher
from pybroker.client.ranges.model import PartitionRange, RangeFailed, RangeFault
from pybroker.client.ranges.options import parse_range_options

__all__ = ["PartitionRange", "Patience", "RangeFailed", "RangeFault", "RangeReader"]

BUFFER_BYTES_MAX: Final = 16 * 1024 * 1024
"""The maximum number of fetched bytes that wait for the thread that reads the batches. A single
response may exceed it."""


class RangeReader:
    """A reader of offset ranges, one after the other.

    `options` are consumer options with Kafka's names, in upper or lower case, with or without the
    prefix `kafka.`. One more option is kafkaConsumer.pollTimeoutMs, the maximum time without
    progress (default 120,000).

        with RangeReader({"bootstrap.servers": "localhost:9092"}) as reader:
            for header, batch in reader.batches(PartitionRange("orders", 0, 100, 250)):
                ...
    """

    def __init__(
        self,
        options: Mapping[str, str],
        *,
        isolation: str = "read_committed",
        fail_on_data_loss: bool = True,
        patience: Patience | None = None,
    ) -> None:
        """Parse the options. Raises ConfigError with all invalid options."""
        self._options, limits = parse_range_options(options, isolation_level=isolation)
        self._patience = patience or limits
        self._fail_on_data_loss = fail_on_data_loss
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._cluster: Cluster | None = None
        self.lost: list[Gap] = []
        """The lost offsets of the last range: those that no longer exist in the log, as pairs of
        first offset and end offset (exclusive). Complete after the last batch. With
        `fail_on_data_loss` always empty, because missing offsets raise RangeFailed."""
        self.compacted: list[Difference] = []
        """The parts of the last range whose records differ from those counted when the range was
        created. Complete after the last batch. With `fail_on_data_loss` always empty, because a
        difference raises RangeFailed."""
        self.first_offset = 0
        """The offset in the last batch from which its records belong to the range. The caller must
        skip the records below it."""

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="pybroker ranges", daemon=True
        )
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop the thread that fetches, and close its connections. A thread that waits in `batches`
        gets Closed. Idempotent."""
        loop, thread = self._loop, self._thread
        if loop is None or thread is None or loop.is_closed():
            return
        asyncio.run_coroutine_threadsafe(self._close(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()

    def batches(self, wanted: PartitionRange) -> Generator[Batch, None, None]:
        """Yield the header and the bytes of each data batch of the range, in order. With
        read_committed, aborted batches are left out. Raises RangeFailed, NoBrokers and other
        ClientErrors.

        The caller must skip the records at or above the end of the range, and those below the
        reader's attribute `first_offset`, which may change with each batch.
        """
        loop = self._loop
        if loop is None or loop.is_closed():
            raise Closed("the range reader is not open: use it in a with block")
        self.lost = []
        self.compacted = []
        self.first_offset = wanted.start
        waiting = Waiting(loop)
        reading = asyncio.run_coroutine_threadsafe(self._read(wanted, waiting), loop)
        try:
            while (given := waiting.get()) is not None:
                self.first_offset, batches = given
                yield from batches
        finally:
            with suppress(RuntimeError):  # the loop is closed, and the reading has ended with it
                reading.cancel()

    async def _read(self, wanted: PartitionRange, waiting: Waiting) -> None:
        try:
            fetcher = RangeFetcher(
                await self._started(wanted.topic),
                self._options,
                wanted,
                fail_on_data_loss=self._fail_on_data_loss,
                patience=self._patience,
            )
            await fetcher.read(waiting.put)
            self.lost = merged(fetcher.lost)
            self.compacted = fetcher.compacted
            waiting.end(None)
        except asyncio.CancelledError:
            waiting.end(Closed("the range reader has been closed"))
            raise
        except BaseException as error:
            waiting.end(error)
            if not isinstance(error, ClientError):
                raise

    async def _started(self, topic: str) -> Cluster:
        if self._cluster is None:
            cluster = Cluster(self._options, clock=defaults.make_clock(), rng=defaults.make_rng())
            cluster.watch([topic])
            try:
                await cluster.start()
            except BaseException:
                await cluster.close()
                raise
            self._cluster = cluster
        return self._cluster

    async def _close(self) -> None:
        readings = asyncio.all_tasks() - {asyncio.current_task()}
        if self._cluster is not None:
            await self._cluster.close()
        await cancel_and_wait(*readings)


class Waiting:
    """The buffer of batches between the thread that fetches them and the thread that calls
    `RangeReader.batches`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._answers: deque[tuple[int, list[Batch]]] = deque()
        self._bytes = 0
        self._changed = threading.Condition()
        self._has_ended = False
        self._problem: BaseException | None = None
        self._room = asyncio.Event()

    async def put(self, first_offset: int, batches: list[Batch]) -> None:
        """Add batches. Their records below `first_offset` do not belong to the range. Then wait
        until the buffer has less than BUFFER_BYTES_MAX bytes."""
        with self._changed:
            self._answers.append((first_offset, batches))
            self._bytes += _size(batches)
            self._changed.notify()
        while True:
            self._room.clear()
            with self._changed:
                if self._bytes < BUFFER_BYTES_MAX:
                    return
            await self._room.wait()

    def end(self, problem: BaseException | None) -> None:
        with self._changed:
            self._has_ended, self._problem = True, problem
            self._changed.notify()

    def get(self) -> tuple[int, list[Batch]] | None:
        """Wait for the next call of `put`, and return its arguments; None at the end of the range.
        If fetching ended with an error, raise the error after the last batches."""
        with self._changed:
            while not self._answers and not self._has_ended:
                self._changed.wait()
            if not self._answers:
                if self._problem is not None:
                    raise self._problem
                return None
            given = self._answers.popleft()
            self._bytes -= _size(given[1])
        with suppress(RuntimeError):  # the loop is closed: no task waits for room any more
            self._loop.call_soon_threadsafe(self._room.set)
        return given


def merged(gaps: list[Gap]) -> list[Gap]:
    """Return the offset ranges sorted, with overlapping ranges merged."""
    found: list[Gap] = []
    for first, beyond in sorted(gaps):
        if found and first <= found[-1][1]:
            found[-1] = (found[-1][0], max(beyond, found[-1][1]))
        else:
            found.append((first, beyond))
    return found


def _size(batches: list[Batch]) -> int:
    return sum(header.size for header, _ in batches)
