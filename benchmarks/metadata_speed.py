"""Compares two ways to answer Metadata requests in a cluster with many topics: with a cached
response, and with a response that is encoded for the request.

    python benchmarks/metadata_speed.py [TOPICS] [PARTITIONS]

The program prints milliseconds per response (the best of several rounds), and the ratio of the two
times. Only the ratio can be compared with another machine.
"""

from __future__ import annotations

import sys
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace

from pybroker.config.broker_config import BrokerConfig
from pybroker.handlers.dispatch import Dispatcher
from pybroker.handlers.metadata_view import MetadataView
from pybroker.model import (
    Broker,
    Endpoint,
    PartitionFacts,
    PartitionState,
    TopicPartition,
    UpdateMetadata,
)
from pybroker.wire.api import APIS, ApiKey
from pybroker.wire.codec import encode_request
from pybroker.wire.headers import RequestHeader, encode_request_header
from pybroker.wire.messages.metadata import MetadataRequest

ROUNDS = 7
VERSION = 12
BROKERS = tuple(Broker(id, (Endpoint("PLAINTEXT", f"host-{id}", 9092),)) for id in range(3))


@dataclass(frozen=True)
class Controller:
    controller_id: int = 0
    is_active: bool = True


def cluster(topics: int, partitions: int) -> MetadataView:
    """Return the metadata of a cluster of three brokers with this many topics, this many partitions
    in each, and three replicas of each partition."""
    view = MetadataView()
    facts = tuple(
        PartitionFacts(
            TopicPartition(f"topic-{topic:05d}", index),
            uuid.UUID(int=topic + 1),
            PartitionState(index % 3, 0, (0, 1, 2), 1),
            0,
            (0, 1, 2),
        )
        for topic in range(topics)
        for index in range(partitions)
    )
    view.apply(UpdateMetadata(0, 1, -1, partitions=facts, brokers=BROKERS))
    return view


def best_ms(action: Callable[[], object]) -> float:
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter_ns()
        action()
        times.append(time.perf_counter_ns() - start)
    return min(times) / 1e6


def main(topics: int, partitions: int) -> None:
    view = cluster(topics, partitions)
    controller = Controller()
    services = SimpleNamespace(
        cluster_id="cluster",
        config=BrokerConfig(),
        metadata=view,
        controller=controller,
        controller_id=controller.controller_id,
    )
    dispatcher = Dispatcher(services)
    api = APIS[ApiKey.METADATA]
    header = RequestHeader(api.key, VERSION, 1, "benchmark")
    frame = memoryview(
        encode_request_header(header, api.request_header_version(VERSION))
        + encode_request(api, VERSION, MetadataRequest(topics=None))
    )

    def ask() -> object:
        return dispatcher.answer(frame, "PLAINTEXT", "127.0.0.1")

    def ask_after_a_change() -> object:
        view.version += 1
        return ask()

    anew, remembered = best_ms(ask_after_a_change), best_ms(ask)
    size = sum(len(part) for part in ask())
    print(f"{topics} topics of {partitions} partitions, {size / 1024:.0f} KiB an answer")
    print(f"encoded anew    {anew:10.3f} ms")
    print(f"cached          {remembered:10.3f} ms")
    print(f"ratio           {anew / remembered:10.0f}")


if __name__ == "__main__":
    main(*(int(text) for text in (sys.argv[1:] + ["2000", "3"][len(sys.argv) - 1 :])))
