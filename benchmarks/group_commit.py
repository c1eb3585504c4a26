"""Measures the cost of syncing every record to disk before its acknowledgement.

    python benchmarks/group_commit.py [--seconds S] [--producers N ...] [--partitions P] [--acks A]

The program starts a broker with log.flush.interval.messages=1 and a temporary data directory inside
the folder `--data`, which should be on the disk to measure. Each producer sends one record of 100
B, and waits for its acknowledgement before it sends the next one. The program prints
acknowledgements per second, syncs per second (as the broker counts them), syncs per
acknowledgement, and the p50 and p99 of the time until an acknowledgement.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain

from pybroker.records.builder import BatchBuilder
from pybroker.wire.api import APIS, ApiKey
from pybroker.wire.codec import encode_request
from pybroker.wire.headers import RequestHeader, encode_request_header
from pybroker.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from pybroker.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from pybroker.wire.schema import Message

TOPIC = "bench"
VERSIONS = {ApiKey.PRODUCE: 7, ApiKey.METADATA: 4}
SYNCS = re.compile(r"^kafka_log_logflushstats_logflushrateandtimems_count\S* ([0-9.e+]+)", re.M)


@dataclass(frozen=True)
class Target:
    port: int
    http_port: int

    def syncs(self) -> float:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.http_port}/metrics") as page:
            found = SYNCS.search(page.read().decode())
        return float(found.group(1)) if found else 0.0


def framed(key: ApiKey, request: Message) -> bytes:
    api, version = APIS[key], VERSIONS[key]
    header = encode_request_header(RequestHeader(key, version, 1, "bench"), 1)
    body = header + encode_request(api, version, request)
    return struct.pack(">i", len(body)) + body


def produce_frame(partition: int, acks: int) -> bytes:
    builder = BatchBuilder()
    builder.append(int(time.time() * 1000), None, b"v" * 100, ())
    data = PartitionProduceData(index=partition, records=builder.build())
    part = TopicProduceData(name=TOPIC, partition_data=[data])
    return framed(ApiKey.PRODUCE, ProduceRequest(acks=acks, timeout_ms=30_000, topic_data=[part]))


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, frame: bytes) -> bytes:
    writer.write(frame)
    (size,) = struct.unpack(">i", await reader.readexactly(4))
    return await reader.readexactly(size)


async def produce(target: Target, frame: bytes, until: float) -> list[float]:
    """Run one producer on its own connection until the time `until` (monotonic seconds): it sends
    `frame` repeatedly. Return the time until each acknowledgement, in seconds."""
    reader, writer = await asyncio.open_connection("127.0.0.1", target.port)
    times = []
    while (began := time.monotonic()) < until:
        answer = await ask(reader, writer, frame)
        (error,) = struct.unpack_from(">h", answer, 4 + 4 + 2 + len(TOPIC) + 4 + 4)
        if error:
            raise RuntimeError(f"the broker answered Produce with error {error}")
        times.append(time.monotonic() - began)
    writer.close()
    return times


async def measure(target: Target, producers: int, options: argparse.Namespace) -> str:
    frames = [produce_frame(number, options.acks) for number in range(options.partitions)]
    began, syncs = time.monotonic(), target.syncs()
    until = began + options.seconds
    producing = (produce(target, frames[n % len(frames)], until) for n in range(producers))
    times = sorted(chain.from_iterable(await asyncio.gather(*producing)))
    elapsed, syncs = time.monotonic() - began, target.syncs() - syncs
    return (
        f"{producers:4} producers {len(times) / elapsed:8.0f} acks/s {syncs / elapsed:7.0f} syncs/s"
        f" {syncs / len(times):6.3f} syncs/ack  p50 {times[len(times) // 2] * 1000:6.2f} ms"
        f"  p99 {times[len(times) * 99 // 100] * 1000:6.2f} ms"
    )


@contextmanager
def own_broker(options: argparse.Namespace) -> Iterator[Target]:
    with tempfile.TemporaryDirectory(dir=options.data) as data:
        command = [sys.executable, "-m", "pybroker", "start", "--port", "0", "--data", data]
        command += ["--override", "log.flush.interval.messages=1"]
        command += ["--override", f"num.partitions={options.partitions}"]
        command += ["--override", "pybroker.http.listener=127.0.0.1:0"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as broker:
            assert broker.stdout is not None
            port = http_port = 0
            for line in broker.stdout:
                if found := re.search(r"listener \S+ bound to \S+:(\d+)", line):
                    port = int(found.group(1))
                if found := re.search(r"http on 127\.0\.0\.1:(\d+)", line):
                    http_port = int(found.group(1))
                if port and http_port:
                    break
            try:
                yield Target(port, http_port)
            finally:
                broker.terminate()
                broker.stdout.read()


async def make_topic(target: Target) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", target.port)
    request = MetadataRequest(topics=[MetadataRequestTopic(name=TOPIC)])
    for _ in range(3):
        await ask(reader, writer, framed(ApiKey.METADATA, request))
    writer.close()


async def run(target: Target, options: argparse.Namespace) -> None:
    await make_topic(target)
    for producers in options.producers:
        print(await measure(target, producers, options), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--producers", type=int, nargs="+", default=[1, 50])
    parser.add_argument("--partitions", type=int, default=1)
    parser.add_argument("--acks", type=int, default=-1)
    parser.add_argument(
        "--data", help="the folder in which the temporary data directory is created"
    )
    options = parser.parse_args()
    with own_broker(options) as target:
        asyncio.run(run(target, options))


if __name__ == "__main__":
    main()
