"""A client that keeps a fetch session, and helpers to read its answers."""

from __future__ import annotations

from collections.abc import Mapping

from pybroker.client.fetch_session import FetchSession
from pybroker.errors import ErrorCode
from pybroker.model import LeaderAndIsr, PartitionFacts, PartitionState, TopicPartition
from pybroker.wire.api import ApiKey
from pybroker.wire.messages.fetch import FetchPartition, FetchResponse, FetchTopic, PartitionData
from unit_tests.handlers.bench import BROKER_ID, Bench, code, fetch_request

FOLLOWER = 2
T0 = TopicPartition("t", 0)


def said(answer: FetchResponse) -> dict[tuple[str, int], PartitionData]:
    assert code(answer) is ErrorCode.NONE
    return {
        (topic.topic, part.partition_index): part
        for topic in answer.responses
        for part in topic.partitions
    }


async def lead(
    bench: Bench,
    epoch: int,
    key: TopicPartition = T0,
    *,
    leader: int = BROKER_ID,
    replicas: tuple[int, ...] = (BROKER_ID, FOLLOWER),
) -> None:
    facts = PartitionFacts(
        key,
        bench.app.metadata.topics["t"].topic_id,
        PartitionState(leader, epoch, replicas, 1),
        epoch,
        replicas,
    )
    command = LeaderAndIsr(BROKER_ID, bench.app.controller.epoch, -1, (facts,))
    assert await bench.app.replicas.leader_and_isr(command) == {key: ErrorCode.NONE}


def shown(answer: FetchResponse) -> dict[tuple[str, int], tuple[object, ...]]:
    """Return the values of each partition in a fetch answer."""
    return {
        key: (
            part.error_code,
            part.high_watermark if part.error_code == 0 else None,
            part.log_start_offset if part.error_code == 0 else None,
            part.diverging_epoch and (part.diverging_epoch.epoch, part.diverging_epoch.end_offset),
            bytes(part.records or b""),
        )
        for key, part in said(answer).items()
    }


class Reader:
    """A client that keeps a session, and the last values that it received of each partition."""

    def __init__(self, bench: Bench, replica_id: int) -> None:
        self._bench = bench
        self._replica_id = replica_id
        self._session: FetchSession[FetchPartition] = FetchSession(lambda _, wanted: wanted)
        self._asked: dict[TopicPartition, FetchPartition] = {}
        self.known: dict[tuple[str, int], tuple[object, ...]] = {}
        self.left_out = 0

    async def ask(self, positions: Mapping[TopicPartition, tuple[int, int, int]]) -> None:
        """Fetch at `positions`: for each partition the offset, the leader epoch and the epoch of
        the last record."""
        wanted = {
            key: FetchPartition(
                partition=key.partition,
                fetch_offset=offset,
                current_leader_epoch=epoch,
                last_fetched_epoch=last,
                partition_max_bytes=2**20,
            )
            for key, (offset, epoch, last) in positions.items()
        }
        for key, item in wanted.items():
            known = self._asked.get(key)
            if known is not None and fields(known) == fields(item):
                wanted[key] = known
        self._asked = wanted
        for _ in range(2):
            asked = self._session.next(wanted)
            request = fetch_request(
                session=(asked.session_id, asked.session_epoch), replica_id=self._replica_id
            )
            request.topics, request.forgotten_topics_data = asked.topics, asked.forgotten
            answer = await self._bench.ask(ApiKey.FETCH, 12, request)
            if self._session.handle(answer):
                break
        else:
            raise AssertionError("a new session was refused")
        news = shown(answer)
        self.left_out += len(wanted) - len(news)
        before = {
            key: (*known[:3], None, b"")
            for key, known in self.known.items()
            if TopicPartition(*key) in wanted
        }
        self.known = before | news

    async def full(self) -> dict[tuple[str, int], tuple[object, ...]]:
        request = fetch_request(replica_id=self._replica_id)
        request.topics = [
            FetchTopic(topic=key.topic, partitions=[item]) for key, item in self._asked.items()
        ]
        return shown(await self._bench.ask(ApiKey.FETCH, 12, request))


def fields(item: FetchPartition) -> tuple[int, ...]:
    return (item.fetch_offset, item.current_leader_epoch, item.last_fetched_epoch)
