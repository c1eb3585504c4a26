"""Tests of clients that send hostile transactional requests to a real broker: the memory stays
bounded, the errors are clear, and a well-behaved producer is not affected.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

import psutil
import pytest

from integration_tests.fuzzing.attack import unhandled_in
from integration_tests.transaction_requests import (
    PASSING,
    Producer,
    add,
    add_once,
    end,
    find,
    init,
    init_code,
    settled,
    started,
    state_of,
    write,
)
from integration_tests.wire_client import Connection, create_topic
from pybroker.errors import ErrorCode
from pybroker.testing.cluster import Cluster
from unit_tests.patience import wait_until

pytestmark = pytest.mark.ours

NONE: Final = ErrorCode.NONE
FULL: Final = ErrorCode.COORDINATOR_NOT_AVAILABLE
TOO_LARGE: Final = ErrorCode.UNKNOWN_SERVER_ERROR
"""The code for a state that does not fit into max.message.bytes, as in Kafka."""
RSS_BYTES_MAX: Final = 600 << 20
ID_BYTES: Final = 30_000
FLOOD_IDS_MAX: Final = 8_000
"""More ids than the memory of all transactional ids can have."""
STARTERS: Final = 8
CONFIG: Final = {
    "message.max.bytes": 32_700,
    "transaction.state.log.num.partitions": 3,
    # A broker that has not heard from ZooKeeper for two thirds of it accepts no transactions.
    "zookeeper.session.timeout.ms": 30_000,
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(1, config=CONFIG) as started:
        with Connection(started.bootstrap) as connection:
            create_topic(connection, Bystander.TOPIC)
        yield started


@pytest.fixture
def connection(cluster: Cluster) -> Iterator[Connection]:
    with Connection(cluster.bootstrap) as opened:
        yield opened


@pytest.fixture(autouse=True)
def well_behaved(cluster: Cluster) -> Iterator[None]:
    """Run a producer that commits transactions meanwhile. Check that the hostile clients do not
    affect it, and that the broker logs no unexpected error.
    """
    with Bystander(cluster.bootstrap) as bystander:
        yield
    assert bystander.error is None
    assert cluster.running == [1]
    assert unhandled_in(cluster.log_text(1)) == set()


class Bystander:
    """A well-behaved producer that keeps its epoch and commits one transaction after the other."""

    TOPIC: Final = "bystander"

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._behaves = threading.Event()
        self.error: BaseException | None = None

    def __enter__(self) -> Bystander:
        """Start the producer, and return after its first commit."""
        self._thread.start()
        wait_until(lambda: self._behaves.is_set() or self.error, what="a well-behaved producer")
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            with Connection(self._bootstrap) as connection:
                self._behave(connection)
        except BaseException as error:  # reported to the test's thread, which can fail the test
            self.error = error

    def _behave(self, connection: Connection) -> None:
        me = started(connection, "well-behaved")
        sequence = 0
        while not self._end.wait(0.02):
            assert add(connection, me, self.TOPIC) == NONE
            assert write(connection, me, self.TOPIC, b"value", sequence=sequence) == NONE
            assert end(connection, me, commit=True) == NONE
            sequence += 1
            self._behaves.set()


def name_of(number: int) -> str:
    """Return a transactional id of about ID_BYTES bytes, encoded and in memory."""
    return str(number).ljust(ID_BYTES // 4, "\U0001d11e")


def test_a_state_that_is_too_large_fails_its_request_only(
    cluster: Cluster, connection: Connection
) -> None:
    """The state has the names of twenty topics, which do not fit beside the long transactional
    id."""
    topics = [f"{number:02}".ljust(249, "y") for number in range(20)]
    for topic in topics:
        create_topic(connection, topic)
    producer = started(connection, "z" * ID_BYTES)
    assert add(connection, producer, topics[0]) == NONE
    assert write(connection, producer, topics[0], b"value") == NONE
    for _ in range(2):
        codes = add_once(connection, producer, {topic: [0] for topic in topics})
        assert codes == dict.fromkeys(((topic, 0) for topic in topics), TOO_LARGE)
    assert write(connection, producer, topics[0], b"next", sequence=1) == NONE
    assert write(connection, producer, topics[1], b"value") == ErrorCode.INVALID_TXN_STATE
    assert end(connection, producer, commit=False) == NONE
    wait_until(lambda: state_of(connection, producer) == "CompleteAbort", what="it is aborted")
    assert add(connection, producer, topics[1]) == NONE
    assert end(connection, producer, commit=True) == NONE


def test_a_transactional_id_that_is_too_large_is_refused(connection: Connection) -> None:
    longest = "l" * (2**15 - 1)
    find(connection, longest)
    assert init_code(connection, longest) == TOO_LARGE
    assert state_of(connection, Producer(longest, 0, 0)) == ""


def test_producers_that_start_at_once_get_different_epochs(cluster: Cluster) -> None:
    def start(_: int) -> list[Producer]:
        with contextlib.closing(Connection(cluster.bootstrap)) as connection:
            return [started(connection, "shared") for _ in range(10)]

    with ThreadPoolExecutor(STARTERS) as threads:
        found = [each for several in threads.map(start, range(STARTERS)) for each in several]
    assert len({each.producer_id for each in found}) == 1
    assert sorted(each.epoch for each in found) == [*range(10 * STARTERS)]


def test_a_flood_of_new_transactional_ids(cluster: Cluster, connection: Connection) -> None:
    """New ids are refused when the memory for them is used. Producers that have their id can still
    begin transactions, and start again. The test is the last one, because the ids stay.
    """
    topic = "flooded"
    create_topic(connection, topic, partitions=100)
    known = started(connection, "known")
    given: list[Producer] = []

    def code_of_next() -> int:
        answer = init(connection, name_of(len(given)))
        if answer.error_code == NONE:
            given.append(Producer(name_of(len(given)), answer.producer_id, answer.producer_epoch))
        return answer.error_code

    while len(given) < FLOOD_IDS_MAX:
        code = code_of_next()
        assert code in (NONE, *PASSING)
        if code and "memory limit reached" in cluster.log_text(1):
            break
    assert 3_000 < len(given) < 5_000
    assert {code_of_next() for _ in range(100)} <= {NONE, *PASSING}
    assert code_of_next() == FULL
    assert "of=transactional ids" in cluster.log_text(1)
    assert rss_bytes(cluster) < RSS_BYTES_MAX
    for producer in (known, given[0], given[-1]):
        assert set(all_added(connection, producer, topic).values()) == {NONE}
        assert write(connection, producer, topic, b"value") == NONE
        assert end(connection, producer, commit=True) == NONE
        assert started(connection, producer.transactional_id) == producer.at(producer.epoch + 1)


def all_added(connection: Connection, producer: Producer, topic: str) -> dict[tuple[str, int], int]:
    """Add a hundred partitions, and repeat the request only while the previous transaction ends."""
    return settled(
        partial(add_once, connection, producer, {topic: range(100)}),
        lambda codes: (
            ErrorCode.CONCURRENT_TRANSACTIONS
            if ErrorCode.CONCURRENT_TRANSACTIONS in codes.values()
            else NONE
        ),
    )


def rss_bytes(cluster: Cluster) -> int:
    return int(psutil.Process(cluster.pid(1)).memory_info().rss)
