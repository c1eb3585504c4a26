"""Reads exact ranges of partitions from blocking code, such as a Spark task: without a group, and
with fetching and decoding in parallel.

A thread of its own holds the connections and fetches ahead, as far as the buffer allows. The bytes
are returned as they came, in whole batches with correct checksums.
"""

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
"""Fetched bytes that wait for the reading thread; one answer may exceed it."""


class RangeReader:
    """Reads one range after the other.

    `options` are those of a consumer under Kafka's names, with or without `kafka.` before them and
    in any case (kafka.bootstrap.servers, ...), and kafkaConsumer.pollTimeoutMs, how long to wait
    without any progress (120,000).

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
        """Parse the options. Raises ConfigError with every fault."""
        self._options, limits = parse_range_options(options, isolation_level=isolation)
        self._patience = patience or limits
        self._fail_on_data_loss = fail_on_data_loss
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._cluster: Cluster | None = None
        self.lost: list[Gap] = []
        """The offsets that were left out of the last range because they no longer exist, as first
        offset and the one after the last. Complete once its batches have ended; empty with
        `fail_on_data_loss`."""
        self.compacted: list[Difference] = []
        """The stretches of the last range that differ from their count, complete and empty as
        `lost`. Nothing is compared if offsets are lost."""
        self.first_offset = 0
        """Records before this offset in the last batch must not be used: they lie before the range,
        or belong to lost offsets."""

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
        """End the thread and its connections. A thread that waits for batches gets Closed.
        Idempotent."""
        loop, thread = self._loop, self._thread
        if loop is None or thread is None or loop.is_closed():
            return
        asyncio.run_coroutine_threadsafe(self._close(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()

    def batches(self, wanted: PartitionRange) -> Generator[Batch, None, None]:
        """Yield the data batches of the range in order, each as header and bytes. Markers, and with
        read_committed aborted batches, are left out. Of a batch only the records from
        `first_offset` up to, not including, the range's end are part of the range. If records were
        counted, each stretch is compared with its count once it has been read. Raises RangeFailed,
        NoBrokers and other ClientErrors."""
        loop = self._loop
        if loop is None or loop.is_closed():
            raise Closed("the range reader has been closed, or was not entered")
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
    """Batches on their way from the fetching thread to the reading one."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._answers: deque[tuple[int, list[Batch]]] = deque()
        self._bytes = 0
        self._changed = threading.Condition()
        self._has_ended = False
        self._problem: BaseException | None = None
        self._room = asyncio.Event()

    async def put(self, first_offset: int, batches: list[Batch]) -> None:
        """Add batches; returns once there is room for more."""
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
        """Return the next batches, for the reading thread; None at the end. Raises the error that
        ended the reading, after the batches before it."""
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
    """Return the same offsets in order, each once."""
    found: list[Gap] = []
    for first, beyond in sorted(gaps):
        if found and first <= found[-1][1]:
            found[-1] = (found[-1][0], max(beyond, found[-1][1]))
        else:
            found.append((first, beyond))
    return found


def _size(batches: list[Batch]) -> int:
    return sum(header.size for header, _ in batches)
