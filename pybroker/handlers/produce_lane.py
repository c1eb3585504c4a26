"""The fast lane of Produce: handles requests that have exactly one batch, and acks=1 or acks=all.
A transactional batch takes the lane if its producer has an open transaction in the partition:
then the transaction coordinator need not confirm the transaction.

The lane reads and writes frames without message objects. All other requests, and invalid batches,
are left to `produce.py`. The responses are byte for byte those of `produce.py`.
"""

from __future__ import annotations

import struct
from functools import partial
from typing import Final, NamedTuple

from pybroker.deferred import Deferred
from pybroker.errors import BrokerError, StorageError
from pybroker.handlers.acknowledgement import Waiting, when_acknowledged
from pybroker.handlers.context import Request, Services
from pybroker.handlers.produce import answer_failure, answer_unacknowledged
from pybroker.model import TopicPartition
from pybroker.ports import Buffer
from pybroker.records.batch import TRANSACTIONAL_FLAG
from pybroker.records.validate import validate_quickly
from pybroker.replication.authority import NEEDED
from pybroker.replication.partition import Partition
from pybroker.storage.log_parts import AppendResult
from pybroker.wire.headers import RequestHeader
from pybroker.wire.messages.produce import ProduceResponse

Taken = list[Buffer] | tuple[Request, ProduceResponse]
"""The frame of a response. If the response has an error: the request, and the response, which the
caller encodes."""

_FIRST_VERSION: Final = 3
_FLEXIBLE_VERSION: Final = 9

_HEADER: Final = struct.Struct(">hhih")
# Up to version 8: length of the transactional id (-1: no id), acks, timeout, topics, length of the
# name. The id is between the first two fields: a request with an id is read again at the id's end.
_BEFORE_NAME: Final = struct.Struct(">hhiih")
_AFTER_NAME: Final = struct.Struct(">iii")
# Version 9, whose lengths are one larger than what they count: tagged fields of the header, length
# of the transactional id, acks, timeout, topics, length of the name. The id is before the acks.
_BEFORE_COMPACT_NAME: Final = struct.Struct(">BBhiBB")
_AFTER_COMPACT_NAME: Final = struct.Struct(">Bi")
_NO_TAGGED_FIELDS: Final = b"\0\0\0"

_ANSWER: Final = struct.Struct(">iii")
_COMPACT_ANSWER: Final = struct.Struct(">iiBB")
# Partitions, index, error, first offset, append time, log start (5+), record errors and error
# message (8+), throttle time.
_RESULT: Final = {
    3: struct.Struct(">iihqqi"),
    4: struct.Struct(">iihqqi"),
    5: struct.Struct(">iihqqqi"),
    6: struct.Struct(">iihqqqi"),
    7: struct.Struct(">iihqqqi"),
    8: struct.Struct(">iihqqqihi"),
}
_COMPACT_RESULT: Final = struct.Struct(">BihqqqBBBBiB")
_FIRST_WITH_LOG_START: Final = 5
_FIRST_WITH_MESSAGE: Final = 8


class Parsed(NamedTuple):
    """The fields of a Produce frame with one batch. `name` is the topic name with its length
    prefix; `start` and `end` are the batch's positions in the frame."""

    version: int
    correlation_id: int
    client_id: str
    transactional_id: str | None
    acks: int
    timeout_ms: int
    name: bytes
    topic: bytes
    partition: int
    start: int
    end: int


def parse(frame: memoryview) -> Parsed | None:
    """Return the fields of a request frame (without its size), or None if the fast lane cannot
    handle the request."""
    try:
        key, version, correlation_id, client_length = _HEADER.unpack_from(frame)
        at = 10 + client_length
        if key or client_length < 0:
            return None
        client_id = str(frame[10:at], "utf-8")
        if version == _FLEXIBLE_VERSION:
            return _parse_compact(frame, version, correlation_id, client_id, at)
        if not _FIRST_VERSION <= version < _FLEXIBLE_VERSION:
            return None
        id_length, acks, timeout_ms, topics, length = _BEFORE_NAME.unpack_from(frame, at)
        transactional_id = None
        if id_length >= 0:
            transactional_id = str(frame[at + 2 : at + 2 + id_length], "utf-8")
            at += id_length
            _, acks, timeout_ms, topics, length = _BEFORE_NAME.unpack_from(frame, at)
        name_at = at + 14
        name_end = name_at + length
        partitions, index, size = _AFTER_NAME.unpack_from(frame, name_end)
    except (struct.error, UnicodeDecodeError):
        return None
    start = name_end + 12
    if start + size != len(frame) or id_length < -1 or topics != 1 or partitions != 1 or length < 1:
        return None
    name = bytes(frame[name_at - 2 : name_end])
    end = start + size
    fields = (
        version,
        correlation_id,
        client_id,
        transactional_id,
        acks,
        timeout_ms,
        name,
        name[2:],
        index,
        start,
        end,
    )
    return tuple.__new__(Parsed, fields)  # without a Python-level __new__


def _parse_compact(
    frame: memoryview, version: int, correlation_id: int, client_id: str, at: int
) -> Parsed | None:
    tagged, id_length, acks, timeout_ms, topics, length = _BEFORE_COMPACT_NAME.unpack_from(
        frame, at
    )
    transactional_id = None
    if 0 < id_length < 0x80:
        transactional_id = str(frame[at + 2 : at + 1 + id_length], "utf-8")
        at += id_length - 1
        _, _, acks, timeout_ms, topics, length = _BEFORE_COMPACT_NAME.unpack_from(frame, at)
    name_at = at + 10
    name_end = name_at + length - 1
    partitions, index = _AFTER_COMPACT_NAME.unpack_from(frame, name_end)
    position = name_end + 5
    size = shift = 0
    for octet in frame[position : position + 4]:
        size |= (octet & 0x7F) << shift
        shift += 7
        if octet < 0x80:
            break
    else:
        return None
    start = position + shift // 7
    end = start + size - 1
    if (
        tagged
        or id_length >= 0x80
        or topics != 2
        or partitions != 2
        or not 2 <= length < 0x80
        or (shift > 7 and not octet)
        or end + 3 != len(frame)
        or bytes(frame[end:]) != _NO_TAGGED_FIELDS
    ):
        return None
    name = bytes(frame[name_at - 1 : name_end])
    fields = (
        version,
        correlation_id,
        client_id,
        transactional_id,
        acks,
        timeout_ms,
        name,
        name[1:],
        index,
        start,
        end,
    )
    return tuple.__new__(Parsed, fields)


class ProduceLane:
    """Answers Produce requests that have exactly one batch, and acks=1 or acks=all. Leaves all
    other requests, invalid batches, and the first batch of a transaction to `produce.py`."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._replicas = services.replicas
        self._partitions = services.replicas.by_topic
        self._wall_ms = services.clock.wall_ms
        self._needed = NEEDED["Produce with acks 0 or 1"]

    def answer(self, frame: memoryview) -> Taken | Deferred[Taken] | None:
        """Append the batch and return the answer. Return None if the fast lane cannot handle the
        request; nothing is then appended."""
        parsed = parse(frame)
        if parsed is None:
            return None
        version, correlation_id, _, transactional_id, acks, _, name, topic, index, start, end = (
            parsed
        )
        if acks != 1 and acks != -1:
            return None
        partitions = self._partitions.get(topic)
        partition = None if partitions is None else partitions.get(index)
        needed = self._needed
        if partition is None or partition.granted < needed or self._replicas.lease < needed:
            return None
        if partition.log.epoch_file.changed:  # a thread has to write the leader epoch first
            return None
        data, now_ms = frame[start:end], self._wall_ms()
        header = validate_quickly(data, partition.batch_rules(version), now_ms)
        if header is None:
            return None
        if header.attributes & TRANSACTIONAL_FLAG and (
            transactional_id is None
            or not partition.log.producers.has_transaction(header.producer_id)
        ):
            return None
        try:
            appended = partition.append(data, header, acks=acks, now_ms=now_ms)
        except (BrokerError, StorageError) as error:
            return _request(parsed), answer_failure(self._services, partition, error)
        if partition.is_replicated:
            self._replicas.appended(partition.topic_partition, end - start)
        if partition.high_watermark > appended.last_offset:
            self._replicas.became_readable(partition.topic_partition, end - start)
        elif acks == -1 or partition.log.durable_end <= appended.last_offset:
            return self._answer_later(parsed, partition, appended)
        return [_encode(version, correlation_id, name, index, appended)]

    def _answer_later(
        self, parsed: Parsed, partition: Partition, appended: AppendResult
    ) -> Taken | Deferred[Taken]:
        errors: list[BrokerError] = []
        end_offset = appended.last_offset + 1
        waiting = Waiting(partition, partition.leading_since, end_offset, parsed.acks, errors)
        answered = when_acknowledged(
            self._services, [waiting], parsed.timeout_ms, _note_error, errors
        )
        answer = partial(_answer, parsed, partition, appended)
        return answered.then(answer) if isinstance(answered, Deferred) else answer(answered)


def _note_error(key: TopicPartition, errors: list[BrokerError], error: BrokerError) -> None:
    errors.append(error)


def _answer(
    parsed: Parsed, partition: Partition, appended: AppendResult, errors: list[BrokerError]
) -> Taken:
    """Return the answer to a request whose batch is acknowledged (`errors` is empty) or has
    failed."""
    if errors:
        return _request(parsed), answer_unacknowledged(partition, appended, errors[0])
    name, index = parsed.name, parsed.partition
    return [_encode(parsed.version, parsed.correlation_id, name, index, appended)]


def _request(parsed: Parsed) -> Request:
    header = RequestHeader(0, parsed.version, parsed.correlation_id, parsed.client_id)
    return Request(header, "", "")


def _encode(
    version: int, correlation_id: int, name: bytes, index: int, appended: AppendResult
) -> bytes:
    first, _, time_ms, log_start, _ = appended
    if version == _FLEXIBLE_VERSION:
        result = _COMPACT_RESULT.pack(2, index, 0, first, time_ms, log_start, 1, 0, 0, 0, 0, 0)
        size = 6 + len(name) + len(result)
        return _COMPACT_ANSWER.pack(size, correlation_id, 0, 2) + name + result
    layout = _RESULT[version]
    if version < _FIRST_WITH_LOG_START:
        result = layout.pack(1, index, 0, first, time_ms, 0)
    elif version < _FIRST_WITH_MESSAGE:
        result = layout.pack(1, index, 0, first, time_ms, log_start, 0)
    else:
        result = layout.pack(1, index, 0, first, time_ms, log_start, 0, -1, 0)
    return _ANSWER.pack(8 + len(name) + len(result), correlation_id, 1) + name + result
