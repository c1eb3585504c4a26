"""Tests of batches, markers and committed offsets that do not belong to the open transaction, and
of what read_committed consumers see."""

from __future__ import annotations

from typing import Any, Final

import pytest

from integration_tests import group_requests
from integration_tests.transaction_requests import (
    FOREIGN,
    Producer,
    aborted,
    add,
    add_offsets,
    commit_offsets,
    committed,
    end,
    last_stable,
    mark,
    started,
    state_of,
    transactional_batch,
    wait_for_end,
    write,
    write_once,
)
from integration_tests.wire_client import (
    Connection,
    batch_of,
    fetch,
    fetch_request,
    log_end,
    produce,
)
from pybroker.errors import ErrorCode
from pybroker.records.batch import iter_headers
from pybroker.wire.messages.fetch import PartitionData
from pybroker.wire.messages.offsets import (
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
    OffsetFetchResponse,
)
from unit_tests.patience import wait_until

NONE: Final = ErrorCode.NONE
FENCED: Final = ErrorCode.PRODUCER_FENCED
NOT_MAPPED: Final = ErrorCode.INVALID_PRODUCER_ID_MAPPING
WRONG_STATE: Final = ErrorCode.INVALID_TXN_STATE


def values_in(found: PartitionData) -> list[int]:
    """Return the base offsets of the fetched batches that are not control batches."""
    assert found.records is not None
    headers = iter_headers(memoryview(bytes(found.records)))
    return [header.base_offset for _, header in headers if not header.is_control]


# batches


def test_batch_for_a_partition_outside_the_transaction_gets_error_48(
    connection: Connection, topic: str, producer: Producer
) -> None:
    assert write(connection, producer, topic, b"none is open") == WRONG_STATE
    assert add(connection, producer, topic, 1) == NONE
    assert write(connection, producer, topic, b"another partition") == WRONG_STATE
    assert write(connection, producer, topic, b"value", partition=1) == NONE
    assert end(connection, producer, commit=True) == NONE
    wait_until(lambda: state_of(connection, producer) == "CompleteCommit", what="it is complete")
    late = write(connection, producer, topic, b"late", partition=1, sequence=1)
    assert late == WRONG_STATE
    assert log_end(connection, topic) == 0


def test_batches_of_other_producers_do_not_join_the_transaction(
    connection: Connection, topic: str, producer: Producer
) -> None:
    present = started(connection, topic)
    assert add(connection, present, topic) == NONE
    other_epoch = ErrorCode.INVALID_PRODUCER_EPOCH
    assert write(connection, producer, topic, b"old epoch") == other_epoch
    assert write(connection, present.at(2), topic, b"later epoch") == other_epoch
    foreign = present._replace(producer_id=FOREIGN)
    assert write(connection, foreign, topic, b"foreign") == NOT_MAPPED
    unknown = present._replace(transactional_id=f"{topic}-unknown")
    assert write(connection, unknown, topic, b"unknown") == NOT_MAPPED
    assert log_end(connection, topic) == 0
    assert write(connection, present, topic, b"value") == NONE
    assert write(connection, producer, topic, b"old epoch") == other_epoch
    assert log_end(connection, topic) == 1
    assert end(connection, present, commit=True) == NONE


def test_transactional_batch_without_transactional_id_gets_error_53(
    connection: Connection, topic: str, producer: Producer
) -> None:
    assert add(connection, producer, topic) == NONE
    found = write_once(connection, topic, transactional_batch(producer, b"value"), None)
    assert found.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert log_end(connection, topic) == 0


def test_batch_outside_a_transaction_gets_error_48_while_one_is_open(
    connection: Connection, topic: str, producer: Producer
) -> None:
    assert add(connection, producer, topic) == NONE
    assert write(connection, producer, topic, b"value") == NONE
    plain = batch_of(b"plain", producer=producer[1:], sequence=1)
    assert produce(connection, topic, plain).error_code == WRONG_STATE
    assert write(connection, producer, topic, b"next", sequence=1) == NONE
    assert end(connection, producer, commit=True) == NONE
    wait_for_end(connection, topic, 3)


# markers


def test_marker_of_an_earlier_coordinator_gets_error_52(
    connection: Connection, topic: str, producer: Producer
) -> None:
    def ends(coordinator_epoch: int, producer: Producer = producer) -> int:
        return mark(connection, producer, topic, commit=False, coordinator_epoch=coordinator_epoch)

    assert add(connection, producer, topic) == NONE
    assert write(connection, producer, topic, b"value") == NONE
    assert ends(7) == NONE
    assert ends(6) == ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert ends(7) == NONE
    assert ends(8) == NONE
    assert ends(7) == ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert last_stable(connection, topic) == log_end(connection, topic) == 4


def test_invalid_markers_are_refused(
    connection: Connection, topic: str, producer: Producer
) -> None:
    missing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    some: dict[str, Any] = {"commit": False, "coordinator_epoch": 0}
    for number in (3, -1):
        assert mark(connection, producer, topic, partition=number, **some) == missing
    assert mark(connection, producer, f"{topic}-missing", **some) == missing
    present = producer.at(2)
    assert mark(connection, present, topic, **some) == NONE
    old = mark(connection, producer.at(1), topic, **some)
    assert old == ErrorCode.INVALID_PRODUCER_EPOCH
    assert log_end(connection, topic) == 1


# offsets


def stable_offset(connection: Connection, group: str, topic: str) -> tuple[int, int]:
    """Return the code and the committed offset of partition 0 for a consumer that waits for the end
    of transactions."""
    topics = [OffsetFetchRequestTopic(name=topic, partition_indexes=[0])]
    request = OffsetFetchRequest(group_id=group, topics=topics, require_stable=True)
    (found,) = connection.ask(7, request, OffsetFetchResponse).topics[0].partitions
    return found.error_code, found.committed_offset


@pytest.mark.parametrize("commit", [True, False])
def test_offsets_take_effect_at_the_commit(
    connection: Connection, topic: str, group: str, producer: Producer, commit: bool
) -> None:
    offsets = {(topic, 0): 5}
    assert add_offsets(connection, producer, group) == NONE
    assert commit_offsets(connection, producer, group, offsets) == {(topic, 0): NONE}
    unstable = ErrorCode.UNSTABLE_OFFSET_COMMIT
    assert stable_offset(connection, group, topic) == (unstable, -1)
    assert end(connection, producer, commit=commit) == NONE
    wait_until(
        lambda: stable_offset(connection, group, topic)[0] == NONE, what="the offsets are stable"
    )
    assert stable_offset(connection, group, topic) == (NONE, 5 if commit else -1)


@pytest.mark.parametrize("version", range(4))
def test_offsets_outside_a_transaction_are_refused(
    connection: Connection, topic: str, group: str, producer: Producer, version: int
) -> None:
    key, offsets = (topic, 0), {(topic, 0): 5}

    def code(asking: Producer) -> int:
        return commit_offsets(connection, asking, group, offsets, version=version)[key]

    assert code(producer) == WRONG_STATE
    assert add(connection, producer, topic) == NONE
    assert code(producer) == WRONG_STATE
    assert add_offsets(connection, producer, group) == NONE
    assert code(producer.at(1)) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert code(producer._replace(producer_id=FOREIGN)) == NOT_MAPPED
    assert code(producer._replace(transactional_id=f"{topic}-unknown")) == NOT_MAPPED
    assert code(producer) == NONE
    assert end(connection, producer, commit=True) == NONE


def test_offsets_need_the_present_member_of_the_group(
    connection: Connection, topic: str, group: str, producer: Producer
) -> None:
    joined = group_requests.stable(connection, group, version=5, group_instance_id="i")
    member, generation = joined.member_id, joined.generation_id
    assert add_offsets(connection, producer, group) == NONE

    def code(**named: Any) -> int:
        found = commit_offsets(connection, producer, group, {(topic, 0): 5}, **named)
        return found[topic, 0]

    unknown, fenced = ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID
    old = ErrorCode.ILLEGAL_GENERATION
    assert code(member="ghost", generation=generation) == unknown
    assert code(member="ghost", generation=generation, instance="i") == fenced
    assert code(member=member, generation=generation, instance="j") == unknown
    assert code(member=member, generation=generation - 1) == old
    assert code(member=member, generation=generation + 1) == old
    assert code(member=member, generation=-1) == old
    assert code(member=member, generation=generation) == NONE
    assert code(member=member, generation=generation, instance="i") == NONE
    assert code() == NONE, "producers before version 3 name no member"
    assert end(connection, producer, commit=True) == NONE
    wait_until(
        lambda: stable_offset(connection, group, topic) == (NONE, 5), what="the offset is stable"
    )
    assert group_requests.leave(connection, group, "", "i") == [0]


def test_offsets_of_unknown_partitions_get_error_3(
    connection: Connection, topic: str, group: str, producer: Producer
) -> None:
    assert add_offsets(connection, producer, group) == NONE
    offsets = {(topic, 0): 5, (topic, 3): 5, (f"{topic}-missing", 0): 5, (topic, -1): 5}
    missing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert commit_offsets(connection, producer, group, offsets) == {
        (topic, 0): NONE,
        (topic, 3): missing,
        (f"{topic}-missing", 0): missing,
        (topic, -1): missing,
    }
    assert end(connection, producer, commit=False) == NONE


# isolation


def test_committed_consumers_read_up_to_the_first_open_transaction(
    connection: Connection, topic: str, producer: Producer
) -> None:
    assert produce(connection, topic, batch_of(b"0")).error_code == NONE
    assert add(connection, producer, topic) == NONE
    assert write(connection, producer, topic, b"1", b"2") == NONE
    assert produce(connection, topic, batch_of(b"3")).error_code == NONE
    found = committed(connection, topic)
    assert (found.last_stable_offset, found.high_watermark) == (1, 4)
    assert (values_in(found), found.aborted_transactions) == ([0], [])
    assert last_stable(connection, topic) == 1
    beyond = committed(connection, topic, 1)
    assert (beyond.error_code, beyond.records or b"") == (NONE, b"")
    everything = fetch(connection, fetch_request(topic, {0: 0}))[0]
    assert (values_in(everything), everything.last_stable_offset) == ([0, 1, 3], 1)
    assert everything.aborted_transactions is None
    assert end(connection, producer, commit=True) == NONE
    wait_for_end(connection, topic, 5)
    found = committed(connection, topic)
    assert (values_in(found), found.aborted_transactions) == ([0, 1, 3], [])


def test_committed_consumers_are_told_the_aborted_transactions(
    connection: Connection, topic: str, producer: Producer
) -> None:
    for number in range(2):
        assert add(connection, producer, topic) == NONE
        assert write(connection, producer, topic, b"value", sequence=number) == NONE
        assert end(connection, producer, commit=False) == NONE
        wait_for_end(connection, topic, 2 * number + 2)

    me = producer.producer_id
    assert aborted(connection, topic, 0) == [(me, 0), (me, 2)]
    assert aborted(connection, topic, 1) == [(me, 0), (me, 2)]
    assert aborted(connection, topic, 2) == [(me, 2)]
    assert aborted(connection, topic, 4) == []
