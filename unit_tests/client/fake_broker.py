"""A fake broker in the test's own event loop. It handles whole messages, keeps batches in lists,
and fails on demand.

`FakeBroker` speaks the real protocol over a real socket with the project's codec. A test puts
faults for the next requests of an API into `faults`. A request without a fault is answered as by a
real broker.
"""

from __future__ import annotations

import asyncio
import struct
import uuid
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field

from pybroker.errors import ErrorCode
from pybroker.model import NO_EPOCH, NO_TOPIC_ID, TopicPartition
from pybroker.records.batch import iter_headers, read_header, stamp
from pybroker.records.record import decode_records
from pybroker.wire.api import APIS, ApiKey
from pybroker.wire.codec import decode_request, encode_response
from pybroker.wire.headers import encode_response_header, parse_request_header
from pybroker.wire.messages.cluster import (
    ApiVersion,
    ApiVersionsResponse,
    DescribeClusterBroker,
    DescribeClusterResponse,
)
from pybroker.wire.messages.fetch import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from pybroker.wire.messages.list_offsets import (
    EpochEndOffset,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)
from pybroker.wire.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from pybroker.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from pybroker.wire.messages.transactions import InitProducerIdResponse
from pybroker.wire.schema import Message

NODE = 1
Handler = Callable[[Message], Message | Awaitable[Message]]


@dataclass(frozen=True, slots=True)
class Fault:
    """The fault of one request: whether the request is carried out, the error that replaces
    success, and whether the broker answers ("drop" closes the connection instead)."""

    carried_out: bool = False
    code: ErrorCode = ErrorCode.NONE
    answer: str = "send"


def refuse(code: ErrorCode) -> Fault:
    return Fault(code=code)


LOSE_REQUEST = Fault(answer="drop")
LOSE_ANSWER = Fault(carried_out=True, answer="drop")
NEVER_ANSWER = Fault(answer="none")
BEHAVE = Fault(carried_out=True)


@dataclass(slots=True)
class Partition:
    """A log, and the state of its producers: producer id -> (epoch, next sequence)."""

    batches: list[bytes] = field(default_factory=list)
    start: int = 0
    end: int = 0
    producers: dict[int, tuple[int, int]] = field(default_factory=dict)
    stored: dict[tuple[int, int, int], int] = field(default_factory=dict)
    stable_end: int | None = None
    """The last stable offset, if it is not the log end."""
    epoch_end: int | None = None
    """The end of any requested leader epoch, if it is not the log end."""
    fetch_limit: int = 1 << 30
    """The limit of an answer in bytes, beyond its first batch."""
    aborted: list[AbortedTransaction] = field(default_factory=list)

    def append(self, data: bytes, epoch: int = 7) -> int:
        """Store the batch without checks, in this leader epoch. Return its base offset."""
        batch = bytearray(data)
        header = read_header(batch)
        base = self.end
        stamp(batch, 0, base, epoch)
        self.batches.append(bytes(batch))
        self.end += header.record_count
        return base

    def read(self, offset: int) -> bytes:
        """Return the batches from that offset on: at least one, if there is any."""
        data = b""
        for batch in self.batches:
            if read_header(batch).next_offset > offset:
                if data and len(data) + len(batch) > self.fetch_limit:
                    break
                data += batch
        return data

    def aborted_since(self, offset: int) -> list[AbortedTransaction]:
        """Return the aborted transactions whose markers are at or after that offset."""
        headers = [read_header(batch) for batch in self.batches]
        return [
            row
            for row in self.aborted
            if not any(
                row.first_offset < header.base_offset < offset
                for header in headers
                if header.is_control and header.producer_id == row.producer_id
            )
        ]

    def values(self) -> list[bytes | None]:
        return [
            record.value
            for batch in self.batches
            for record in decode_records(batch, decompressed_bytes_max=1 << 24)
        ]


class FakeBroker:
    """A fake broker, as an async context manager. `seen` has the received requests in order."""

    def __init__(self, topics: dict[str, int] | None = None) -> None:
        self.port = 0
        self.topics = dict(topics or {})
        self.partitions: dict[TopicPartition, Partition] = defaultdict(Partition)
        self.seen: list[Message] = []
        self.faults: dict[ApiKey, deque[Fault]] = defaultdict(deque)
        self.partition_faults: deque[ErrorCode] = deque()
        """The errors of the next partitions of a Fetch."""
        self.topic_errors: dict[str, ErrorCode] = {}
        self.topic_ids: dict[str, uuid.UUID] = {}
        self.leader_epoch = 7
        self.without_leader = False
        self.sessions: dict[int, dict[TopicPartition, int]] | None = None
        """With a dict, fetches have sessions: id -> the requested offsets."""
        self.changed = asyncio.Condition()
        self.handlers: dict[ApiKey, Handler] = {
            ApiKey.API_VERSIONS: lambda _: versions(),
            ApiKey.METADATA: self._metadata,
            ApiKey.INIT_PRODUCER_ID: lambda _: InitProducerIdResponse(
                producer_id=9, producer_epoch=0
            ),
            ApiKey.PRODUCE: self._produce,
            ApiKey.FETCH: self._fetch,
            ApiKey.LIST_OFFSETS: self._list_offsets,
            ApiKey.OFFSET_FOR_LEADER_EPOCH: self._epoch_ends,
            ApiKey.DESCRIBE_CLUSTER: lambda _: DescribeClusterResponse(
                cluster_id="fake",
                controller_id=NODE,
                brokers=[DescribeClusterBroker(broker_id=NODE, host="127.0.0.1", port=self.port)],
            ),
        }
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def partition(self, topic: str = "t", number: int = 0) -> Partition:
        return self.partitions[TopicPartition(topic, number)]

    def requests(self, kind: type[Message]) -> list[Message]:
        return [request for request in self.seen if isinstance(request, kind)]

    def will(self, key: ApiKey, *faults: Fault) -> None:
        self.faults[key].extend(faults)

    async def __aenter__(self) -> FakeBroker:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.drop_connections()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Return once the condition is true. The broker checks the condition after every
        request."""
        async with self.changed:
            await self.changed.wait_for(condition)

    def drop_connections(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while True:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                frame = memoryview(await reader.readexactly(size))
                header, start = parse_request_header(frame)
                api = APIS[ApiKey(header.api_key)]
                request = decode_request(api, header.version, frame[start:])
                self.seen.append(request)
                queue = self.faults[api.key]
                fault = queue.popleft() if queue else BEHAVE
                response = await self._answer(api.key, request, fault)
                async with self.changed:
                    self.changed.notify_all()
                if fault.answer == "drop":
                    writer.transport.abort()
                    return
                if fault.answer == "none" or response is None:
                    continue
                head = encode_response_header(
                    header.correlation_id, api.response_header_version(header.version)
                )
                body = encode_response(api, header.version, response)
                writer.write(struct.pack(">i", len(head) + len(body)) + head + body)
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _answer(self, key: ApiKey, request: Message, fault: Fault) -> Message | None:
        if key == ApiKey.PRODUCE and not (fault.carried_out and not fault.code):
            assert isinstance(request, ProduceRequest)
            if fault.carried_out:
                self._produce(request)
            return refused(request, fault.code)
        found = self.handlers[key](request)
        response = found if isinstance(found, Message) else await found
        no_answer = isinstance(request, ProduceRequest) and request.acks == 0
        return None if no_answer else response

    def _metadata(self, request: Message) -> Message:
        assert isinstance(request, MetadataRequest)
        names = list(self.topics) if request.topics is None else [t.name for t in request.topics]
        return MetadataResponse(
            brokers=[MetadataResponseBroker(node_id=NODE, host="127.0.0.1", port=self.port)],
            cluster_id="fake",
            controller_id=NODE,
            topics=[self._topic(name or "") for name in names],
        )

    def _topic(self, name: str) -> MetadataResponseTopic:
        error = self.topic_errors.get(name, ErrorCode.NONE)
        if name not in self.topics and not error:
            error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        leader = -1 if self.without_leader else NODE
        return MetadataResponseTopic(
            name=name,
            error_code=error,
            topic_id=self.topic_ids.get(name, NO_TOPIC_ID),
            is_internal=name.startswith("__"),
            partitions=[
                MetadataResponsePartition(
                    partition_index=number,
                    leader_id=leader,
                    leader_epoch=self.leader_epoch,
                    replica_nodes=[NODE],
                    isr_nodes=[NODE],
                )
                for number in range(0 if error else self.topics[name])
            ],
        )

    def _produce(self, request: Message) -> Message:
        assert isinstance(request, ProduceRequest)
        return ProduceResponse(
            responses=[
                TopicProduceResponse(
                    name=topic.name,
                    partition_responses=[
                        self._append(TopicPartition(topic.name, data.index), data)
                        for data in topic.partition_data
                    ],
                )
                for topic in request.topic_data
            ]
        )

    def _append(self, key: TopicPartition, data: PartitionProduceData) -> PartitionProduceResponse:
        """Check an idempotent producer's sequences as a broker does (KIP-98)."""
        log = self.partitions[key]
        batch = bytes(data.records or b"")
        header = read_header(batch)
        answer = PartitionProduceResponse(index=key.partition, base_offset=-1)
        if header.has_producer:
            number = (header.producer_id, header.producer_epoch, header.base_sequence)
            # A broker accepts any first sequence of a producer that it does not know.
            unknown = (header.producer_epoch, header.base_sequence)
            epoch, due = log.producers.get(header.producer_id, unknown)
            if number in log.stored:
                answer.base_offset = log.stored[number]
                return answer
            if header.producer_epoch < epoch:
                answer.error_code = ErrorCode.INVALID_PRODUCER_EPOCH
                return answer
            if header.base_sequence != (due if header.producer_epoch == epoch else 0):
                answer.error_code = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
                return answer
            log.producers[header.producer_id] = (header.producer_epoch, header.last_sequence + 1)
            log.stored[number] = log.end
        answer.base_offset = log.append(batch)
        return answer

    async def _fetch(self, request: Message) -> Message:
        assert isinstance(request, FetchRequest)
        if self.sessions is not None:
            return await self._fetch_in_session(request, self.sessions)
        found = [
            FetchableTopicResponse(
                topic=topic.topic,
                partitions=[
                    self._read(
                        TopicPartition(topic.topic, p.partition),
                        p.fetch_offset,
                        p.current_leader_epoch,
                    )
                    for p in topic.partitions
                ],
            )
            for topic in request.topics
        ]
        if not any(p.records or p.error_code for topic in found for p in topic.partitions):
            await asyncio.sleep(min(request.max_wait_ms, 20) / 1_000)
        return FetchResponse(responses=found)

    async def _fetch_in_session(
        self, request: FetchRequest, sessions: dict[int, dict[TopicPartition, int]]
    ) -> FetchResponse:
        """Answer a fetch in a session. The id of a new session is the number of earlier sessions.
        Epochs are not checked."""
        full = request.session_epoch <= 0
        session_id = request.session_id
        if full:
            sessions.pop(session_id, None)
            session_id = max(sessions, default=0) + 1
            if request.session_epoch == 0:
                sessions[session_id] = {}
        if session_id not in sessions:
            code = ErrorCode.NONE if full else ErrorCode.FETCH_SESSION_ID_NOT_FOUND
            return FetchResponse(error_code=code)
        offsets = sessions[session_id]
        for topic in request.topics:
            for part in topic.partitions:
                offsets[TopicPartition(topic.topic, part.partition)] = part.fetch_offset
        for gone in request.forgotten_topics_data:
            for number in gone.partitions:
                del offsets[TopicPartition(gone.topic, number)]
        found = [(key, self._read(key, offset)) for key, offset in offsets.items()]
        if not any(data.records or data.error_code for _, data in found):
            await asyncio.sleep(min(request.max_wait_ms, 20) / 1_000)
        return FetchResponse(
            session_id=session_id,
            responses=[
                FetchableTopicResponse(topic=key.topic, partitions=[data])
                for key, data in found
                if full or data.records or data.error_code
            ],
        )

    def _read(self, key: TopicPartition, offset: int, epoch: int = NO_EPOCH) -> PartitionData:
        log = self.partitions[key]
        code = self.partition_faults.popleft() if self.partition_faults else ErrorCode.NONE
        if not code and NO_EPOCH < epoch < self.leader_epoch:
            code = ErrorCode.FENCED_LEADER_EPOCH
        if not code and not log.start <= offset <= log.end:
            code = ErrorCode.OFFSET_OUT_OF_RANGE
        data = log.read(offset)
        return PartitionData(
            partition_index=key.partition,
            error_code=code,
            high_watermark=log.end,
            last_stable_offset=log.end if log.stable_end is None else log.stable_end,
            log_start_offset=log.start,
            aborted_transactions=log.aborted_since(offset),
            records=b"" if code else data,
        )

    def _list_offsets(self, request: Message) -> Message:
        assert isinstance(request, ListOffsetsRequest)
        return ListOffsetsResponse(
            topics=[
                ListOffsetsTopicResponse(
                    name=topic.name,
                    partitions=[
                        ListOffsetsPartitionResponse(
                            partition_index=row.partition_index,
                            offset=self._find(topic.name, row.partition_index, row.timestamp),
                            leader_epoch=self.leader_epoch,
                        )
                        for row in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )

    def _epoch_ends(self, request: Message) -> Message:
        assert isinstance(request, OffsetForLeaderEpochRequest)
        found = OffsetForLeaderEpochResponse()
        for topic in request.topics:
            rows = OffsetForLeaderTopicResult(topic=topic.topic)
            for row in topic.partitions:
                log = self.partition(topic.topic, row.partition)
                end = log.end if log.epoch_end is None else log.epoch_end
                rows.partitions.append(
                    EpochEndOffset(
                        partition=row.partition, leader_epoch=row.leader_epoch, end_offset=end
                    )
                )
            found.topics.append(rows)
        return found

    def _find(self, topic: str, number: int, timestamp: int) -> int:
        log = self.partition(topic, number)
        if timestamp == -1:
            return log.end
        if timestamp == -2:
            return log.start
        for batch in log.batches:
            for record in decode_records(batch, decompressed_bytes_max=1 << 24):
                if record.timestamp >= timestamp:
                    return record.offset
        return -1


def versions(without: Iterable[ApiKey] = (), error: ErrorCode = ErrorCode.NONE) -> Message:
    left_out = set(without)
    return ApiVersionsResponse(
        error_code=error,
        api_keys=[
            ApiVersion(api_key=api.key, min_version=api.min_version, max_version=api.max_version)
            for api in APIS.values()
            if api.key not in left_out
        ],
    )


def refused(request: ProduceRequest, code: ErrorCode) -> Message:
    """Return a response with this error for each item of the request."""
    return ProduceResponse(
        responses=[
            TopicProduceResponse(
                name=topic.name,
                partition_responses=[
                    PartitionProduceResponse(index=data.index, error_code=code, base_offset=-1)
                    for data in topic.partition_data
                ],
            )
            for topic in request.topic_data
        ]
    )


def first_sequences(requests: Iterable[Message]) -> list[tuple[int, int]]:
    """Return (epoch, base sequence) of every batch that was sent, in order."""
    return [
        (header.producer_epoch, header.base_sequence)
        for request in requests
        if isinstance(request, ProduceRequest)
        for topic in request.topic_data
        for data in topic.partition_data
        for _, header in iter_headers(data.records or b"")
    ]
