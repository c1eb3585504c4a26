"""Tests of the verification of transactions between brokers: which partitions share a request, and
the codes."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from pathlib import Path

import pytest

from pybroker.client.errors import ConnectionLost
from pybroker.errors import BrokerError, ErrorCode, PybrokerError
from pybroker.model import Endpoint, TopicPartition
from pybroker.peers.transaction_verifier import Channel, RemoteCoordinator, Verifier
from pybroker.wire.messages.transactions import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
)
from unit_tests.handlers.bench import Bench
from unit_tests.idle_loop import idle
from unit_tests.peers.test_leader_channel import LeaderPort

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
U0 = TopicPartition("u", 0)
NONE = ErrorCode.NONE
HERE = 3
CODES = [
    (ErrorCode.INVALID_TXN_STATE, ErrorCode.INVALID_TXN_STATE),
    (ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.CONCURRENT_TRANSACTIONS),
    (ErrorCode.NOT_COORDINATOR, ErrorCode.NOT_COORDINATOR),
    (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH),
    (ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
]
"""The coordinator's code, and the producer's."""

Asked = list[tuple[str, int, int, list[TopicPartition]]]


class FakeChannel:
    """A channel to a coordinator. It answers when the test calls `answer` or `fail`."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.is_closed = False
        self.requests: list[AddPartitionsToTxnRequest] = []
        self._answers: list[asyncio.Future[AddPartitionsToTxnResponse]] = []

    async def ask(self, request: AddPartitionsToTxnRequest) -> AddPartitionsToTxnResponse:
        assert all(each.verify_only for each in request.transactions)
        self.asked.append(
            [
                (
                    each.transactional_id,
                    each.producer_id,
                    each.producer_epoch,
                    [
                        TopicPartition(t.name, number)
                        for t in each.topics
                        for number in t.partitions
                    ],
                )
                for each in request.transactions
            ]
        )
        self.requests.append(request)
        self._answers.append(asyncio.get_running_loop().create_future())
        return await self._answers[-1]

    async def close(self) -> None:
        self.is_closed = True

    async def answer(self, code: ErrorCode = NONE, *, whole: ErrorCode = NONE) -> None:
        """Give each partition of the last request this code, or the whole request an error."""
        transactions = [
            AddPartitionsToTxnResult(
                transactional_id=each.transactional_id,
                topics=[
                    AddPartitionsToTxnTopicResult(
                        name=topic.name,
                        results=[
                            AddPartitionsToTxnPartitionResult(
                                partition_index=number, error_code=code
                            )
                            for number in topic.partitions
                        ],
                    )
                    for topic in each.topics
                ],
            )
            for each in self.requests[-1].transactions
        ]
        self._answers[-1].set_result(
            AddPartitionsToTxnResponse(error_code=whole, transactions=[] if whole else transactions)
        )
        await idle()

    async def fail(self, error: PybrokerError | OSError) -> None:
        self._answers[-1].set_exception(error)
        await idle()


class Asking:
    """A verifier on broker HERE, with a fake channel to each other broker. Broker N is the
    coordinator of the transactional id "tx-N"."""

    def __init__(self) -> None:
        self.channels: dict[int, FakeChannel] = {}
        self.verifier = Verifier(
            self._find, self._channel_to, HERE, self._verify_here, self._verify_here_at_once
        )
        self.is_certain = False
        self.code_here = NONE
        self.error_here: BrokerError | None = None

    async def _verify_here(
        self, transactional_id: str, producer_id: int, epoch: int, keys: Collection[TopicPartition]
    ) -> dict[TopicPartition, ErrorCode]:
        assert (transactional_id, producer_id, epoch) == (f"tx-{HERE}", 7, 3)
        if self.error_here is not None:
            raise self.error_here
        return dict.fromkeys(keys, self.code_here)

    def _verify_here_at_once(
        self, transactional_id: str, producer_id: int, epoch: int, keys: Collection[TopicPartition]
    ) -> dict[TopicPartition, ErrorCode] | None:
        if self.error_here is not None:
            raise self.error_here
        is_here = transactional_id == f"tx-{HERE}"
        return dict.fromkeys(keys, self.code_here) if is_here and self.is_certain else None

    @staticmethod
    async def _find(transactional_id: str) -> int:
        if not transactional_id.startswith("tx"):
            raise BrokerError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return int(transactional_id.partition("-")[2] or 1)

    def _channel_to(self, broker_id: int) -> Channel:
        assert broker_id not in self.channels
        self.channels[broker_id] = FakeChannel()
        return self.channels[broker_id]

    def ask(
        self,
        transactional_id: str = "tx",
        *partitions: TopicPartition,
        producer: int = 7,
        epoch: int = 0,
    ) -> asyncio.Task[object]:
        wanted: Sequence[TopicPartition] = partitions or (T0,)
        return asyncio.create_task(self._outcome(transactional_id, producer, epoch, wanted))

    async def _outcome(
        self, transactional_id: str, producer: int, epoch: int, keys: Sequence[TopicPartition]
    ) -> object:
        try:
            return await self.verifier.verify(transactional_id, producer, epoch, keys)
        except BrokerError as error:
            return error.code


async def test_questions_of_one_step_are_one_request_to_each_broker() -> None:
    asking = Asking()
    tasks = [asking.ask("tx-1", T0, U0), asking.ask("tx-2"), asking.ask("tx-01", T0, T1, epoch=3)]
    await idle()
    one, two = asking.channels[1], asking.channels[2]
    assert one.asked == [[("tx-1", 7, 0, [T0, U0]), ("tx-01", 7, 3, [T0, T1])]]
    assert two.asked == [[("tx-2", 7, 0, [T0])]]
    await two.answer()
    assert [task.done() for task in tasks] == [False, True, False]
    await one.answer()
    assert [await task for task in tasks] == [{}, {}, {}]


async def test_later_questions_wait_for_the_answer_and_are_the_next_request() -> None:
    asking = Asking()
    first = asking.ask()
    await idle()
    later = [asking.ask("tx-1"), asking.ask("tx-001", producer=8)]
    await idle()
    channel = asking.channels[1]
    assert len(channel.asked) == 1
    await channel.answer(ErrorCode.INVALID_TXN_STATE)
    assert await first == {T0: ErrorCode.INVALID_TXN_STATE}
    assert channel.asked[1:] == [[("tx-1", 7, 0, [T0]), ("tx-001", 8, 0, [T0])]]
    await channel.answer()
    assert [await task for task in later] == [{}, {}]
    # A broker that has answered everything is asked again by a new task.
    again = asking.ask()
    await idle()
    assert len(channel.asked) == 3
    await channel.answer()
    assert await again == {}


async def test_request_has_each_transactional_id_once() -> None:
    asking = Asking()
    tasks = [asking.ask("tx", T0), asking.ask("tx", T1), asking.ask("tx", T0, epoch=1)]
    await idle()
    channel = asking.channels[1]
    for number in range(3):
        assert len(channel.asked) == number + 1
        await channel.answer()
    assert [await task for task in tasks] == [{}, {}, {}]
    assert [asked[0][2:] for asked in channel.asked] == [(0, [T0]), (0, [T1]), (1, [T0])]


@pytest.mark.parametrize(("code", "expected"), CODES)
async def test_codes_of_partitions(code: ErrorCode, expected: ErrorCode) -> None:
    asking = Asking()
    task = asking.ask("tx", T0, U0)
    await idle()
    await asking.channels[1].answer(code)
    assert await task == {T0: expected, U0: expected}


@pytest.mark.parametrize(("code", "expected"), CODES)
async def test_coordinator_on_the_same_broker_is_asked_directly(
    code: ErrorCode, expected: ErrorCode
) -> None:
    asking = Asking()
    assert await asking.ask(f"tx-{HERE}", T0, U0, epoch=3) == {}
    asking.code_here = code
    assert await asking.ask(f"tx-{HERE}", T0, U0, epoch=3) == {T0: expected, U0: expected}
    asking.error_here = BrokerError(code, "the test refuses")
    assert await asking.ask(f"tx-{HERE}", T0, epoch=3) is expected
    assert asking.channels == {}


@pytest.mark.parametrize(
    ("whole", "expected"),
    [
        (ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ErrorCode.INVALID_TXN_STATE),
    ],
)
async def test_error_of_the_whole_request_is_that_of_each_question(
    whole: ErrorCode, expected: ErrorCode
) -> None:
    asking = Asking()
    tasks = [asking.ask("tx-1"), asking.ask("tx-01")]
    await idle()
    await asking.channels[1].answer(whole=whole)
    assert [await task for task in tasks] == [expected, expected]


@pytest.mark.parametrize("error", [ConnectionLost("gone"), OSError("no route")])
async def test_failed_request_does_not_end_the_later_ones(error: PybrokerError | OSError) -> None:
    asking = Asking()
    first = asking.ask()
    await idle()
    later = asking.ask()
    await idle()
    await asking.channels[1].fail(error)
    assert await first is ErrorCode.NETWORK_EXCEPTION
    await asking.channels[1].answer()
    assert await later == {}


async def test_partition_that_the_response_leaves_out_is_not_confirmed() -> None:
    asking = Asking()
    task = asking.ask("tx", T0, T1)
    await idle()
    channel = asking.channels[1]
    channel.requests[-1].transactions[0].topics[0].partitions = [1]
    await channel.answer()
    assert await task == {T0: ErrorCode.INVALID_TXN_STATE}


async def test_unknown_coordinator_is_an_error_of_the_question() -> None:
    assert await Asking().ask("other") is ErrorCode.COORDINATOR_NOT_AVAILABLE


async def test_question_of_a_closed_connection_is_dropped() -> None:
    asking = Asking()
    first, second = asking.ask("tx-1"), asking.ask("tx-01")
    await idle()
    first.cancel()
    await asking.channels[1].answer()
    assert await second == {}
    await asyncio.gather(first, return_exceptions=True)


async def test_stop_answers_the_waiting_questions() -> None:
    asking = Asking()
    tasks = [asking.ask("tx-1"), asking.ask("tx-1")]
    await idle()
    await asking.verifier.stop()
    assert [await task for task in tasks] == [ErrorCode.NETWORK_EXCEPTION] * 2
    assert asking.channels[1].is_closed


async def test_request_to_another_broker_goes_over_a_connection(tmp_path: Path) -> None:
    """The other broker of this test has no topic."""
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    async with Bench(tmp_path) as bench:
        port = LeaderPort(bench)
        await port.open()
        endpoint: Endpoint | None = port.endpoint

        async def find(transactional_id: str) -> int:
            return 9

        verifier = Verifier(
            find,
            lambda _: RemoteCoordinator(lambda: endpoint, client_id="b", timeout_s=30),
            HERE,
            Asking()._verify_here,
            Asking()._verify_here_at_once,
        )
        for _ in range(2):
            assert await verifier.verify("tx", 7, 0, [T0]) == {T0: unknown}
        assert port.connections == 1
        await port.close()
        with pytest.raises(BrokerError) as caught:
            await verifier.verify("tx", 7, 0, [T0])
        assert caught.value.code is ErrorCode.NETWORK_EXCEPTION
        endpoint = None
        with pytest.raises(BrokerError) as caught:
            await verifier.verify("tx", 7, 0, [T0])
        assert caught.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
        await verifier.stop()


def test_the_coordinator_here_may_answer_at_once() -> None:
    asking = Asking()
    assert asking.verifier.verify_at_once(f"tx-{HERE}", 7, 3, [T0]) is None
    asking.is_certain = True
    assert asking.verifier.verify_at_once(f"tx-{HERE}", 7, 3, [T0]) == {}
    assert asking.verifier.verify_at_once("tx-9", 7, 3, [T0]) is None
    asking.code_here = ErrorCode.PRODUCER_FENCED
    found = asking.verifier.verify_at_once(f"tx-{HERE}", 7, 3, [T0])
    assert found == {T0: ErrorCode.INVALID_PRODUCER_EPOCH}
    asking.error_here = BrokerError(ErrorCode.NOT_COORDINATOR)
    with pytest.raises(BrokerError) as caught:
        asking.verifier.verify_at_once(f"tx-{HERE}", 7, 3, [T0])
    assert caught.value.code is ErrorCode.NOT_COORDINATOR
