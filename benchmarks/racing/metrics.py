"""The metrics of the race with their units and goals: the rows of the report's table.

A metric's key is "measure/metric". A goal is a bound for pybroker's figure divided by the figure of
another contestant.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

SIZES: Final = (100, 1024)
CODECS: Final = ("none", "lz4")
ACKS: Final = ("1", "all")


@dataclass(frozen=True)
class Goal:
    """A lower bound (`at_least`) or an upper bound for a ratio of two figures."""

    ratio: float
    at_least: bool

    def met(self, ratio: float) -> bool:
        return ratio >= self.ratio if self.at_least else ratio <= self.ratio

    def __str__(self) -> str:
        return f"{'≥' if self.at_least else '≤'} {self.ratio:g}"


FASTER: Final = Goal(1.2, at_least=True)
PER_CPU_SECOND: Final = Goal(1.5, at_least=True)
SMALLER: Final = Goal(0.4, at_least=False)
BARE_PER_GB: Final = Goal(1.3, at_least=False)
BARE_PER_REQUEST: Final = Goal(0.5, at_least=True)


@dataclass(frozen=True)
class Metric:
    """A row of the table. `goal` is the goal for the ratio to Apache Kafka. `bare_goal` is the goal
    for the ratio to a minimal broker that only serves the loads, if the race has such a
    contestant."""

    key: str
    title: str
    unit: str
    goal: Goal | None = None
    bare_goal: Goal | None = None

    @property
    def measure(self) -> str:
        return self.key.split("/")[0]

    @property
    def larger_is_better(self) -> bool:
        """True for a rate or an amount of work, False for a time, memory or processor time."""
        return self.key.endswith(("/rate", "/per-cpu"))


def produce_name(size: int, codec: str, acks: str) -> str:
    return f"produce-{size}-{codec}-{acks}"


def program_name(verb: str, size: int, codec: str, acks: str) -> str:
    """Return the measure of `rdkafka_performance` whose producer ("produce") or consumer
    ("consume") it runs."""
    return "-".join(["program", verb, str(size), codec, *([acks] if verb == "produce" else [])])


def size_text(size: int) -> str:
    return "1 KiB" if size == 1024 else f"{size} B"


def _throughput(measure: str, title: str) -> Iterator[Metric]:
    yield Metric(f"{measure}/rate", title, "MB/s", FASTER)
    yield Metric(f"{measure}/cpu", f"{title}: CPU", "s/GB", None, BARE_PER_GB)


def _requests(measure: str, title: str) -> Iterator[Metric]:
    yield Metric(f"{measure}/rate", title, "requests/s", FASTER)
    yield Metric(
        f"{measure}/per-cpu",
        f"{title}: per CPU second",
        "requests",
        PER_CPU_SECOND,
        BARE_PER_REQUEST,
    )


def _latency(measure: str, title: str) -> Iterator[Metric]:
    for key, text in (("p50", "p50"), ("p99", "p99"), ("p999", "p99.9")):
        yield Metric(f"{measure}/{key}", f"{title}: {text}", "ms", SMALLER)


def _by_program() -> Iterator[Metric]:
    for size in SIZES:
        for codec in CODECS:
            title = f"{{}} {size_text(size)}, {codec}"
            for acks in ACKS:
                made = f"rdkafka_performance: {title.format('produce')}, acks={acks}"
                yield from _throughput(program_name("produce", size, codec, acks), made)
            read = f"rdkafka_performance: {title.format('consume')}"
            yield from _throughput(program_name("consume", size, codec, ""), read)


def _all() -> Iterator[Metric]:
    for size in SIZES:
        for codec in CODECS:
            for acks in ACKS:
                title = f"produce {size_text(size)}, {codec}, acks={acks}"
                yield from _throughput(produce_name(size, codec, acks), title)
    for size in SIZES:
        for place, text in (("hot", "from memory"), ("cold", "from disk")):
            yield from _throughput(f"consume-{place}-{size}", f"consume {size_text(size)} {text}")
    yield from _by_program()
    yield from _requests("unbatched-1", "unbatched, 8 connections, 1 under way")
    yield from _requests("unbatched-4", "unbatched, 8 connections, 4 under way")
    yield from _requests("batched-4", "100 records a request, 8 connections, 4 under way")
    yield from _latency("latency-raw", "end to end at 1,000/s, sockets, acks=all")
    yield from _latency("latency-client", "end to end at 1,000/s, librdkafka, acks=1")
    yield Metric("memory/loaded", "memory after the loads", "MiB", SMALLER)
    yield Metric("memory/loaded-pss", "memory after the loads (PSS)", "MiB", SMALLER)
    crowd = "idle connections"
    yield Metric("connections/connect", f"{crowd}: connecting them all", "s")
    yield Metric("connections/kib", f"{crowd}: memory of each", "KiB")
    yield from _latency("connections", f"{crowd}: Produce beside them")
    yield Metric("start/first", "first start, empty folder", "s", SMALLER)
    yield Metric("start/clean", "start after a clean stop", "s", SMALLER)
    yield Metric("start/killed", "start after kill -9", "s", SMALLER)
    yield Metric("start/idle", "memory when idle", "MiB", SMALLER)
    yield Metric("start/idle-pss", "memory when idle (PSS)", "MiB", SMALLER)
    yield Metric("start/idle-cpu", "CPU when idle, a minute", "s", SMALLER)
    many = "many partitions"
    yield Metric("partitions/create", f"{many}: creating them", "s")
    yield Metric("partitions/metadata", f"{many}: Metadata of all, p50", "ms", SMALLER)
    yield Metric("partitions/memory", f"{many}: memory", "MiB", SMALLER)
    yield Metric("partitions/stop", f"{many}: clean stop", "s")
    yield Metric("partitions/clean", f"{many}: start after a clean stop", "s", SMALLER)
    yield Metric("partitions/killed", f"{many}: start after kill -9", "s", SMALLER)


METRICS: Final = {metric.key: metric for metric in _all()}
