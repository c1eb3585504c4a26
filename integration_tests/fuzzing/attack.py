"""Attackers against one broker, a well-behaved client beside them, and the checks afterwards.
`attack` returns its observations, which the caller checks.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psutil

from integration_tests.broker import Broker
from integration_tests.fuzzing.frames import Move, Moves
from integration_tests.sample_requests import NAME, TRANSACTIONAL_IDS
from integration_tests.stored import batches_of
from integration_tests.transaction_requests import started
from integration_tests.wire_client import (
    Connection,
    ConnectionClosed,
    batch_of,
    create_topic,
    fetch_one,
    produce,
)
from pybroker.coordinator.transactions.records import decode_key, decode_value
from pybroker.coordinator.transactions.states import TransactionState
from pybroker.records.batch import iter_headers
from pybroker.records.record import Record, decode_records
from unit_tests.patience import wait_until

ATTACKERS: Final = 4
SILENCE_S: Final = 0.02
"""The time in seconds without an answer after which an attacker abandons a connection and opens a
new connection.
"""
PROBE_TOPIC: Final = "probe"
OVERRIDES: Final = {"auto.create.topics.enable": "false"}
_DECOMPRESSED_BYTES_MAX: Final = 1 << 20


class Probe:
    """A well-behaved client that produces and reads during the attack. It also measures the
    broker's maximum memory.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.rounds = 0
        self.computed_s: list[float] = []
        """The broker's processor time in seconds during each round of the client, for all its
        clients.
        """
        self.rss_bytes_max = 0
        self.error: BaseException | None = None

    def _run(self) -> None:
        try:
            with Connection(self._broker.bootstrap) as connection:
                while not self._end.wait(0.02):
                    begin = _processor_s(self._broker)
                    self._round(connection)
                    self.computed_s.append(_processor_s(self._broker) - begin)
                    self.rss_bytes_max = max(self.rss_bytes_max, self._broker.process.rss_bytes())
        except BaseException as error:  # reported to the test's thread, which can fail the test
            self.error = error

    def _round(self, connection: Connection) -> None:
        value = _value(self.rounds)
        result = produce(connection, PROBE_TOPIC, batch_of(value))
        assert (result.error_code, result.base_offset) == (0, self.rounds)
        found = fetch_one(connection, PROBE_TOPIC, self.rounds)
        assert found.records is not None and value in bytes(found.records)
        self.rounds += 1

    def __enter__(self) -> Probe:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()


@dataclass
class Outcome:
    """The result of an attack."""

    seed: str
    frames: int = 0
    answers: int = 0
    seconds: float = 0.0
    begun: int = 0
    """The number of transactions that the frames have begun."""
    probe_rounds: int = 0
    probe_computed_s: list[float] = field(default_factory=list)
    rss_bytes_max: int = 0
    faults: list[str] = field(default_factory=list)
    """The violations as text; empty if there are none."""

    def computed_s(self, share: float) -> float:
        """Return the quantile `share` of the broker's processor time per round of the probe."""
        return sorted(self.probe_computed_s)[int(share * (len(self.probe_computed_s) - 1))]

    def __str__(self) -> str:
        return (
            f"seed={self.seed} frames={self.frames} frames/s={self.frames / self.seconds:.0f}"
            f" answers={self.answers} seconds={self.seconds:.0f} begun={self.begun}"
            f" probe_rounds={self.probe_rounds} probe_p50_cpu_ms={self.computed_s(0.5) * 1000:.1f}"
            f" probe_p99_cpu_ms={self.computed_s(0.99) * 1000:.1f}"
            f" probe_max_cpu_ms={self.computed_s(1) * 1000:.0f}"
            f" rss_max_mib={self.rss_bytes_max >> 20}"
        )


def attack(
    broker: Broker, *, seed: str, frames: int, rss_bytes_max: int, probe_computed_s_max: float
) -> Outcome:
    """Send `frames` frames, and check the broker afterwards. Return the outcome."""
    with Connection(broker.bootstrap) as connection:
        create_topic(connection, NAME, partitions=4)
        create_topic(connection, PROBE_TOPIC)
        for transactional_id in TRANSACTIONAL_IDS:
            started(connection, transactional_id)
    open_before = _connections(broker)
    outcome = Outcome(seed)
    begin = time.monotonic()
    with Probe(broker) as probe, ThreadPoolExecutor(ATTACKERS) as attackers:
        shares = [
            attackers.submit(_attacker, broker, Moves(f"{seed}-{share}"), frames // ATTACKERS)
            for share in range(ATTACKERS)
        ]
        for share in shares:
            sent, answered = share.result()
            outcome.frames += sent
            outcome.answers += answered
    outcome.seconds = time.monotonic() - begin
    outcome.begun = _begun(broker.data)
    outcome.probe_rounds, outcome.probe_computed_s = probe.rounds, probe.computed_s or [0.0]
    outcome.rss_bytes_max = probe.rss_bytes_max
    outcome.faults = list(
        _faults(broker, probe, outcome, open_before, rss_bytes_max, probe_computed_s_max)
    )
    return outcome


def _attacker(broker: Broker, moves: Moves, frames: int) -> tuple[int, int]:
    """Send one attacker's share of the frames. The broker gets time to handle each move. A
    connection is used until the broker closes it or stops answering. Return the numbers of sent
    frames and received answers.
    """
    sent = answers = 0
    stream = iter(moves)
    move: Move | None = None
    while sent < frames:
        with contextlib.suppress(OSError, ConnectionClosed), Connection(broker.bootstrap) as peer:
            peer.set_timeout(SILENCE_S)
            while sent < frames:
                move = next(stream)
                sent += move.frames
                for piece in move.pieces:
                    peer.send_bytes(piece)
                if move.close:
                    break
                if move.half_close:
                    peer.end_sending()
                for _ in range(move.frames):
                    peer.receive_frame()
                    answers += 1
    return sent, answers


def _faults(
    broker: Broker,
    probe: Probe,
    outcome: Outcome,
    open_before: int,
    rss_bytes_max: int,
    probe_computed_s_max: float,
) -> Iterator[str]:
    if not broker.process.running:
        yield "the broker has ended"
        return
    if probe.error is not None:
        yield f"the well-behaved client was not served: {probe.error!r}"
        return
    slowest = outcome.computed_s(1)
    if slowest > probe_computed_s_max:
        yield f"the well-behaved client waited while the broker computed for {slowest:.1f} s"
    if outcome.answers < outcome.frames // 50:
        yield f"only {outcome.answers} frames were answered"
    if outcome.rss_bytes_max > rss_bytes_max:
        yield f"the broker used {outcome.rss_bytes_max >> 20} MiB of memory"
    for line in sorted(unhandled(broker)):
        yield f"the broker logged an unexpected exception: {line}"
    try:
        wait_until(lambda: _connections(broker) <= open_before, what="connections closed")
    except AssertionError:
        yield f"{_connections(broker) - open_before} connections are still open"
    yield from _damage(broker.data)
    yield from _lost(broker, probe.rounds)


def _begun(data: Path) -> int:
    """Return how many transactions have begun, according to the stored states."""
    count = 0
    for folder in _logs_below(data):
        if folder.name.startswith("__transaction_state-"):
            for record in _records_in(folder):
                name = decode_key(record.key or b"")
                if name is not None and record.value is not None:
                    found = decode_value(name, record.value)
                    count += found.state is TransactionState.ONGOING
    return count


def _records_in(folder: Path) -> Iterator[Record]:
    for path in sorted(folder.glob("*.log")):
        content = path.read_bytes()
        for position, header in iter_headers(content):
            batch = content[position : position + header.size]
            yield from decode_records(batch, decompressed_bytes_max=_DECOMPRESSED_BYTES_MAX)


def _processor_s(broker: Broker) -> float:
    times = psutil.Process(broker.process.pid).cpu_times()
    return float(times.user + times.system)


def unhandled(broker: Broker) -> set[str]:
    return unhandled_in(broker.log_text)


def unhandled_in(log_text: str) -> set[str]:
    """Return the last lines of the stack traces that a broker logged: an input may be refused, but
    must not cause an unexpected exception.
    """
    traces = log_text.split("Traceback (most recent call last):\n")[1:]
    ends = (
        next((line for line in trace.splitlines() if not line.startswith(" ")), "")
        for trace in traces
    )
    return set(ends)


def _connections(broker: Broker) -> int:
    """Return the number of client connections at the broker."""
    found = psutil.Process(broker.process.pid).net_connections("tcp")
    return sum(
        1 for one in found if one.laddr.port == broker.port and one.status != psutil.CONN_LISTEN
    )


def _damage(data: Path) -> Iterator[str]:
    """Yield violations in the logs: incomplete batches, wrong checksums, gaps. The frames may have
    deleted a topic, so logs may vanish meanwhile.
    """
    for folder in _logs_below(data):
        try:
            for _ in batches_of(sorted(folder.glob("*.log"))):
                pass
        except FileNotFoundError:
            continue
        except AssertionError as error:
            if folder.exists():
                yield str(error)


def _logs_below(data: Path) -> list[Path]:
    """Return the folder of every log."""
    return [
        Path(folder)
        for folder, _, names in os.walk(data)  # which skips files that have vanished
        if Path(folder).name.rpartition("-")[2].isdigit()
        and any(Path(name).stem.isdigit() for name in names)
    ]


def _lost(broker: Broker, rounds: int) -> Iterator[str]:
    """Yield a violation unless the log has exactly the records of the probe."""
    found: list[bytes | None] = []
    with Connection(broker.bootstrap) as connection:
        while len(found) < rounds:
            records = fetch_one(connection, PROBE_TOPIC, len(found)).records
            if not records:
                break
            data = bytes(records)
            for position, header in iter_headers(data):
                batch = data[position : position + header.size]
                read = decode_records(batch, decompressed_bytes_max=_DECOMPRESSED_BYTES_MAX)
                found += [record.value for record in read]
        if found != [_value(number) for number in range(rounds)]:
            yield f"of {rounds} records of the probe {len(found)} were read, or others"
        result = produce(connection, PROBE_TOPIC, batch_of(b"after"))
        if (result.error_code, result.base_offset) != (0, rounds):
            yield f"the broker does not accept records any more: {result}"


def _value(number: int) -> bytes:
    return b"round %d" % number
