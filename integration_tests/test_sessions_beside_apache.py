"""Tests that send the same valid and invalid requests of fetch sessions to Apache Kafka and to our
broker: the answers are equal, partition by partition and in the same order.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from typing import Final

import pytest

from integration_tests.apache import ApacheKafka
from integration_tests.broker import Broker, PybrokerProcess
from integration_tests.conftest import or_skip
from integration_tests.wire_client import (
    Connection,
    batch_of,
    create_topic,
    produce,
    wait_for_leader,
)
from pybroker.errors import ErrorCode
from pybroker.records.batch import iter_headers
from pybroker.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
)
from pybroker.wire.messages.topics import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)

pytestmark = pytest.mark.ours

PARTITIONS: Final = 4
STEPS: Final = 250
EVERYTHING: Final = 2**30
# Neither counts sessions of other tests.
OVERRIDES: Final = {"max.incremental.fetch.session.cache.slots": "1000"}

Step = list[tuple[object, ...]]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Broker, Broker]]:
    """Yield Apache's broker and ours."""
    folder = tmp_path_factory.mktemp("both")
    (folder / "apache").mkdir()
    with contextlib.ExitStack() as stack:
        apache = or_skip(lambda: ApacheKafka(folder / "apache", overrides=OVERRIDES, heap_mib=512))
        ours = PybrokerProcess(folder / "ours", overrides=OVERRIDES)
        for broker in (apache, ours):
            stack.callback(broker.close)
            broker.start()
        yield apache, ours


class Asked:
    """One broker and the fetch sessions of the test at it."""

    def __init__(self, broker: Broker, topic: str) -> None:
        self._connection = Connection(broker.bootstrap)
        self.topic = topic
        self.ids = [0]
        """All sessions so far; the last session is the current session."""

    def close(self) -> None:
        self._connection.close()

    def create(self) -> None:
        create_topic(self._connection, self.topic, partitions=PARTITIONS)
        wait_for_leader(self._connection, self.topic)

    def write(self, partition: int, data: bytes) -> None:
        assert produce(self._connection, self.topic, data, partition=partition).error_code == 0

    def cut(self, partition: int, before: int) -> None:
        wanted = DeleteRecordsPartition(partition_index=partition, offset=before)
        request = DeleteRecordsRequest(
            topics=[DeleteRecordsTopic(name=self.topic, partitions=[wanted])], timeout_ms=10_000
        )
        self._connection.ask(2, request, DeleteRecordsResponse)

    def fetch(self, which: int, version: int, request: FetchRequest) -> Step:
        """Send a Fetch and return the answer. `which` selects the session, counted back from the
        last session.
        """
        request.session_id = self.ids[-1 - which] if which < len(self.ids) else 0
        answer = self._connection.ask(version, request, FetchResponse)
        if request.session_epoch in (0, -1) and not answer.error_code:
            self.ids.append(answer.session_id)
        said: Step = []
        for topic in answer.responses:
            for part in topic.partitions:
                batches = [header for _, header in iter_headers(bytes(part.records or b""))]
                said.append((topic.topic, part.partition_index, part.error_code, len(batches)))
                if part.error_code == 0:
                    said[-1] += (part.high_watermark, part.last_stable_offset)
                    said[-1] += (part.log_start_offset if version >= 5 else 0,)
                    diverging = part.diverging_epoch
                    said[-1] += ((diverging.epoch, diverging.end_offset) if diverging else (),)
        # Apache puts unknown partitions after those that it reads.
        said.sort(key=lambda row: row[2] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return [(answer.error_code, answer.session_id == 0), *said]


def request_of(
    rng: random.Random, version: int, topic: str, epoch: int, ends: list[int]
) -> FetchRequest:
    """Return a random request: some partitions, including a missing one, from some offsets, and
    some forgotten partitions.
    """

    def some() -> list[int]:
        return rng.sample(range(PARTITIONS + 1), rng.choice((0, 0, 1, 2, PARTITIONS + 1)))

    partitions = [
        FetchPartition(
            partition=number,
            fetch_offset=rng.randint(0, ends[number]) if rng.randrange(8) else 10_000,
            current_leader_epoch=rng.choice((-1, 0, 0, 0, 0, 3)),
            last_fetched_epoch=rng.choice((-1, -1, -1, 0)) if version >= 12 else -1,
            partition_max_bytes=rng.choice((1, EVERYTHING)),
        )
        for number in some()
    ]
    return FetchRequest(
        max_wait_ms=0,
        min_bytes=1,
        max_bytes=rng.choice((1, EVERYTHING, EVERYTHING)),
        session_epoch=epoch,
        topics=[FetchTopic(topic=topic, partitions=partitions)] if partitions else [],
        forgotten_topics_data=[ForgottenTopic(topic=topic, partitions=some())],
    )


@pytest.mark.parametrize("seed", range(6))
def test_fetch_sessions_get_the_answers_of_apache(
    both: tuple[Broker, Broker], topic: str, seed: int
) -> None:
    rng = random.Random(seed)
    version = rng.choice((7, 9, 11, 12, 12))
    with contextlib.ExitStack() as stack:
        asked = [stack.enter_context(contextlib.closing(Asked(each, topic))) for each in both]
        for each in asked:
            each.create()
        ends = [0] * (PARTITIONS + 1)
        epoch = incremental = 0
        for step in range(STEPS):
            number = rng.randrange(PARTITIONS)
            kind = rng.randrange(10)
            if kind < 2:
                data = batch_of(b"v" * rng.randint(1, 300))
                ends[number] += 1
                for each in asked:
                    each.write(number, data)
            elif kind == 2:
                before = rng.randint(0, ends[number])
                for each in asked:
                    each.cut(number, before)
            else:
                wanted_epoch = epoch if rng.randrange(12) else rng.choice((0, -1, epoch + 1, -7))
                which = 0 if rng.randrange(15) else 1
                state = rng.getstate()
                answers = []
                for each in asked:
                    rng.setstate(state)
                    request = request_of(rng, version, topic, wanted_epoch, ends)
                    answers.append(each.fetch(which, version, request))
                assert answers[1] == answers[0], f"seed {seed}, step {step}"
                (error, without_session), *_ = answers[0]
                incremental += not error and not without_session and wanted_epoch > 0
                if error or without_session:
                    epoch = 0
                elif which == 0 or wanted_epoch == 0:
                    epoch = wanted_epoch + 1
        assert incremental > STEPS / 5
