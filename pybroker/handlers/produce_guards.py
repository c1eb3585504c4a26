"""The guards of transactional batches: before a transaction's first append to a partition, the
coordinator confirms that the partition is in the transaction (KIP-890). A transaction marker that
is appended meanwhile makes the confirmation void."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from pybroker.errors import BrokerError, ErrorCode
from pybroker.handlers.context import Services
from pybroker.model import TopicPartition
from pybroker.ports import Producer
from pybroker.records.batch import HEADER_SIZE, NO_PRODUCER_ID, TRANSACTIONAL_FLAG
from pybroker.replication.verification import RETRIABLE
from pybroker.storage.producer_state import EXEMPT, Verification
from pybroker.wire.messages.produce import ProduceRequest

_ATTRIBUTES_POSITION: Final = 22
"""The position of the low byte of a batch's attributes."""
_PRODUCER_POSITION: Final = 43
_PRODUCER: Final = struct.Struct(">qhi")
"""The producer id, the producer epoch and the first sequence in a batch header."""

_NOBODY: Final = Producer(-1, -1)


@dataclass(slots=True)
class Guards:
    """The guards (`Verification`) and the errors of one request's transactional batches. If a batch
    has a guard other than EXEMPT, the transaction coordinator must confirm the batch's partition
    before the append."""

    refusal: BrokerError | None = None
    """The error of all batches of the request, if it is refused as a whole."""
    by_partition: dict[TopicPartition, Verification] = field(default_factory=dict)
    """The guards of the batches that may begin a transaction (see `ProducerState.check`)."""
    errors: dict[TopicPartition, BrokerError] = field(default_factory=dict)
    """The errors of the batches for partitions that this broker does not lead, and of the batches
    that the coordinator has not confirmed."""
    producer: Producer = _NOBODY

    @property
    def unconfirmed(self) -> list[TopicPartition]:
        """The partitions for which the transaction coordinator must confirm that they are in the
        transaction."""
        return [key for key, guard in self.by_partition.items() if guard is not EXEMPT]

    def of(self, key: TopicPartition) -> Verification | None:
        """Return the guard (verification state, KIP-890) of the partition's batch. Return None if
        the batch does not begin a transaction in the partition. Return EXEMPT if verification is
        disabled. Raise BrokerError if the batch must not be appended."""
        if key in self.errors:
            raise self.errors[key]
        return self.by_partition.get(key)


NO_GUARDS: Final = Guards()
"""The guards of a request without transactional batches."""


def begin_guards(services: Services, message: ProduceRequest) -> Guards:
    """Return the guards (verification states, KIP-890) of the request's transactional batches. As
    in Kafka, the whole request is refused if it has such batches but no transactional id, or if
    these batches come from two producers."""
    batches = _transactional_batches(message)
    if not batches:
        return NO_GUARDS
    if message.transactional_id is None:
        code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        detail = "the Produce request has transactional batches, but no transactional id"
        return Guards(BrokerError(code, detail))
    producer = batches[0][1]
    if any(each[1] != producer for each in batches):
        code = ErrorCode.INVALID_PRODUCER_ID_MAPPING
        detail = (
            "the transactional batches of the Produce request have several producer "
            "ids or producer epochs, expected one of each"
        )
        return Guards(BrokerError(code, detail))
    guards = Guards(producer=producer)
    now_ms = services.clock.wall_ms()
    for key, _, sequence in batches:
        try:
            partition = services.replicas.leader(key)
        except BrokerError as error:
            guards.errors[key] = error
            continue
        guard = services.verification.begin(partition, producer, sequence, now_ms)
        if guard is not None:
            guards.by_partition[key] = guard
    return guards


async def confirm_guards(services: Services, message: ProduceRequest, guards: Guards) -> None:
    """Ask the transaction coordinator whether the partitions `guards.unconfirmed` are in the
    transaction. Add an error to `guards.errors` for each partition that the coordinator does not
    confirm."""
    assert message.transactional_id is not None
    found = await services.verification.confirm(
        message.transactional_id, guards.producer, guards.unconfirmed
    )
    guards.errors.update(_as_produce_errors(found))


def confirm_guards_at_once(services: Services, message: ProduceRequest, guards: Guards) -> bool:
    """Do the same as `confirm_guards` without a wait, and return True. If a wait is needed, do
    nothing and return False."""
    assert message.transactional_id is not None
    found = services.verification.confirm_at_once(
        message.transactional_id, guards.producer, guards.unconfirmed
    )
    if found is None:
        return False
    guards.errors.update(_as_produce_errors(found))
    return True


def _as_produce_errors(
    found: Mapping[TopicPartition, ErrorCode],
) -> Mapping[TopicPartition, BrokerError]:
    """Return the error of each batch. NOT_ENOUGH_REPLICAS replaces each retriable code, because
    every producer, even an old one, retries after NOT_ENOUGH_REPLICAS."""
    errors = {}
    for key, code in found.items():
        detail = f"{key}: the coordinator did not confirm the transaction: {code.name}"
        if code in RETRIABLE:
            code = ErrorCode.NOT_ENOUGH_REPLICAS
        elif code is ErrorCode.INVALID_TXN_STATE:
            detail = f"{key} is not in the transaction of the producer"
        errors[key] = BrokerError(code, detail)
    return errors


def _transactional_batches(
    message: ProduceRequest,
) -> list[tuple[TopicPartition, Producer, int]]:
    """Return the partition, the producer and the first sequence of each transactional batch. The
    checksums of the batches are not checked here."""
    found = []
    for topic in message.topic_data:
        for part in topic.partition_data:
            data = part.records
            if (
                data is not None
                and len(data) >= HEADER_SIZE
                and data[_ATTRIBUTES_POSITION] & TRANSACTIONAL_FLAG
            ):
                producer_id, epoch, sequence = _PRODUCER.unpack_from(data, _PRODUCER_POSITION)
                if producer_id > NO_PRODUCER_ID:
                    key = TopicPartition(topic.name, part.index)
                    found.append((key, Producer(producer_id, epoch), sequence))
    return found
