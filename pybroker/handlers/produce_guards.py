"""The guards of transactional batches: before a transaction's first append to a partition, the
coordinator confirms that the partition is in the transaction (KIP-890). A transaction marker that
is appended meanwhile makes the confirmation void."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from pybroker.errors import BrokerError, ErrorCode
from pybroker.handlers.context import Services
from pybroker.model import TopicPartition
from pybroker.ports import Producer
from pybroker.records.batch import HEADER, HEADER_SIZE, TRANSACTIONAL_FLAG, BatchHeader
from pybroker.replication.verification import RETRIABLE
from pybroker.storage.producer_state import EXEMPT, Verification
from pybroker.wire.messages.produce import ProduceRequest

_ATTRIBUTES_POSITION: Final = 22
"""The position of the low byte of a batch's attributes."""

_NOBODY: Final = Producer(-1, -1)


@dataclass(slots=True)
class Guards:
    """The guards (`Verification`) and the errors of one request's transactional batches. The
    coordinator must confirm a batch's partition, unless the batch's guard is EXEMPT or None."""

    refusal: BrokerError | None = None
    """The error of all batches of the request, if it is refused as a whole."""
    by_partition: dict[TopicPartition, Verification | None] = field(default_factory=dict)
    """The guard of each partition's batch (see `ProducerState.check`)."""
    errors: dict[TopicPartition, BrokerError] = field(default_factory=dict)
    """The errors of the batches for partitions that this broker does not lead, and of the batches
    that the coordinator has not confirmed."""
    producer: Producer = _NOBODY

    @property
    def unconfirmed(self) -> list[TopicPartition]:
        """The transaction coordinator has to confirm that these partitions are in the
        transaction."""
        guards = self.by_partition.items()
        return [key for key, guard in guards if guard is not None and guard is not EXEMPT]

    def of(self, key: TopicPartition) -> Verification | None:
        """Return the guard of the partition's batch: EXEMPT if verification is disabled, None if
        the transaction is already open in the partition. Raise BrokerError if the batch must not be
        appended."""
        error = self.errors.get(key)
        if error is not None:
            raise error
        return self.by_partition[key]


NO_GUARDS: Final = Guards()
"""The guards of a request without transactional batches."""


def begin_guards(services: Services, message: ProduceRequest) -> Guards:
    """Return the guards (verification states, KIP-890) of the request's transactional batches. As
    in Kafka, the whole request is refused if these batches have no transactional id or come from
    two producers."""
    headers = _transactional_headers(message)
    if not headers:
        return NO_GUARDS
    if message.transactional_id is None:
        code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        detail = "the Produce request has transactional batches, but no transactional id"
        return Guards(BrokerError(code, detail))
    producers = {(each.producer_id, each.producer_epoch) for each in headers.values()}
    if len(producers) > 1:
        code = ErrorCode.INVALID_PRODUCER_ID_MAPPING
        detail = (
            "the transactional batches of the Produce request have several producer "
            "ids or producer epochs, expected one of each"
        )
        return Guards(BrokerError(code, detail))
    producer = Producer(*producers.pop())
    guards = Guards(producer=producer)
    now_ms = services.clock.wall_ms()
    for key, header in headers.items():
        try:
            partition = services.replicas.leader(key)
        except BrokerError as error:
            guards.errors[key] = error
            continue
        guards.by_partition[key] = services.verification.begin(
            partition, producer, header.base_sequence, now_ms
        )
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
    """Do what `confirm_guards` does, if that needs no wait. Return whether it is done."""
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


def _transactional_headers(message: ProduceRequest) -> dict[TopicPartition, BatchHeader]:
    """Return the headers of the transactional batches. The checksums of the batches are not checked
    here."""
    found: dict[TopicPartition, BatchHeader] = {}
    for topic in message.topic_data:
        for part in topic.partition_data:
            data = part.records
            if (
                data is not None
                and len(data) >= HEADER_SIZE
                and data[_ATTRIBUTES_POSITION] & TRANSACTIONAL_FLAG
            ):
                header = BatchHeader._make(HEADER.unpack_from(data))
                if header.has_producer:
                    found.setdefault(TopicPartition(topic.name, part.index), header)
    return found
