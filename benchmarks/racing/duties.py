"""The cost of the periodic duties of one broker, for `benchmarks/growth.py --duties`.

The duties for logs run in this process, on real files. Each partition has one record; this process
leads it, and two simulated followers are at its log end. The costs of connections, of groups and of
the metrics page are measured at a broker in its own process.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import statistics
import struct
import time
import urllib.request
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.racing import processes
from integration_tests.broker import PybrokerProcess
from integration_tests.process import free_port
from integration_tests.wire_client import Connection
from pybroker.broker.lag_watch import FRESH_S
from pybroker.config.broker_config import BrokerConfig
from pybroker.coordinator.controller.partitions import Partition, PartitionStatus
from pybroker.coordinator.controller.rebalance import imbalanced
from pybroker.host.process import BackgroundThread
from pybroker.model import PartitionState, TopicPartition
from pybroker.replication.housekeeping import Housekeeping
from pybroker.replication.leader_state import SessionRequests
from pybroker.replication.scrubber import Scrubber
from pybroker.wire.messages.groups import FindCoordinatorRequest, FindCoordinatorResponse
from pybroker.wire.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from pybroker.wire.messages.topics import (
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from unit_tests.patience import wait_until
from unit_tests.replication.leading import Leading
from unit_tests.replication.vocabulary import ME

RUNS: Final = 15
LATER_MS: Final = 10**6
SCRAPES: Final = 5
LAG_PAGES: Final = 2
TOPIC_PARTITIONS: Final = 500
FOLLOWERS: Final = (2, 3)

Say = Callable[[str], None]
Figures = dict[str, float]

FLUSH, FLUSH_ONE = "flush check", "flush check, 1 log changed"
CHECKPOINT, CHECKPOINT_ONE = "checkpoints", "checkpoints, 1 log changed"
REMOVAL, RETENTION = "removal of deleted files", "retention"
ISR_REVIEW, SCRUBBER = "lag checks and ISR review", "scrubber's choice of logs"
CLEANER = "log cleaner's choice of a log"
BALANCE = "controller's balance check"
PER_RUN: Final = {
    FLUSH: 1.0,
    FLUSH_ONE: 1.0,
    CHECKPOINT: 5.0,
    CHECKPOINT_ONE: 5.0,
    REMOVAL: 5.0,
    ISR_REVIEW: 15.0,
    CLEANER: 15.0,
    SCRUBBER: 30.0,
    RETENTION: 300.0,
    BALANCE: 300.0,
}
"""The duties whose time is measured in ms for each run -> their default interval in seconds."""
PAGE, PAGE_GROUPS = "metrics page, partitions", "metrics page, groups"
PAGE_LAG = "metrics page with a new report of the groups' lag"
ON_REQUEST: Final = (PAGE, PAGE_GROUPS, PAGE_LAG)
"""The measures of CPU time in ms for each metrics page."""
IDLE: Final = ("idle partitions", "idle connections", "idle groups")
"""The measures of the additional CPU time that a broker with idle partitions, connections or groups
needs, in percent of one core."""


def table(folder: Path, zookeeper: str, sizes: Sequence[int], seconds: float, say: Say) -> str:
    """Measure all duties at each number of partitions, groups and connections in `sizes`. Return a
    table in reStructuredText. `seconds` is the duration of the measurement of an idle broker; `say`
    reports progress."""
    found: dict[int, Figures] = {}
    for size in sizes:
        place = folder / f"duties-{size}"
        found[size] = asyncio.run(_of_logs(place / "logs", size))
        found[size][BALANCE] = _controller_ms(size)
        found[size] |= _of_broker(place / "broker", f"{zookeeper}/duties-{size}", size, seconds)
        say(f"{size}: {found[size]}")
    lines = [["duty", "unit", *(f"{size:,}" for size in sizes), "every", "% of a core"]]
    for name, interval_s in PER_RUN.items():
        share = found[sizes[-1]][name] / interval_s / 10
        lines.append([*_cells(name, "ms a run", found), f"{interval_s:.0f} s", f"{share:.4f}"])
    for name in ON_REQUEST:
        lines.append([*_cells(name, "ms a page", found), "", ""])
    for name in IDLE:
        lines.append([*_cells(name, "% of a core", found), "", ""])
    return simple_table(lines)


def _cells(name: str, unit: str, found: Mapping[int, Figures]) -> list[str]:
    return [name, unit, *(f"{figures[name]:.3f}" for figures in found.values())]


def simple_table(lines: Sequence[Sequence[str]]) -> str:
    """Return `lines`, of which the first has the headings, as a table in reStructuredText."""
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    rule = ["=" * width for width in widths]
    return "\n".join(
        " ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in (rule, lines[0], rule, *lines[1:], rule)
    )


# Duties that run in this process


async def _of_logs(folder: Path, count: int) -> Figures:
    folder.mkdir(parents=True)
    keys = [TopicPartition("t", number) for number in range(count)]
    leading = Leading(folder)
    await leading.start()
    try:
        for start in range(0, count, TOPIC_PARTITIONS):
            await leading.lead(*keys[start : start + TOPIC_PARTITIONS])
        sessions = {broker: SessionRequests(leading.clock.monotonic()) for broker in FOLLOWERS}
        for number, key in enumerate(keys):
            if number % TOPIC_PARTITIONS == 0:  # the files of unsynced logs stay open
                leading.replicas.logs.flush_idle(leading.clock.wall_ms() + LATER_MS)
            leading.replicas.append(key=key)
            for broker, session in sessions.items():
                leading.fetch(broker, 1, key=key)
                leading.partition(key).session_repeats(broker, session)
        for session in [*sessions.values()] * 2:
            session.arrived(leading.clock.monotonic())
        await leading.changes.review_all()
        await leading.until_stored(ME, *FOLLOWERS, keys=keys)
        return await _log_figures(leading, keys[0])
    finally:
        await leading.stop()


def _duties_of(leading: Leading) -> tuple[Scrubber, Housekeeping]:
    logs, manager, clock = leading.replicas.logs, leading.replicas.manager, leading.clock
    blocking = manager._blocking
    scrubber = Scrubber(
        logs=logs,
        replicas=manager,
        blocking=blocking,
        clock=clock,
        bytes_per_second=1,
        interval_s=10**6,
        found=lambda key, damage: None,
    )
    housekeeping = Housekeeping(
        logs=logs,
        replicas=manager,
        blocking=blocking,
        new_cleaner_thread=BackgroundThread,
        clock=clock,
        config=BrokerConfig,
    )
    return scrubber, housekeeping


async def _log_figures(leading: Leading, changing: TopicPartition) -> Figures:
    logs, manager = leading.replicas.logs, leading.replicas.manager
    marks = manager.high_watermarks()
    now_ms = leading.clock.wall_ms()
    scrubber, housekeeping = _duties_of(leading)

    async def nothing() -> None:
        pass

    async def change() -> None:
        offset = leading.replicas.append(key=changing).last_offset
        for broker in FOLLOWERS:
            leading.fetch(broker, offset + 1, key=changing)

    async def flush() -> None:
        logs.flush_idle(now_ms)

    async def checkpoint() -> None:
        logs.write_checkpoints(marks)

    async def remove() -> None:
        logs.remove_deleted(now_ms)

    async def choose_to_clean() -> None:
        housekeeping.cleaner._choose()

    async def choose() -> None:
        for key in scrubber._due():
            scrubber._checked(key)

    logs.flush_idle(now_ms + LATER_MS)
    logs.flush_idle(now_ms)
    logs.write_checkpoints(marks)
    logs.remove_deleted(now_ms)
    return {
        FLUSH: await _run_ms(flush, nothing),
        FLUSH_ONE: await _run_ms(flush, change),
        CHECKPOINT: await _run_ms(checkpoint, nothing),
        CHECKPOINT_ONE: await _run_ms(checkpoint, change),
        REMOVAL: await _run_ms(remove, nothing),
        ISR_REVIEW: await _run_ms(leading.changes.review_all, nothing),
        SCRUBBER: await _run_ms(choose, nothing),
        CLEANER: await _run_ms(choose_to_clean, nothing),
        RETENTION: await _run_ms(housekeeping._retain, nothing),
    }


async def _run_ms(
    duty: Callable[[], Awaitable[None]], before: Callable[[], Awaitable[None]]
) -> float:
    """Return the median time in ms of one run of `duty`. Before each run `before` is called, whose
    time does not count. The first run does not count either."""
    took = []
    for _ in range(RUNS + 1):
        await before()
        begun = time.perf_counter()
        await duty()
        took.append(time.perf_counter() - begun)
    return statistics.median(took[1:]) * 1000


def _controller_ms(count: int) -> float:
    replicas = (1, 2, 3)
    partitions = [
        Partition(
            TopicPartition("t", number),
            replicas,
            PartitionStatus.ONLINE,
            PartitionState(1, 1, replicas, 1),
        )
        for number in range(count)
    ]
    took = []
    for _ in range(RUNS):
        begun = time.perf_counter()
        imbalanced(partitions, 10)
        took.append(time.perf_counter() - begun)
    return statistics.median(took) * 1000


# Duties that are measured at a broker process


def _of_broker(folder: Path, zookeeper: str, count: int, seconds: float) -> Figures:
    """Measure the idle costs and the metrics page at a broker, with `count` connections and groups,
    and then at a second broker with `count` partitions. `seconds` is the duration of each
    measurement."""
    with _broker(folder, zookeeper) as (broker, page):
        base = _idle_percent(broker, seconds)
        with _connections(broker, count):
            connections = _idle_percent(broker, seconds, settle=True)
        page_ms = _page_ms(broker, page)
        _commit(broker, count)
        figures = {
            "idle connections": connections - base,
            "idle groups": _idle_percent(broker, seconds, settle=True) - base,
            PAGE_GROUPS: _page_ms(broker, page) - page_ms,
            PAGE_LAG: _page_ms(broker, page, apart_s=FRESH_S + 1, pages=LAG_PAGES) - page_ms,
        }
    with _broker(folder / "2", f"{zookeeper}-2") as (broker, page):
        base, page_ms = _idle_percent(broker, seconds), _page_ms(broker, page)
        _create(broker, "many", count)
        figures["idle partitions"] = _idle_percent(broker, seconds, settle=True) - base
        figures[PAGE] = _page_ms(broker, page) - page_ms
    return figures


@contextlib.contextmanager
def _broker(folder: Path, zookeeper: str) -> Iterator[tuple[PybrokerProcess, str]]:
    """Start a broker with one topic, for the `with` block. Yield the broker, and the URL of its
    metrics page."""
    address = f"127.0.0.1:{free_port()}"
    overrides = {
        "pybroker.http.listener": address,
        "offsets.topic.replication.factor": "1",
        "offsets.topic.num.partitions": "5",
        "group.initial.rebalance.delay.ms": "0",
    }
    broker = PybrokerProcess(folder, zookeeper=zookeeper, overrides=overrides)
    with contextlib.closing(broker):
        broker.start()
        _create(broker, "one", 1)
        yield broker, f"http://{address}/metrics"


def _idle_percent(broker: PybrokerProcess, seconds: float, *, settle: bool = False) -> float:
    time.sleep(3 * seconds if settle else seconds)
    before = processes.cpu_seconds(broker.process.pid)
    time.sleep(seconds)
    return (processes.cpu_seconds(broker.process.pid) - before) / seconds * 100


def _page_ms(
    broker: PybrokerProcess, page: str, *, apart_s: float = 0.0, pages: int = SCRAPES
) -> float:
    """Return the median CPU time in ms that the broker needs for a metrics page, of `pages` pages
    with `apart_s` seconds between them. The first page does not count."""
    took = []
    for _ in range(pages + 1):
        time.sleep(apart_s)
        before = processes.cpu_seconds(broker.process.pid)
        with urllib.request.urlopen(page, timeout=60) as answer:
            answer.read()
        took.append(processes.cpu_seconds(broker.process.pid) - before)
    return statistics.median(took[1:]) * 1000


def _create(broker: PybrokerProcess, name: str, partitions: int) -> None:
    def request(number: int, count: int) -> CreateTopicsRequest:
        topic = CreatableTopic(name=f"{name}-{number}", num_partitions=count, replication_factor=1)
        return CreateTopicsRequest(topics=[topic], timeout_ms=60_000)

    with Connection(broker.bootstrap) as connection:
        connection.set_timeout(120.0)
        for start in range(0, partitions, TOPIC_PARTITIONS):
            wanted = request(start, min(TOPIC_PARTITIONS, partitions - start))
            wait_until(partial(_is_created, connection, wanted), what=f"{name} is created")


def _is_created(connection: Connection, request: CreateTopicsRequest) -> bool:
    answer = connection.ask(4, request, CreateTopicsResponse)
    return answer.topics[0].error_code in (0, 36)  # 36: TOPIC_ALREADY_EXISTS


@contextlib.contextmanager
def _connections(broker: PybrokerProcess, count: int) -> Iterator[None]:
    """Hold `count` connections open during the `with` block. Each has sent one request."""
    hello = struct.pack(">ihhih", 10, 18, 0, 1, -1)  # ApiVersions, without a client id
    with contextlib.ExitStack() as stack:
        for _ in range(count):
            opened = stack.enter_context(socket.create_connection(("127.0.0.1", broker.port)))
            opened.sendall(hello)
            assert opened.recv(65536)
        yield


def _commit(broker: PybrokerProcess, groups: int) -> None:
    """Commit an offset for each of `groups` groups, which have no members."""
    part = OffsetCommitRequestPartition(partition_index=0, committed_offset=0)
    topic = OffsetCommitRequestTopic(name="one-0", partitions=[part])

    def is_stored(connection: Connection, group: str) -> bool:
        request = OffsetCommitRequest(group_id=group, topics=[topic])
        answer = connection.ask(2, request, OffsetCommitResponse)
        return answer.topics[0].partitions[0].error_code == 0

    def is_found(connection: Connection) -> bool:
        request = FindCoordinatorRequest(key="group-0")
        return connection.ask(0, request, FindCoordinatorResponse).error_code == 0

    with Connection(broker.bootstrap) as connection:
        wait_until(partial(is_found, connection), what="the broker coordinates groups")
        for number in range(groups):
            name = f"group-{number}"
            wait_until(partial(is_stored, connection, name), what=f"{name} has an offset")
