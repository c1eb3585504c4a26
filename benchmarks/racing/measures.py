"""The measures of running brokers: their loads, amounts and topics. `lifecycle.py` has the measures
of starting and stopping a broker."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from benchmarks.racing import loads, processes
from benchmarks.racing.contestants import Contestant
from benchmarks.racing.metrics import ACKS, CODECS, SIZES, produce_name, program_name

STEADY_ROUNDS: Final = 3
STEADY_SHARE: Final = 0.05
Figures = Mapping[str, float]
"""Name of a metric within its measure -> its value."""


@dataclass(frozen=True)
class Scale:
    """The amounts of each measure: how many messages, passes, seconds, connections and topics. The
    keys of `messages` and `hot_passes` are the sizes of the values in bytes."""

    messages: Mapping[int, int] = field(default_factory=lambda: {100: 1_500_000, 1024: 300_000})
    program_messages: Mapping[int, int] = field(
        default_factory=lambda: {100: 3_000_000, 1024: 500_000}
    )
    hot_passes: Mapping[int, int] = field(default_factory=lambda: {100: 3, 1024: 3})
    request_seconds: float = 2.0
    latency_seconds: float = 10.0
    connections: int = 2000
    warm_up_seconds_max: float = 150.0
    idle_seconds: float = 20.0
    topics: int = 50
    partitions_each: int = 100

    def quick(self) -> Scale:
        """Return smaller amounts, for a run that only tests that everything works."""
        return replace(
            self,
            messages={size: count // 5 for size, count in self.messages.items()},
            program_messages={size: n // 5 for size, n in self.program_messages.items()},
            hot_passes=dict.fromkeys(SIZES, 1),
            request_seconds=0.5,
            latency_seconds=2.0,
            connections=500,
            warm_up_seconds_max=8.0,
            idle_seconds=5.0,
            topics=10,
        )


class RunningMeasures:
    """The measures of running brokers. Owns the topics that the measures of one round share."""

    def __init__(self, scale: Scale) -> None:
        self.scale = scale
        self.values = {size: loads.values(size) for size in SIZES}
        self._written: dict[tuple[str, int], tuple[str, int]] = {}
        self._made_by_program: dict[tuple[str, int, str], str] = {}
        self.runs: dict[str, Callable[[Contestant], Figures]] = {}
        for size in SIZES:
            for codec in CODECS:
                for acks in ACKS:
                    run = partial(self._produce, size=size, codec=codec, acks=acks)
                    self.runs[produce_name(size, codec, acks)] = run
        for size in SIZES:
            self.runs[f"consume-hot-{size}"] = partial(self._consume_hot, size=size)
            self.runs[f"consume-cold-{size}"] = partial(self._consume_cold, size=size)
        self._add_program_runs()
        for name, records, under_way in REQUEST_LOADS:
            self.runs[name] = partial(self._requests, records=records, under_way=under_way)
        self.runs["latency-raw"] = self._latency_raw
        self.runs["latency-client"] = self._latency_client
        self.runs["memory"] = self._memory
        self.runs["connections"] = self._connections

    def _add_program_runs(self) -> None:
        for size in SIZES:
            for codec in CODECS:
                for acks in ACKS:
                    run = partial(self._program_produce, size=size, codec=codec, acks=acks)
                    self.runs[program_name("produce", size, codec, acks)] = run
                run = partial(self._program_consume, size=size, codec=codec)
                self.runs[program_name("consume", size, codec, "")] = run

    def run(self, name: str, contestant: Contestant) -> Figures:
        """Run the measure `name` at this contestant, after the kernel has written all changed pages
        to the disk."""
        os.sync()
        return self.runs[name](contestant)

    def warm_up(
        self, contestant: Contestant, chosen: Sequence[str], seconds_max: float
    ) -> Iterator[dict[str, Figures]]:
        """Run rounds of the `chosen` measures with half of their loads, so that a just-in-time
        compiler compiles the broker's code. Yield the figures of each round. The last round is the
        one at which the figures stand still (`is_steady`), or which ends after `seconds_max`."""
        scale = replace(
            self.scale,
            messages={size: count // 2 for size, count in self.scale.messages.items()},
            program_messages={size: n // 2 for size, n in self.scale.program_messages.items()},
            request_seconds=min(1.0, self.scale.request_seconds),
            latency_seconds=0.5,
        )
        warm = RunningMeasures(scale)
        names = [n for n in chosen if n in warm.runs and n not in ("memory", "connections")]
        deadline = time.monotonic() + seconds_max
        rounds: list[dict[str, Figures]] = []
        while names and time.monotonic() < deadline and not is_steady(rounds):
            rounds.append({name: warm.run(name, contestant) for name in names})
            warm.end_round(contestant)
            yield rounds[-1]

    def end_round(self, contestant: Contestant) -> None:
        """Forget the contestant's topics of this round, because the next round uses new topics."""
        written, made = self._written, self._made_by_program
        self._written = {key: at for key, at in written.items() if key[0] != contestant.name}
        self._made_by_program = {key: t for key, t in made.items() if key[0] != contestant.name}
        contestant.start_afresh()

    def _produce(self, contestant: Contestant, *, size: int, codec: str, acks: str) -> Figures:
        topic = contestant.new_topic()
        offset = contestant.end_offset(topic)
        done = loads.produce(
            contestant, topic, self.values[size], self.scale.messages[size], codec=codec, acks=acks
        )
        if codec == "none":
            self._written[contestant.name, size] = (topic, offset)
        return {"rate": done.mb_per_second, "cpu": done.cpu_seconds_per_gb}

    def _topic_with_records(self, contestant: Contestant, size: int) -> tuple[str, int]:
        if (contestant.name, size) not in self._written:
            self._produce(contestant, size=size, codec="none", acks="all")
        return self._written[contestant.name, size]

    def _consume_hot(self, contestant: Contestant, *, size: int) -> Figures:
        topic, offset = self._topic_with_records(contestant, size)
        count = self.scale.messages[size]
        loads.consume(
            contestant, topic, offset, count, size=size, passes=1
        )  # this read fills the page cache
        passes = self.scale.hot_passes[size]
        done = loads.consume(contestant, topic, offset, count, size=size, passes=passes)
        return {"rate": done.mb_per_second, "cpu": done.cpu_seconds_per_gb}

    def _consume_cold(self, contestant: Contestant, *, size: int) -> Figures:
        topic, offset = self._topic_with_records(contestant, size)
        count = self.scale.messages[size]
        processes.drop_from_page_cache(contestant.data)
        before = processes.bytes_from_disk(contestant.pid)
        done = loads.consume(contestant, topic, offset, count, size=size, passes=1)
        from_disk = processes.bytes_from_disk(contestant.pid) - before
        return {
            "rate": done.mb_per_second,
            "cpu": done.cpu_seconds_per_gb,
            "from-disk-share": from_disk / (count * size),
        }

    def _program_produce(
        self, contestant: Contestant, *, size: int, codec: str, acks: str
    ) -> Figures:
        topic = contestant.new_topic()
        count = self.scale.program_messages[size]
        done = loads.produce_by_program(contestant, topic, size, count, codec=codec, acks=acks)
        self._made_by_program[contestant.name, size, codec] = topic
        return {"rate": done.mb_per_second, "cpu": done.cpu_seconds_per_gb}

    def _program_consume(self, contestant: Contestant, *, size: int, codec: str) -> Figures:
        """Read what the program has produced in this round. The page cache still has it."""
        key = contestant.name, size, codec
        if key not in self._made_by_program:
            self._program_produce(contestant, size=size, codec=codec, acks="all")
        count = self.scale.program_messages[size]
        done = loads.consume_by_program(contestant, self._made_by_program[key], size, count)
        return {"rate": done.mb_per_second, "cpu": done.cpu_seconds_per_gb}

    def _requests(self, contestant: Contestant, *, records: int, under_way: int) -> Figures:
        topic = contestant.new_topic(loads.CONNECTIONS)
        done = loads.requests(
            contestant,
            topic,
            records=records,
            under_way=under_way,
            seconds=self.scale.request_seconds,
        )
        return {"rate": done.per_second, "per-cpu": done.per_cpu_second}

    def _latency_raw(self, contestant: Contestant) -> Figures:
        topic = contestant.new_topic()
        seconds = self.scale.latency_seconds
        return latency_figures(loads.end_to_end(contestant, topic, acks=-1, seconds=seconds))

    def _latency_client(self, contestant: Contestant) -> Figures:
        topic = contestant.new_topic()
        seconds = self.scale.latency_seconds
        return latency_figures(
            loads.end_to_end_by_client(contestant, topic, acks="1", seconds=seconds)
        )

    def _memory(self, contestant: Contestant) -> Figures:
        used = processes.memory(contestant.pid)
        return {"loaded": used.rss_mib, "loaded-pss": used.pss_mib}

    def _connections(self, contestant: Contestant) -> Figures:
        topic = contestant.new_topic()
        crowd = loads.idle_connections(contestant, topic, self.scale.connections)
        figures = {"connect": crowd.connect_seconds, "kib": crowd.kib_each}
        return {**figures, **latency_figures(crowd.produce)}


def means(figures: Mapping[str, Figures]) -> dict[str, float]:
    """Return the geometric means of a round's rates and processor times, or of its median times if
    it has no rates."""
    keys = [key for key in ("rate", "cpu") if any(key in found for found in figures.values())]
    return {
        key: statistics.geometric_mean(found[key] for found in figures.values() if key in found)
        for key in keys or ("p50",)
    }


def is_steady(rounds: Sequence[Mapping[str, Figures]]) -> bool:
    """Return whether each of the `means` of the last STEADY_ROUNDS rounds lies within STEADY_SHARE
    of the others."""
    last = [means(figures) for figures in rounds[-STEADY_ROUNDS:]]
    return len(last) == STEADY_ROUNDS and all(
        max(each[key] for each in last) <= min(each[key] for each in last) * (1 + STEADY_SHARE)
        for key in last[0]
    )


REQUEST_LOADS: Final = (("unbatched-1", 1, 1), ("unbatched-4", 1, 4), ("batched-4", 100, 4))
"""(measure, records in each request, requests in flight on each connection) of each request
load."""


def latency_figures(latency: loads.Latency) -> Figures:
    return {"p50": latency.p50, "p99": latency.p99, "p999": latency.p999}
