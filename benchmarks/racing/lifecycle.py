"""The measures of starting and stopping a broker. Each of them starts its own brokers in empty
folders."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence

from benchmarks.racing import loads, processes
from benchmarks.racing.contestants import Contestant, ContestantFactory
from benchmarks.racing.measures import Figures, Scale
from benchmarks.requests import ask, produce_frame

FIRST_TOPIC = "first"
_SETTLE_SECONDS = 3.0


def start(
    field: ContestantFactory, names: Sequence[str], scale: Scale
) -> Iterator[tuple[str, Figures]]:
    """Measure the start times of each contestant with one topic, one contestant after the other.
    Then measure the memory and the CPU time of all of them while they are idle, at the same time.
    Yield (contestant, figures)."""
    with contextlib.ExitStack() as stack:
        running, figures = [], {}
        for name in names:
            contestant = stack.enter_context(contextlib.closing(field.contestant(name)))
            figures[name] = start_times(contestant)
            running.append(contestant)
        time.sleep(_SETTLE_SECONDS)
        before = [processes.cpu_seconds(contestant.pid) for contestant in running]
        time.sleep(scale.idle_seconds)
        for contestant, cpu in zip(running, before, strict=True):
            used = processes.cpu_seconds(contestant.pid) - cpu
            memory = processes.memory(contestant.pid)
            yield (
                contestant.name,
                {
                    **figures[contestant.name],
                    "idle-cpu": used / scale.idle_seconds * 60,
                    "idle": memory.rss_mib,
                    "idle-pss": memory.pss_mib,
                },
            )


def start_times(contestant: Contestant) -> Figures:
    """Return three start times in seconds. `first`: from the first start of the process until the
    broker answers ApiVersions. `clean` and `killed`: from a restart on the same data, after SIGTERM
    and after kill -9, until a Metadata response has a leader for the topic. The broker keeps
    running."""
    begun = time.perf_counter()
    contestant.start()
    first = time.perf_counter() - begun
    contestant.create([FIRST_TOPIC], 1)
    contestant.wait_for_leaders([FIRST_TOPIC], 1)
    append(contestant, [FIRST_TOPIC], 1)
    contestant.stop()
    clean = seconds_until_led(contestant, [FIRST_TOPIC], 1)
    contestant.kill()
    killed = seconds_until_led(contestant, [FIRST_TOPIC], 1)
    return {"first": first, "clean": clean, "killed": killed}


def seconds_until_led(contestant: Contestant, topics: Sequence[str], partitions: int) -> float:
    """Start the contestant's broker. Return the seconds until a Metadata response has a leader for
    every partition of these topics. Each topic has `partitions` partitions."""
    begun = time.perf_counter()
    contestant.launch()
    contestant.wait_for_leaders(topics, partitions)
    return time.perf_counter() - begun


def append(contestant: Contestant, topics: Sequence[str], partitions: int) -> None:
    """Append a batch of ten records of 100 B to each of the `partitions` partitions of each
    topic."""
    with contestant.target.connect() as connection:
        for topic in topics:
            for partition in range(partitions):
                ask(connection, produce_frame(partition, 10, b"v" * 100, topic=topic))


def partitions(
    field: ContestantFactory, names: Sequence[str], scale: Scale
) -> Iterator[tuple[str, Figures]]:
    """Measure brokers with many partitions, one broker after the other: the seconds to create the
    partitions, to stop, and to start again after SIGTERM and after kill -9; the ms of a Metadata
    response; the memory in MiB. Yield (contestant, figures)."""
    loads.allow_files(2 * scale.topics * scale.partitions_each)
    topics = [f"many-{number:03d}" for number in range(scale.topics)]
    each = scale.partitions_each
    for name in names:
        with contextlib.closing(field.contestant(name)) as contestant:
            contestant.start()
            begun = time.perf_counter()
            contestant.create(topics, each)
            contestant.wait_for_leaders(topics, each)
            created = time.perf_counter() - begun
            append(contestant, topics, each)
            metadata = loads.metadata_milliseconds(contestant, 20)
            memory = processes.memory(contestant.pid)
            begun = time.perf_counter()
            contestant.stop()
            stopped = time.perf_counter() - begun
            clean = seconds_until_led(contestant, topics, each)
            append(contestant, topics[:1], each)
            contestant.kill()
            killed = seconds_until_led(contestant, topics, each)
        yield (
            name,
            {
                "create": created,
                "metadata": metadata,
                "memory": memory.rss_mib,
                "stop": stopped,
                "clean": clean,
                "killed": killed,
            },
        )
