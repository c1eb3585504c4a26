"""Tests of the requests of transactional producers at a whole broker: versions, error codes, and
the records of __transaction_state.

No test waits for markers: other tests write them to the partitions."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pybroker.coordinator.runtime.shard import StoredRecord
from pybroker.coordinator.transactions.records import decode_key, decode_value
from pybroker.coordinator.zookeeper import paths
from pybroker.errors import ErrorCode, MalformedInput
from pybroker.model import TopicPartition
from pybroker.wire.api import ApiKey
from pybroker.wire.messages.groups import FindCoordinatorRequest
from pybroker.wire.messages.transaction_admin import (
    DescribedTransaction,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from pybroker.wire.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from unit_tests.coordinator.runtime.vocabulary import stored_in
from unit_tests.coordinator.transactions.stage import NOBODY
from unit_tests.handlers.bench import BROKER_ID, Bench
from unit_tests.patience import in_time

TOPIC = "__transaction_state"
OPTIONS = {
    "transaction.state.log.num.partitions": "2",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.segment.bytes": "1000000",
    "offsets.topic.num.partitions": "2",
    "offsets.topic.replication.factor": "1",
}
Producer = tuple[int, int]
LOADING = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
)
FENCED, OLD_EPOCH = ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Bench]:
    async with Bench(tmp_path, properties=OPTIONS) as bench:
        await bench.create("t", 2)
        yield bench


async def find(bench: Bench, name: str, version: int = 3) -> tuple[int, int]:
    request = FindCoordinatorRequest(key=name, key_type=1)
    if version == 4:
        request = FindCoordinatorRequest(coordinator_keys=[name], key_type=1)
    answer = await bench.ask(ApiKey.FIND_COORDINATOR, version, request)
    found = answer.coordinators[0] if version == 4 else answer
    return found.error_code, found.node_id


async def init(
    bench: Bench,
    name: str | None = "p",
    version: int = 4,
    *,
    timeout_ms: int = 60_000,
    expected: Producer = NOBODY,
) -> InitProducerIdResponse:
    request = InitProducerIdRequest(
        transactional_id=name,
        transaction_timeout_ms=timeout_ms,
        producer_id=expected[0],
        producer_epoch=expected[1],
    )
    answer: InitProducerIdResponse = await bench.ask(ApiKey.INIT_PRODUCER_ID, version, request)
    return answer


async def begin(bench: Bench, name: str = "p") -> Producer:
    """Return the identity of a new producer."""
    await find(bench, name)
    answer = await init(bench, name)
    assert answer.error_code == 0
    return answer.producer_id, answer.producer_epoch


async def add(
    bench: Bench,
    producer: Producer,
    topics: dict[str, list[int]],
    version: int = 3,
    name: str = "p",
) -> list[list[int]]:
    """Return the codes of the partitions of each topic."""
    request = AddPartitionsToTxnRequest(
        transactional_id=name,
        producer_id=producer[0],
        producer_epoch=producer[1],
        topics=[
            AddPartitionsToTxnTopic(name=topic, partitions=numbers)
            for topic, numbers in topics.items()
        ],
    )
    answer: AddPartitionsToTxnResponse = await bench.ask(
        ApiKey.ADD_PARTITIONS_TO_TXN, version, request
    )
    assert [topic.name for topic in answer.results] == list(topics)
    assert [[row.partition_index for row in each.results] for each in answer.results] == [
        *topics.values()
    ]
    return [[row.error_code for row in topic.results] for topic in answer.results]


async def verify(
    bench: Bench, producer: Producer, *numbers: int, name: str = "p", listener: str = "PLAINTEXT"
) -> AddPartitionsToTxnResponse:
    request = AddPartitionsToTxnRequest(
        transactions=[
            AddPartitionsToTxnTransaction(
                transactional_id=name,
                producer_id=producer[0],
                producer_epoch=producer[1],
                verify_only=True,
                topics=[AddPartitionsToTxnTopic(name="t", partitions=list(numbers))],
            )
        ]
    )
    answer: AddPartitionsToTxnResponse = await bench.ask(
        ApiKey.ADD_PARTITIONS_TO_TXN, 4, request, listener=listener
    )
    return answer


async def add_offsets(bench: Bench, producer: Producer, version: int = 3) -> int:
    request = AddOffsetsToTxnRequest(
        transactional_id="p", producer_id=producer[0], producer_epoch=producer[1], group_id="g"
    )
    answer: AddOffsetsToTxnResponse = await bench.ask(ApiKey.ADD_OFFSETS_TO_TXN, version, request)
    return answer.error_code


async def end(
    bench: Bench, producer: Producer, version: int = 3, *, name: str = "p", is_commit: bool = True
) -> int:
    request = EndTxnRequest(
        transactional_id=name,
        producer_id=producer[0],
        producer_epoch=producer[1],
        committed=is_commit,
    )
    answer: EndTxnResponse = await bench.ask(ApiKey.END_TXN, version, request)
    return answer.error_code


async def described(bench: Bench, *names: str) -> DescribeTransactionsResponse:
    request = DescribeTransactionsRequest(transactional_ids=list(names))
    answer: DescribeTransactionsResponse = await bench.ask(ApiKey.DESCRIBE_TRANSACTIONS, 0, request)
    assert [each.transactional_id for each in answer.transaction_states] == list(names)
    return answer


@pytest.mark.parametrize("version", range(1, 5))
async def test_first_search_for_a_coordinator_creates_kafkas_topic(
    tmp_path: Path, version: int
) -> None:
    async with Bench(tmp_path, properties=OPTIONS) as bench:
        assert await find(bench, "p", version) == (ErrorCode.NONE, BROKER_ID)
        topic = bench.app.metadata.topic(TOPIC)
        assert topic is not None and len(topic.partitions) == 2
        node = bench.tree.node(paths.topic_config(TOPIC))
        assert node is not None
        assert json.loads(node[0])["config"] == {
            "cleanup.policy": "compact",
            "compression.type": "uncompressed",
            "min.insync.replicas": "1",
            "segment.bytes": "1000000",
            "unclean.leader.election.enable": "false",
        }


async def test_request_before_the_topic_exists_is_repeated(broker: Bench) -> None:
    answer = await init(broker, "p")
    assert answer.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert (answer.producer_id, answer.producer_epoch) == (-1, -1)


@pytest.mark.parametrize("version", range(5))
async def test_producer_gets_the_next_epoch_in_every_version(broker: Bench, version: int) -> None:
    producer_id, epoch = await begin(broker)
    answer = await init(broker, "p", version)
    assert (answer.error_code, answer.producer_id) == (0, producer_id)
    assert answer.producer_epoch == epoch + 1


@pytest.mark.parametrize(("version", "code"), [(3, OLD_EPOCH), (4, FENCED)])
async def test_producer_with_an_old_epoch_is_fenced(
    broker: Bench, version: int, code: ErrorCode
) -> None:
    old = await begin(broker)
    await begin(broker)
    assert (await init(broker, "p", version, expected=old)).error_code == code


async def test_bad_requests_for_producer_ids_get_kafkas_codes(broker: Bench) -> None:
    await find(broker, "p")
    assert (await init(broker, "")).error_code == ErrorCode.INVALID_REQUEST
    for timeout_ms in (0, -1, 900_001):
        refused = await init(broker, timeout_ms=timeout_ms)
        assert refused.error_code == ErrorCode.INVALID_TRANSACTION_TIMEOUT
    for name in ("p", None):
        for expected in ((5, -1), (-1, 5)):
            refused = await init(broker, name, expected=expected)
            assert refused.error_code == ErrorCode.INVALID_REQUEST
    assert (await init(broker, None)).error_code == 0


async def test_transactional_id_of_30000_bytes_is_coordinated(broker: Bench) -> None:
    name = "x" * 30_000
    producer = await begin(broker, name)
    assert await add(broker, producer, {"t": [0]}, name=name) == [[0]]
    assert (await verify(broker, producer, 0, name=name)).transactions[0].transactional_id == name
    assert await end(broker, producer, name=name) == 0


async def test_longer_transactional_id_than_the_protocol_allows_closes_the_connection(
    broker: Bench,
) -> None:
    with pytest.raises((MalformedInput, ValueError)):
        await init(broker, "x" * 40_000)


@pytest.mark.parametrize(
    ("version", "code"), [(0, OLD_EPOCH), (1, OLD_EPOCH), (2, FENCED), (3, FENCED)]
)
async def test_fenced_producer_gets_the_code_that_its_version_knows(
    broker: Bench, version: int, code: ErrorCode
) -> None:
    old = await begin(broker)
    await begin(broker)
    assert await add(broker, old, {"t": [0]}, version) == [[code]]
    assert await add_offsets(broker, old, version) == code
    assert await end(broker, old, version) == code


async def test_foreign_and_unknown_producers_are_refused(broker: Bench) -> None:
    producer_id, epoch = await begin(broker)
    foreign = (producer_id + 1, epoch)
    unmapped = ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert await add(broker, foreign, {"t": [0]}) == [[unmapped]]
    assert await add_offsets(broker, foreign) == unmapped
    assert await end(broker, foreign) == unmapped
    assert await end(broker, (producer_id, epoch), name="unknown") == unmapped
    assert await end(broker, (producer_id, epoch), name="") == ErrorCode.INVALID_REQUEST


async def test_partition_that_cannot_be_added_prevents_all_others(broker: Bench) -> None:
    producer = await begin(broker)
    asked = {"t": [0, 7], "absent": [0], TOPIC: [0], "__consumer_offsets": [0]}
    missing, forbidden = (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    )
    assert await add(broker, producer, asked) == [
        [ErrorCode.OPERATION_NOT_ATTEMPTED, missing],
        [missing],
        [forbidden],
        [forbidden],
    ]
    [found] = (await described(broker, "p")).transaction_states
    assert (found.transaction_state, found.topics) == ("Empty", [])


async def test_partition_named_twice_is_added_once(broker: Bench) -> None:
    producer = await begin(broker)
    assert await add(broker, producer, {"t": [1, 0, 1]}) == [[0, 0, 0]]
    [found] = (await described(broker, "p")).transaction_states
    assert [(each.topic, each.partitions) for each in found.topics] == [("t", [0, 1])]


@pytest.mark.parametrize("version", range(4))
async def test_partitions_and_offsets_are_added_in_every_version(
    broker: Bench, version: int
) -> None:
    producer = await begin(broker)
    assert await add(broker, producer, {"t": [0]}, version) == [[0]]
    assert await add_offsets(broker, producer, version) == 0
    [found] = (await described(broker, "p")).transaction_states
    assert (found.error_code, found.transaction_state) == (0, "Ongoing")
    assert (found.producer_id, found.producer_epoch) == producer
    assert found.transaction_timeout_ms == 60_000
    assert [each.topic for each in found.topics] == ["__consumer_offsets", "t"]
    assert await end(broker, producer, version, is_commit=False) == 0


async def test_broker_learns_which_partitions_are_in_the_transaction(broker: Bench) -> None:
    producer = await begin(broker)
    await add(broker, producer, {"t": [0]})
    answer = await verify(broker, producer, 0, 1, 9)
    assert answer.error_code == 0
    codes = [row.error_code for row in answer.transactions[0].topics[0].results]
    assert codes == [
        ErrorCode.OPERATION_NOT_ATTEMPTED,
        ErrorCode.OPERATION_NOT_ATTEMPTED,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    answer = await verify(broker, producer, 0, 1)
    codes = [row.error_code for row in answer.transactions[0].topics[0].results]
    assert codes == [0, ErrorCode.INVALID_TXN_STATE]


async def test_clients_listener_refuses_the_version_for_brokers(broker: Bench) -> None:
    producer = await begin(broker)
    answer = await verify(broker, producer, 0, listener="CLIENTS")
    assert answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert answer.transactions == []


async def test_transactions_are_described_and_listed(broker: Bench) -> None:
    producers = {name: await begin(broker, name) for name in ("a", "b", "c")}
    await add(broker, producers["b"], {"t": [0]}, name="b")

    async def listed(states: list[str], ids: list[int]) -> tuple[list[str], list[str]]:
        request = ListTransactionsRequest(state_filters=states, producer_id_filters=ids)
        answer: ListTransactionsResponse = await broker.ask(ApiKey.LIST_TRANSACTIONS, 0, request)
        assert answer.error_code == 0
        names = [each.transactional_id for each in answer.transaction_states]
        return sorted(names), answer.unknown_state_filters

    assert await listed([], []) == (["a", "b", "c"], [])
    assert await listed(["Ongoing", "Nonsense"], []) == (["b"], ["Nonsense"])
    assert await listed(["Nonsense"], []) == ([], ["Nonsense"])
    assert await listed([], [producers["c"][0]]) == (["c"], [])
    answer = await described(broker, "a", "absent", "")
    assert [each.error_code for each in answer.transaction_states] == [
        0,
        ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
        ErrorCode.INVALID_REQUEST,
    ]


async def test_transactions_are_listed_by_duration(broker: Bench) -> None:
    for name in ("a", "b"):
        await begin(broker, name)
    producer = await begin(broker, "c")
    await add(broker, producer, {"t": [0]}, name="c")

    async def listed(duration_ms: int) -> list[str]:
        request = ListTransactionsRequest(duration_filter=duration_ms)
        answer: ListTransactionsResponse = await broker.ask(ApiKey.LIST_TRANSACTIONS, 1, request)
        assert answer.error_code == 0
        return sorted(each.transactional_id for each in answer.transaction_states)

    assert await listed(-1) == ["a", "b", "c"]
    numbers = broker.app.rooms().transactions()
    assert (numbers.ids, numbers.partitions, numbers.loading) == (3, 2, 0)
    assert 0 <= numbers.mean_load_s <= numbers.longest_load_s
    begun = (await described(broker, "c")).transaction_states[0].transaction_start_time_ms
    lasted_ms = broker.clock.wall_ms() - begun
    assert await listed(lasted_ms - 1) == ["a", "b", "c"]
    day_ms = 86_400_000
    assert await listed(lasted_ms + day_ms) == ["a", "b"]


async def test_states_are_records_in_the_partition_of_the_id(broker: Bench) -> None:
    producer = await begin(broker, "p")
    await add(broker, producer, {"t": [0]})
    found = []
    for number in range(2):
        log = broker.app.replicas.leader(TopicPartition(TOPIC, number)).log
        data = log.read(
            0, 1 << 20, upper_offset=log.log_end_offset, at_least_one_batch=True, cached_only=False
        )
        if data:
            found += [each for each in stored_in(data) if isinstance(each, StoredRecord)]
    assert found
    key, value = found[0].key, found[0].value
    assert key is not None and value is not None
    assert decode_key(key) == "p"
    assert decode_value("p", value).producer == producer


async def test_next_broker_has_the_states(tmp_path: Path) -> None:
    async with Bench(tmp_path, properties=OPTIONS) as bench:
        await bench.create("t", 2)
        producer = await begin(bench)
        await add(bench, producer, {"t": [0, 1]})
    async with bench.again() as again:

        async def loaded() -> DescribedTransaction:
            while True:
                await find(again, "p")
                [found] = (await described(again, "p")).transaction_states
                if found.error_code not in LOADING:
                    return found
                await asyncio.sleep(0)

        found = await in_time(loaded())
        assert found.error_code == 0
        assert (found.producer_id, found.producer_epoch) == producer
        assert found.topics[0].partitions == [0, 1]
        assert await end(again, producer) == 0
