"""A fault test with a minute of random faults: brokers are killed, stopped and paused, links are
cut in one direction or both, delayed, or broken around a request, clocks jump, sessions expire,
leaders are elected, while topics are created and deleted. No acknowledged record is lost, and all
replicas are in sync soon after the faults are healed.

`PYBROKER_FAULTS_SEED=text` repeats the same choices (not the same moments), and
`PYBROKER_FAULTS_SECONDS=600` sets the duration.
"""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from types import TracebackType
from typing import Final

import psutil
import pytest

from integration_tests.faults import clocks
from integration_tests.faults.clocks import WallClocks
from integration_tests.faults.rig import Rig, Run
from integration_tests.faults.settings import READERS
from integration_tests.faults.taps import LostAnswers, LostWrites
from integration_tests.faults.tormented import Tormented
from pybroker.client import Admin, ConfigChange, ConfigResource, NewTopic
from pybroker.client.errors import ClientError

pytestmark = pytest.mark.ours

SECONDS: Final = float(os.environ.get("PYBROKER_FAULTS_SECONDS", "60"))
FAULT_SECONDS_MAX: Final = 5.0
BREATH_SECONDS_MAX: Final = 1.0
ADMIN_TIMEOUT_MS: Final = 4_000
RSS_BYTES_MAX: Final = 200 << 20
CONNECTIONS_MAX: Final = 60
WRITERS: Final = ("idempotent", "five-in-flight", "ours", "hasty")
"""The clients of the run, without the producer with one request in flight and no sequence numbers:
when the leader changes, this producer sends to the new leader before it knows the outcome at the
old leader, so its order is not guaranteed.
"""

SEED: Final = "second"
"""The seed of the faults, which PYBROKER_FAULTS_SEED overrides."""

HOUR_S: Final = 3600.0
HOURS: Final = {"in": 1, "out": -1, "both": 0}
"""The seconds by which a clock is set ahead of the right time."""
FREEZE_S: Final = 1.0
"""The duration in seconds of a short pause, shorter than the session timeout and the lag time: only
waiting requests are affected.
"""
JITTER_S: Final = 0.3
LOST_ONE_IN: Final = 3

Fault = Callable[[Tormented, int, str], object]


def stop(cluster: Tormented, broker: int, _: str) -> None:
    assert cluster.stop(broker) == 0


def freeze(cluster: Tormented, broker: int, _: str) -> None:
    cluster.pause(broker)
    time.sleep(FREEZE_S)
    cluster.resume(broker)


def jump(cluster: Tormented, broker: int, way: str) -> None:
    if clocks.reason_to_skip() is None:
        cluster.set_clock(broker, HOURS[way] * HOUR_S)


def lose_answers(cluster: Tormented, broker: int, way: str) -> None:
    lost = LostAnswers(one_in=LOST_ONE_IN, seed=len(way))
    cluster.cluster.tap(broker, "clients", lost.make)


def lose_writes(cluster: Tormented, broker: int, way: str) -> None:
    lost = LostWrites(b"/state", b"/controller", b"/topics", one_in=LOST_ONE_IN, seed=len(way))
    cluster.cluster.tap(broker, "zookeeper", lost.make)


FAULTS: Final[Mapping[str, Fault]] = {
    "kill9": lambda cluster, broker, _: cluster.kill9(broker),
    "kill9-all": lambda cluster, *_: cluster.kill9_all(),
    "stop": stop,
    "pause": lambda cluster, broker, _: cluster.pause(broker),
    "freeze": freeze,
    "uneven": lambda cluster, *_: cluster.cluster.delay(0, jitter=JITTER_S),
    "break": lambda cluster, broker, _: cluster.cluster.reset(broker),
    "lose-answers": lose_answers,
    "lose-writes": lose_writes,
    "clock": jump,
    "expire": lambda cluster, broker, _: cluster.expire_session(broker),
    "cut-zookeeper": lambda cluster, broker, way: cluster.cut(broker, "zookeeper", direction=way),
    "cut-clients": lambda cluster, broker, way: cluster.cut(broker, "clients", direction=way),
    "cut-next": lambda cluster, broker, way: cluster.cut(broker, broker % 3 + 1, direction=way),
    "cut-all": lambda cluster, broker, way: cluster.cut(broker, direction=way),
}
UNHEARD: Final[Mapping[str, Callable[[int], Collection[int]]]] = {
    **dict.fromkeys(
        ("kill9", "stop", "pause", "freeze", "expire", "break", "cut-all"),
        lambda _: Tormented.brokers,
    ),
    "cut-next": lambda broker: (broker % 3 + 1,),
    **dict.fromkeys(("kill9-all", "uneven"), lambda _: Tormented.brokers),
    **dict.fromkeys(
        ("cut-zookeeper", "cut-clients", "lose-answers", "lose-writes", "clock"), lambda _: ()
    ),
}
"""The peers from which a broker may be cut off, in one direction or both."""
EVERYWHERE: Final = frozenset({"kill9-all", "uneven"})
ENDING: Final = frozenset({"kill9", "kill9-all", "stop"})


class Operator:
    """An operator that creates and deletes topics, requests leader elections, and changes
    min.insync.replicas. Errors are ignored.
    """

    def __init__(self, bootstrap: str, topic: str, rng: random.Random) -> None:
        self._bootstrap = bootstrap
        self._topic = topic
        self._rng = rng
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="operator", daemon=True)
        self.done = 0

    def __enter__(self) -> Operator:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(self._rng.uniform(0.1, 0.8)):
            try:
                asyncio.run(self._act())
            except ClientError:
                continue
            self.done += 1

    async def _act(self) -> None:
        name = f"{self._topic}-{self._rng.randrange(8)}"
        limit = ConfigChange("min.insync.replicas", self._rng.choice(("1", "2")))
        async with Admin(self._bootstrap) as admin:
            match self._rng.randrange(5):
                case 0 | 1:
                    new = NewTopic(name, self._rng.randrange(1, 6), self._rng.choice((2, 3)))
                    await admin.create_topics([new], timeout_ms=ADMIN_TIMEOUT_MS)
                case 2:
                    await admin.delete_topics([name], timeout_ms=ADMIN_TIMEOUT_MS)
                case 3:
                    await admin.elect_leaders(timeout_ms=ADMIN_TIMEOUT_MS)
                case _:
                    topic = ConfigResource.topic(self._topic)
                    await admin.alter_configs({topic: [limit]}, timeout_ms=ADMIN_TIMEOUT_MS)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tormented]:
    folder = tmp_path_factory.mktemp("random")
    walls = None
    if clocks.reason_to_skip() is None:
        walls = WallClocks(folder, Tormented.brokers)
    with Tormented(folder, proxied=True, clocks=walls) as started:
        yield started


@pytest.fixture
def rig(cluster: Tormented, tmp_path_factory: pytest.TempPathFactory) -> Rig:
    return Rig(cluster.fit(), tmp_path_factory.mktemp("ops"))


def note_silence(run: Run, what: str, broker: int) -> None:
    for one in run.cluster.brokers if what in EVERYWHERE else (broker,):
        run.silence(one, UNHEARD[what](one))


def torment(run: Run, rng: random.Random) -> None:
    """Inject one or two faults at once, then heal all faults, and wait until all replicas are in
    sync.
    """
    cluster = run.cluster
    ended: set[int] = set()
    paused: set[int] = set()
    expired: set[int] = set()
    for number in range(rng.choice((1, 1, 2))):
        broker, what = rng.choice(cluster.brokers), rng.choice(sorted(FAULTS))
        way = rng.choice(("both", "in", "out"))
        # A broker that cannot reach the controller waits as long as Kafka's does. An isolated
        # broker whose session is expired from outside cannot know that. A session expires by itself
        # only after the broker has stopped to answer as a leader.
        if broker in ended | paused | expired or (what in ("stop", "expire") and number):
            continue
        note_silence(run, what, broker)
        with run.fault(what, broker):
            FAULTS[what](cluster, broker, way)
        if what in ENDING:
            ended.update(cluster.brokers if what == "kill9-all" else {broker})
        if what == "pause":
            paused.add(broker)
        if what == "expire":
            expired.add(broker)
        run.wait(rng.uniform(0, BREATH_SECONDS_MAX))
    run.wait(rng.uniform(0, FAULT_SECONDS_MAX))
    assert set(cluster.running()) == set(cluster.brokers) - ended, "a broker has ended by itself"
    run.rig.ready()
    run.heard()
    run.wait_for_full_isr()
    if rng.random() < 0.5:
        run.wait_for_progress(3, clients=("idempotent", "ours"))


def test_faults_at_random(rig: Rig) -> None:
    seed = os.environ.get("PYBROKER_FAULTS_SEED", SEED)
    print(f"PYBROKER_FAULTS_SEED={seed}")
    rng = random.Random(seed)
    with rig.run("faults-at-random", clients=(*WRITERS, *READERS), rate=40) as run:
        run.wait_for_progress(5)
        with Operator(
            rig.cluster.bootstrap, run.topic, random.Random(f"{seed} operator")
        ) as somebody:
            end = time.monotonic() + SECONDS
            while time.monotonic() < end:
                torment(run, rng)
        assert somebody.done
        rig.cluster.cluster.wait_until_in_sync()
        for broker in rig.cluster.brokers:
            process = psutil.Process(rig.cluster.cluster.pid(broker))
            assert process.memory_info().rss < RSS_BYTES_MAX
            assert len(process.net_connections("tcp")) < CONNECTIONS_MAX
        run.finish()
    for broker in rig.cluster.brokers:
        stop(rig.cluster, broker, "")
