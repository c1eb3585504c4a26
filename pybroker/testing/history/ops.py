"""The log of operations: JSON lines, one file for each process. Each line is flushed at once, so
that the file of a killed process is complete.

Every line has `t` (ns of the monotonic clock, which all processes of a machine share), `w` (wall
clock, ms), `p` (the client's name), `i` (how often the client has started), `f` (the operation),
and `type` (the operation's phase or outcome):

    invoke   the operation begins
    ok       the operation succeeded
    fail     the operation certainly had no effect
    info     the outcome is unknown: the operation may have succeeded, or may succeed later

    f          type            further keys
    producer   info            acks, idempotent, keeps_order, starts_anew (see ProducerFacts)
    send       invoke          tp, v
    send       ok              v, off (-1: the client does not know it)
    send       fail, info      v, err
    assign     ok              tp, off            a consumer starts to read at `off`
    poll       ok              tp, recs [[offset, value, leader epoch]...], hw (-1: unknown)
    poll       fail, info      err, and perhaps tp, off. Here `fail` means that the consumer lost
                               its position
    latest     ok              tp, off, asked (ns): when ListOffsets was sent
    latest     info            tp, err
    final      ok              tp, source, start, recs     all records, read at the end
    files      ok              tp, broker, start, hw, producers [text...],
                               epochs [[epoch, offset]...],
                               batches [[first, last, epoch, digest, producer]...]
    state      ok              tp, leader, epoch, isr, eligible, version, controller_epoch, and
                               perhaps written (ns): the time of the write to ZooKeeper. `t` is
                               the time of the read from ZooKeeper
    controller ok              epoch, broker
    fault      invoke, ok      what, target
    topic      ok              name, min_isr, replicas {partition: [broker...]}
                                                   the topic was created
    topic      info            name, replicas      partitions were added to the topic
    topic      invoke          name                the deletion of the topic was requested
    loss       ok              tp, reason          the cluster recorded a loss of records
    calm       ok              limit               the faults are over; the cluster must be
                                                       healthy after `limit` ns
    group      info            group, topics, partition (of the offsets' topic)
    holds      ok              group, member, generation, tps    the member's partitions
    processed  ok              group, tp, offs [offset...]
    commit     invoke          group, generation, tp, off
    commit     ok, fail, info  group, tp, off, err (not with ok), and perhaps generation: the
                               commit may have been sent in this generation, which is later than
                               that of `invoke`
    committed  ok              group, tp, off (-1: nothing), asked (ns): when OffsetFetch was sent
    committed  info            group, tp, err
    coordinator ok             partition, broker    the broker starts to coordinate the groups of
                                                    the partition of __consumer_offsets

`tp` is a partition, `v` the value of a record, `off` an offset, `err` an error. `eligible` has the
eligible replicas outside the ISR (KIP-966). The leader epoch is -1 if the client library does not
return it.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, TextIO

Op = dict[str, Any]
SUFFIX: Final = ".ops.jsonl"


class OpsLog:
    """The operation log of one process. All methods are thread-safe."""

    def __init__(self, folder: Path, process: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"{process}{SUFFIX}"
        self._file: TextIO = self.path.open("a", buffering=1, encoding="utf-8")
        self._lock = threading.Lock()

    def write(
        self, client: str, function: str, kind: str, *, incarnation: int = 1, **more: Any
    ) -> None:
        """Write one operation with the present time. `client` and `incarnation` become `p` and `i`
        of the line, `function` and `kind` become `f` and `type`; `more` has the further keys."""
        with self._lock:
            if self._file.closed:
                return
            op = {
                "t": time.monotonic_ns(),
                "w": time.time_ns() // 1_000_000,
                "p": client,
                "i": incarnation,
                "f": function,
                "type": kind,
                **more,
            }
            self._file.write(json.dumps(op, separators=(",", ":")) + "\n")

    def close(self) -> None:
        """Close the file. Idempotent; later operations are dropped."""
        with self._lock:
            self._file.close()


def read_ops(path: Path) -> Iterator[Op]:
    """Yield the operations in a file of an `OpsLog`. An incomplete last line is skipped. Raises
    ValueError for any other line that is not JSON."""
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            try:
                op = json.loads(line)
            except ValueError:
                if not line.endswith("\n"):
                    return
                raise ValueError(
                    f"{path}:{number}: expected a JSON object, found {line[:80]!r}"
                ) from None
            yield op
