"""The race of two clusters: three pybroker brokers against three Apache Kafka brokers, with
replication factor 3, acks=all and min.insync.replicas=2.

    python benchmarks/cluster_race.py [--rounds N] [--quick] [--only MEASURE,...]

The measures are:

- `produce-100`, `produce-1024`: records of 100 B and 1 KiB. MB/s, and the CPU seconds of all
  three brokers per GB.
- `latency`: the time until an acknowledgement, at 1,000 records per second.
- `leader-kill-6`, `leader-kill-2`: kill -9 of a leader, with a ZooKeeper session timeout of 6
  and 2 s. The seconds until the first new acknowledgement.
- `controller-kill`: kill -9 of the controller, which leads a third of 2,000 partitions. The
  seconds until every partition has a live leader.

The two clusters begin the rounds in turn. The program needs Java, and the jars of Apache Kafka that
`mvn` fetches.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import confluent_kafka
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.racing import loads, processes
from benchmarks.racing.contestants import APACHE, HEAP_MIB, OURS
from benchmarks.racing.librdkafka import ANY_PARTITION, ClientFailed, Producer
from integration_tests.apache import KAFKA_JAVA_OPTIONS, ApacheKafka, ApacheZooKeeper
from integration_tests.broker import STARTED, PybrokerProcess
from integration_tests.wire_client import Connection, batch_of
from integration_tests.wire_client import produce as produce_one
from unit_tests.patience import wait_until

BROKERS: Final = 3
MANY: Final = 2_000
RATE: Final = 1_000
PATIENCE_SECONDS: Final = 120.0
Figures = Mapping[str, float]


class Cluster:
    """`brokers` brokers of one contestant (`name`), with their own chroot in the ZooKeeper that all
    clusters share. `session_ms` is their zookeeper.session.timeout.ms. Each topic, also an internal
    one, has a replica on every broker."""

    def __init__(
        self,
        name: str,
        folder: Path,
        zookeeper: str,
        session_ms: int,
        *,
        brokers: int = BROKERS,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`environment` has additional environment variables for brokers of pybroker."""
        self.name = name
        self.brokers = brokers
        in_sync = str(min(2, brokers))
        overrides = {
            "auto.create.topics.enable": "false",
            "default.replication.factor": str(brokers),
            "min.insync.replicas": in_sync,
            "offsets.topic.replication.factor": str(brokers),
            "transaction.state.log.min.isr": in_sync,
            "transaction.state.log.replication.factor": str(brokers),
            "zookeeper.session.timeout.ms": str(session_ms),
        }
        self.servers: list[PybrokerProcess | ApacheKafka] = []
        for number in range(brokers):
            options = {**overrides, "broker.id": str(number)}
            place = folder / str(number)
            self.servers.append(
                PybrokerProcess(
                    place, zookeeper=zookeeper, overrides=options, environment=environment
                )
                if name == OURS
                else ApacheKafka(
                    place,
                    zookeeper=zookeeper,
                    heap_mib=HEAP_MIB,
                    overrides=options,
                    java_options=KAFKA_JAVA_OPTIONS,
                )
            )
        self._topics = 0

    def __enter__(self) -> Cluster:
        for server in self.servers:
            server.launch()
        for server in self.servers:
            server.process.wait_for_line(STARTED)
        self.admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        self.until(lambda: len(self.metadata().brokers) == self.brokers, "all brokers are known")
        return self

    def __exit__(self, *_: object) -> None:
        for server in self.servers:
            server.close()

    def disconnect(self) -> None:
        """Close the admin client: its connections cost the brokers time. Topics can no longer be
        created."""
        del self.admin

    @property
    def bootstrap(self) -> str:
        return ",".join(server.bootstrap for server in self.servers)

    def metadata(self, topic: str | None = None) -> Any:
        return self.admin.list_topics(topic, timeout=20)

    def topic(self, partitions: int) -> str:
        """Create a topic. Wait until each partition has a leader, and all its replicas are in sync.
        Return the topic's name."""
        self._topics += 1
        name = f"race-{self._topics}"
        created = self.admin.create_topics([NewTopic(name, partitions, self.brokers)])
        created[name].result(PATIENCE_SECONDS)
        self.until(
            lambda: self._is_whole(name, partitions),
            f"topic {name} has leaders and all replicas in sync",
        )
        return name

    def _is_whole(self, name: str, partitions: int) -> bool:
        found = self.metadata(name).topics[name].partitions
        return len(found) == partitions and all(
            each.leader >= 0 and len(each.isrs) == self.brokers for each in found.values()
        )

    def cpu_seconds(self) -> float:
        return sum(processes.cpu_seconds(server.process.pid) for server in self.servers)

    def until(self, condition: Callable[[], bool], what: str) -> None:
        def met() -> bool:
            with contextlib.suppress(confluent_kafka.KafkaException, KeyError):
                return condition()
            return False

        wait_until(met, what=f"{self.name}: {what}")

    def kill(self, broker: int) -> None:
        """Kill a broker by SIGKILL. Do not wait for the failover."""
        self.servers[broker].process.kill9()


@dataclass(frozen=True)
class Scale:
    messages: Mapping[int, int]
    latency_seconds: float
    partitions: int
    warm_up_seconds: float


FULL: Final = Scale({100: 1_500_000, 1024: 300_000}, 10.0, MANY, 40.0)
QUICK: Final = Scale({100: 150_000, 1024: 30_000}, 2.0, 200, 4.0)


def produce(cluster: Cluster, scale: Scale, size: int) -> Figures:
    topic = cluster.topic(BROKERS)
    messages, count = loads.values(size), scale.messages[size]
    options = {"acks": "all", "linger_ms": 5, "partition": ANY_PARTITION}
    with Producer(cluster.bootstrap, topic, messages, **options) as producer:  # type: ignore[arg-type]
        producer.send(len(messages))
        producer.flush()
        cpu, started = cluster.cpu_seconds(), time.perf_counter()
        producer.send(count)
        producer.flush()
        elapsed = time.perf_counter() - started
        used = cluster.cpu_seconds() - cpu
    _require_all(cluster, topic, count + len(messages))
    total = count * size
    return {"MB/s": total / elapsed / 1e6, "cpu s/GB": used / total * 1e9}


def _require_all(cluster: Cluster, topic: str, count: int) -> None:
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": cluster.bootstrap, "group.id": "race", "enable.auto.commit": False}
    )
    ends = [
        consumer.get_watermark_offsets(confluent_kafka.TopicPartition(topic, number), timeout=20)[1]
        for number in range(BROKERS)
    ]
    consumer.close()
    if sum(ends) != count:
        raise ClientFailed(f"{cluster.name}: expected {count} messages in the log, not {sum(ends)}")


class Acks:
    """Sends records to partition 0 of a topic, and stores when each was sent and acknowledged."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "acks": "all",
                "enable.idempotence": True,
                "linger.ms": 0,
                "retry.backoff.ms": 10,
                "retry.backoff.max.ms": 20,
                "reconnect.backoff.ms": 10,
                "reconnect.backoff.max.ms": 50,
                "topic.metadata.refresh.fast.interval.ms": 20,
                "log_level": 0,
            }
        )
        self._topic = topic
        self.done: list[tuple[float, float]] = []
        """(time of sending, time of acknowledgement) of each acknowledged record, in seconds of
        `time.perf_counter`."""

    def send(self) -> None:
        begun = time.perf_counter()

        def answered(error: object, message: object) -> None:
            if error is not None:
                raise ClientFailed(f"a record was not acknowledged: {error}")
            self.done.append((begun, time.perf_counter()))

        self._producer.produce(self._topic, b"v" * 100, partition=0, on_delivery=answered)

    def serve(self, until: float) -> None:
        while (left := until - time.perf_counter()) > 0:
            self._producer.poll(left)

    def flush(self) -> None:
        if self._producer.flush(PATIENCE_SECONDS):
            raise ClientFailed(f"records were not acknowledged within {PATIENCE_SECONDS:.0f} s")


def latency(cluster: Cluster, scale: Scale) -> Figures:
    acks = Acks(cluster, cluster.topic(1))
    begun, count = time.perf_counter(), int((scale.latency_seconds + 1) * RATE)
    for number in range(count):
        acks.serve(begun + number / RATE)
        acks.send()
    acks.flush()
    took = loads.percentiles([end - start for start, end in acks.done][RATE:])
    return {"p50 ms": took.p50, "p99 ms": took.p99}


def leader_kill(cluster: Cluster, scale: Scale) -> Figures:
    """Kill the leader of a partition, and return the seconds until the first new acknowledgement.
    Plain Produce requests are sent to each remaining broker every 5 ms. A client library looks for
    a new leader only once per second, which would dominate the result."""
    topic = cluster.topic(1)
    leader = cluster.metadata(topic).topics[topic].partitions[0].leader
    batch = batch_of(b"v" * 100)
    with Connection(cluster.servers[leader].bootstrap) as connection:
        # A broker's metadata may name the new leader before the new leader receives its command.
        cluster.until(lambda: produce_one(connection, topic, batch).error_code == 0, "it leads")
    with contextlib.ExitStack() as stack:
        others = [
            stack.enter_context(Connection(server.bootstrap))
            for number, server in enumerate(cluster.servers)
            if number != leader
        ]
        cluster.kill(leader)
        killed = time.perf_counter()
        while time.perf_counter() - killed < PATIENCE_SECONDS:
            for connection in others:
                if produce_one(connection, topic, batch).error_code == 0:
                    return {"s": time.perf_counter() - killed}
            time.sleep(0.005)
    raise ClientFailed(f"{cluster.name}: the partition has no leader after its leader was killed")


def controller_kill(cluster: Cluster, scale: Scale) -> Figures:
    topic = cluster.topic(scale.partitions)
    controller = cluster.metadata(topic).controller_id
    asked = next(server for number, server in enumerate(cluster.servers) if number != controller)
    admin = AdminClient({"bootstrap.servers": asked.bootstrap, "log_level": 0})
    cluster.kill(controller)
    killed = time.perf_counter()
    while True:
        found = admin.list_topics(topic, timeout=20).topics[topic].partitions.values()
        led = [each for each in found if each.leader not in (-1, controller)]
        if len(led) == scale.partitions:
            return {"s": time.perf_counter() - killed}
        if time.perf_counter() - killed > PATIENCE_SECONDS:
            raise ClientFailed(
                f"{cluster.name}: some partitions have no leader after the controller was killed"
            )
        time.sleep(0.05)


@dataclass(frozen=True)
class Measure:
    run: Callable[[Cluster, Scale], Figures]
    session_ms: int = 6_000
    higher_is_better: bool = False


MEASURES: Final = {
    "produce-100": Measure(lambda cluster, scale: produce(cluster, scale, 100)),
    "produce-1024": Measure(lambda cluster, scale: produce(cluster, scale, 1024)),
    "latency": Measure(latency),
    "leader-kill-6": Measure(leader_kill),
    "leader-kill-2": Measure(leader_kill, session_ms=2_000),
    "controller-kill": Measure(controller_kill),
}
STANDING: Final = ("produce-100", "produce-1024", "latency")
"""The measures that share one cluster, which is warmed up before they run."""


def warm_up(cluster: Cluster, names: Sequence[str], scale: Scale) -> None:
    """Run the loads of these measures for some time, so that a just-in-time compiler compiles the
    code of the brokers."""
    deadline = time.monotonic() + scale.warm_up_seconds * (0.25 if cluster.name == OURS else 1.0)
    while time.monotonic() < deadline:
        for name in names:
            MEASURES[name].run(cluster, QUICK)


def rounds_of(
    names: Sequence[str], rounds: int, scale: Scale, folder: Path, zookeeper: str
) -> Iterator[tuple[str, str, Figures]]:
    """Run all rounds of these measures. Yield (measure, contestant, figures) of each."""
    for number in range(rounds):
        order = (OURS, APACHE) if number % 2 == 0 else (APACHE, OURS)
        standing = [name for name in names if name in STANDING]
        groups = ([standing] if standing else []) + [[n] for n in names if n not in STANDING]
        for group in groups:
            for who in order:
                place = f"{number}-{group[0]}-{who.split()[0].lower()}"
                session_ms = MEASURES[group[0]].session_ms
                chroot = f"{zookeeper}/{place}"
                with Cluster(who, folder / place, chroot, session_ms) as cluster:
                    if group == standing:
                        warm_up(cluster, group, scale)
                    for name in group:
                        yield name, who, MEASURES[name].run(cluster, scale)


def table(found: Mapping[tuple[str, str], Mapping[str, list[float]]]) -> str:
    lines = [
        f"{'measure':<16} {'unit':<9} {'ours':>9} {'Apache':>9}  ratio (min to max of a round)"
    ]
    for name in MEASURES:
        ours, theirs = found.get((name, OURS)), found.get((name, APACHE))
        if not ours or not theirs:
            continue
        for unit in ours:
            ratios = [a / b for a, b in zip(ours[unit], theirs[unit], strict=False)]
            lines.append(
                f"{name:<16} {unit:<9} {statistics.median(ours[unit]):>9.3g}"
                f" {statistics.median(theirs[unit]):>9.3g}  {statistics.median(ratios):.2f}"
                f" ({min(ratios):.2f} to {max(ratios):.2f}, {len(ratios)} rounds)"
            )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, prog="benchmarks/cluster_race.py")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--quick", action="store_true", help="use small loads, to test that everything works"
    )
    parser.add_argument("--only", default="", metavar="MEASURE,...")
    parser.add_argument("--output", type=Path, metavar="FILE.json")
    options = parser.parse_args()
    names = [name for name in options.only.split(",") if name] or list(MEASURES)
    found: dict[tuple[str, str], dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory(prefix="cluster-race-") as temporary:
        zookeeper = ApacheZooKeeper(Path(temporary) / "zookeeper")
        with contextlib.closing(zookeeper):
            zookeeper.start()
            scale = QUICK if options.quick else FULL
            runs = rounds_of(names, options.rounds, scale, Path(temporary), zookeeper.connect)
            for name, who, figures in runs:
                print(f"{name} {who}: {figures}", file=sys.stderr, flush=True)
                for unit, figure in figures.items():
                    found.setdefault((name, who), {}).setdefault(unit, []).append(figure)
    print(table(found))
    if options.output is not None:
        rows = [{"measure": n, "who": w, "figures": f} for (n, w), f in found.items()]
        options.output.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
