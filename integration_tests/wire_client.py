"""A raw connection with the project's codec, for requests that no client library sends. The
protocol tests use `connection.ask(...)`, `batch_of(...)`, `produce(...)`, `fetch(...)`. All calls
block, with a time limit.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Final, TypeVar

from pybroker.errors import ErrorCode
from pybroker.records.builder import BatchBuilder
from pybroker.records.compression import Codec
from pybroker.wire.api import APIS, ApiKey
from pybroker.wire.codec import decode_response, encode_request
from pybroker.wire.headers import RequestHeader, encode_request_header, parse_response_header
from pybroker.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from pybroker.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from pybroker.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from pybroker.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from pybroker.wire.messages.topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from pybroker.wire.messages.transactions import InitProducerIdRequest, InitProducerIdResponse
from pybroker.wire.schema import Message
from unit_tests.patience import PATIENCE_MS, PATIENCE_S, wait_until

ResponseT = TypeVar("ResponseT", bound=Message)
FOREVER_MS: Final = 10 * PATIENCE_MS
"""A `max_wait_ms` longer than the time limit of `Connection`, so that an answer proves that the
broker did not wait.
"""


class ConnectionClosed(Exception):
    """The broker closed the connection where an answer was expected."""


class Connection:
    """One TCP connection to a broker."""

    def __init__(self, bootstrap: str, client_id: str | None = "wire-test") -> None:
        host, _, port = bootstrap.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=PATIENCE_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._client_id = client_id
        self._correlation_id = 0

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def set_timeout(self, seconds: float) -> None:
        """Set the time limit of sending and receiving."""
        self._socket.settimeout(seconds)

    def end_sending(self) -> None:
        """Close the sending direction; answers may still arrive."""
        self._socket.shutdown(socket.SHUT_WR)

    def send_bytes(self, data: bytes) -> None:
        """Send raw bytes."""
        self._socket.sendall(data)

    def send_frame(self, frame: bytes) -> None:
        """Send a frame with its size in front."""
        self._socket.sendall(struct.pack(">i", len(frame)) + frame)

    def send(self, version: int, request: Message) -> int:
        """Send a request without waiting for the answer. Return the correlation id."""
        self._correlation_id += 1
        self.send_frame(frame_of(version, request, self._correlation_id, self._client_id))
        return self._correlation_id

    def receive_frame(self) -> memoryview:
        """Return the next answer, without its size. Raises ConnectionClosed."""
        (size,) = struct.unpack(">i", self._receive(4))
        return memoryview(self._receive(size))

    def _receive(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            try:
                part = self._socket.recv(size - len(data))
            except ConnectionResetError as error:
                raise ConnectionClosed("reset") from error
            if not part:
                raise ConnectionClosed(f"closed after {len(data)} of {size} bytes")
            data += part
        return bytes(data)

    def receive(self, version: int, response: type[ResponseT], correlation_id: int) -> ResponseT:
        """Return the next answer, which must belong to that request."""
        frame = self.receive_frame()
        api = next(api for api in APIS.values() if api.response is response)
        found, position = parse_response_header(frame, api.response_header_version(version))
        assert found == correlation_id, (
            f"received correlation id {found}, expected {correlation_id}"
        )
        message = decode_response(api, version, frame[position:])
        assert isinstance(message, response)
        return message

    def ask(self, version: int, request: Message, response: type[ResponseT]) -> ResponseT:
        """Send a request, and return its answer."""
        return self.receive(version, response, self.send(version, request))

    def is_closed_by_broker(self) -> bool:
        """Return whether the broker closes the connection without sending a further byte."""
        try:
            return self._socket.recv(1) == b""
        except ConnectionResetError:
            return True
        except TimeoutError:
            return False

    def says_nothing_for(self, seconds: float) -> bool:
        """Return whether the connection stays open without a byte from the broker for this time."""
        self._socket.settimeout(seconds)
        try:
            self._socket.recv(1, socket.MSG_PEEK)
            return False
        except TimeoutError:
            return True
        finally:
            self._socket.settimeout(PATIENCE_S)


def frame_of(
    version: int, request: Message, correlation_id: int = 1, client_id: str | None = "wire-test"
) -> bytes:
    """Return header and body of a request, without the size."""
    api = next(api for api in APIS.values() if api.request is type(request))
    header = RequestHeader(api.key, version, correlation_id, client_id)
    return encode_request_header(header, api.request_header_version(version)) + encode_request(
        api, version, request
    )


def newest(key: ApiKey) -> int:
    """Return the highest version of the API that pybroker supports."""
    return APIS[key].max_version


def batch_of(
    *values: bytes,
    timestamps: Sequence[int] = (),
    codec: Codec = Codec.NONE,
    producer: tuple[int, int] = (-1, -1),
    sequence: int = -1,
    key: bytes | None = b"key",
) -> bytes:
    """Return a record batch with these values. `producer` is (producer id, epoch). The timestamps
    are recent, because a broker drops the state of an idempotent producer with old batches at its
    next start.
    """
    builder = BatchBuilder(codec)
    for index, value in enumerate(values):
        timestamp = timestamps[index] if timestamps else int(time.time() * 1000)
        builder.append(timestamp, key, value)
    return builder.build(*producer, base_sequence=sequence)


def produce(
    connection: Connection,
    topic: str,
    records: bytes | None,
    *,
    partition: int = 0,
    acks: int = -1,
    version: int = 9,
) -> PartitionProduceResponse:
    """Append to one partition and return its result."""
    request = produce_request(topic, records, partition=partition, acks=acks)
    answer = connection.ask(version, request, ProduceResponse)
    assert [t.name for t in answer.responses] == [topic]
    assert [p.index for p in answer.responses[0].partition_responses] == [partition]
    return answer.responses[0].partition_responses[0]


def produce_request(
    topic: str, records: bytes | None, *, partition: int = 0, acks: int = -1
) -> ProduceRequest:
    """Return a Produce request for one partition."""
    data = PartitionProduceData(index=partition, records=records)
    return ProduceRequest(
        acks=acks,
        timeout_ms=10_000,
        topic_data=[TopicProduceData(name=topic, partition_data=[data])],
    )


def fetch_request(
    topic: str,
    offsets: Mapping[int, int],
    *,
    min_bytes: int = 0,
    max_wait_ms: int = 0,
    max_bytes: int = 50_000_000,
    partition_max_bytes: int = 10_000_000,
    leader_epoch: int = -1,
    isolation_level: int = 0,
    session: tuple[int, int] = (0, -1),
) -> FetchRequest:
    """Return a Fetch request for some partitions of a topic from these offsets. `session` is
    (session id, epoch).
    """
    partitions = [
        FetchPartition(
            partition=partition,
            current_leader_epoch=leader_epoch,
            fetch_offset=offset,
            partition_max_bytes=partition_max_bytes,
        )
        for partition, offset in offsets.items()
    ]
    return FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        isolation_level=isolation_level,
        session_id=session[0],
        session_epoch=session[1],
        topics=[FetchTopic(topic=topic, partitions=partitions)],
    )


def fetch(
    connection: Connection, request: FetchRequest, *, version: int = 12
) -> dict[int, PartitionData]:
    """Fetch from one topic. Return the results by partition."""
    answer = connection.ask(version, request, FetchResponse)
    assert answer.error_code == 0
    assert [t.topic for t in answer.responses] == [t.topic for t in request.topics]
    return {p.partition_index: p for p in answer.responses[0].partitions}


def fetch_one(
    connection: Connection, topic: str, offset: int, *, version: int = 12, leader_epoch: int = -1
) -> PartitionData:
    """Fetch partition 0 from that offset."""
    request = fetch_request(topic, {0: offset}, leader_epoch=leader_epoch)
    return fetch(connection, request, version=version)[0]


def log_end(connection: Connection, topic: str) -> int:
    """Return the high watermark of partition 0, from a Fetch response."""
    return fetch_one(connection, topic, 0).high_watermark


def list_offsets_request(
    topic: str, timestamp: int, *, partition: int = 0, isolation_level: int = 0
) -> ListOffsetsRequest:
    """Return a ListOffsets request for one partition."""
    wanted = ListOffsetsPartition(partition_index=partition, timestamp=timestamp)
    return ListOffsetsRequest(
        replica_id=-1,
        isolation_level=isolation_level,
        topics=[ListOffsetsTopic(name=topic, partitions=[wanted])],
    )


def create_topic(
    connection: Connection,
    topic: str,
    *,
    partitions: int = 1,
    configs: Mapping[str, str] | None = None,
) -> CreatableTopicResult:
    """Create a topic, and check that the result has no error."""
    wanted = CreatableTopic(
        name=topic,
        num_partitions=partitions,
        replication_factor=1,
        configs=[CreatableTopicConfig(name=k, value=v) for k, v in (configs or {}).items()],
    )
    result = create(connection, wanted)
    assert result.error_code == 0, result
    return result


def create(
    connection: Connection, wanted: CreatableTopic, *, validate_only: bool = False, version: int = 7
) -> CreatableTopicResult:
    """Create one topic. Return its result."""
    request = CreateTopicsRequest(topics=[wanted], timeout_ms=15_000, validate_only=validate_only)
    answer = connection.ask(version, request, CreateTopicsResponse)
    assert [t.name for t in answer.topics] == [wanted.name]
    return answer.topics[0]


def internal_topic(connection: Connection) -> str:
    """Create an internal topic and return its name."""
    name = "__transaction_state"
    made = create(connection, CreatableTopic(name=name, num_partitions=1, replication_factor=1))
    assert made.error_code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS), made
    return name


def metadata(
    connection: Connection, *topics: str, version: int = 12, auto_create: bool = False
) -> MetadataResponse:
    """Return the Metadata response for these topics."""
    request = MetadataRequest(
        topics=[MetadataRequestTopic(name=name) for name in topics],
        allow_auto_topic_creation=auto_create or version < 4,  # older versions imply it
    )
    return connection.ask(version, request, MetadataResponse)


def wait_for_leader(connection: Connection, topic: str) -> None:
    """Wait until all partitions of the topic have a leader, e.g. after a restart."""

    def is_led() -> bool:
        (found,) = metadata(connection, topic).topics
        return found.error_code == 0 and all(p.error_code == 0 for p in found.partitions)

    wait_until(is_led, what=f"{topic} has leaders")


def new_producer(
    connection: Connection, *, version: int = 4, timeout_ms: int = 0
) -> tuple[int, int]:
    """Return an id and epoch for an idempotent producer. Right after its start a broker may answer
    COORDINATOR_LOAD_IN_PROGRESS (14), until it has a block of ids.
    """
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=timeout_ms)
    answers = []

    def has_id() -> bool:
        answers.append(connection.ask(version, request, InitProducerIdResponse))
        return answers[-1].error_code != ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

    wait_until(has_id, what="a producer id")
    assert answers[-1].error_code == 0, answers[-1]
    return answers[-1].producer_id, answers[-1].producer_epoch
