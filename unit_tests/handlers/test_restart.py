"""Tests of a broker that is started again with the same data, after a clean shutdown or a kill."""

from __future__ import annotations

from pathlib import Path

import pytest

from pybroker.errors import ErrorCode
from pybroker.model import TopicPartition
from pybroker.wire.api import ApiKey
from pybroker.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from unit_tests.handlers.bench import BROKER_ID, Bench, batch, code, records_of, the_only, values_of

T0 = TopicPartition("t", 0)
ENDS = ["stop", "crash"]


async def ended(bench: Bench, how: str) -> Bench:
    """End the broker, start the next one on its data, and return it."""
    await (bench.stop() if how == "stop" else bench.crash())
    following = bench.again()
    await following.start()
    return following


@pytest.mark.parametrize("how", ENDS)
async def test_topics_records_and_producer_state_survive_a_restart(
    tmp_path: Path, how: str
) -> None:
    bench = Bench(tmp_path)
    await bench.start()
    await bench.create("t", 2, configs={"max.message.bytes": "5000"})
    topic_id = bench.app.metadata.topics["t"].topic_id
    await bench.produce("t", batch(b"a", b"b", producer=(7, 0, 0)))
    await bench.produce("t", batch(b"c", producer=(7, 0, 2)))
    await bench.produce("t", batch(b"other"), partition=1)
    before = (await bench.fetch("t", 0)).records
    epoch = bench.app.replicas.partition(T0).leader_epoch
    cluster = bench.cluster_id

    bench = await ended(bench, how)
    try:
        assert bench.cluster_id == cluster
        assert bench.app.metadata.topics["t"].topic_id == topic_id
        answer = await bench.fetch("t", 0)
        assert values_of(answer) == [b"a", b"b", b"c"]
        assert answer.records == before
        assert answer.high_watermark == answer.last_stable_offset == 3
        # the producer state is restored
        again = await bench.produce("t", batch(b"c", producer=(7, 0, 2)))
        assert (code(again), again.base_offset) == (ErrorCode.NONE, 2)
        gap = await bench.produce("t", batch(b"e", producer=(7, 0, 4)))
        assert code(gap) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert (await bench.produce("t", batch(b"d", producer=(7, 0, 3)))).base_offset == 3
        # the topic's options are restored
        large = await bench.produce("t", batch(b"x" * 6000))
        assert code(large) is ErrorCode.MESSAGE_TOO_LARGE
        # a new leader epoch; the end of the old one is unchanged
        log = bench.app.replicas.partition(T0).log
        assert bench.app.replicas.partition(T0).leader_epoch > epoch
        assert log.epoch_end_offset(epoch) == (epoch, 3)
    finally:
        await bench.stop()


async def test_many_restarts_lose_nothing(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    await bench.start()
    await bench.create("t")
    written: list[bytes] = []
    epochs = []
    for number in range(6):
        value = b"%d" % number
        assert (await bench.produce("t", batch(value))).base_offset == number
        written.append(value)
        epochs.append(bench.app.replicas.partition(T0).leader_epoch)
        bench = await ended(bench, ENDS[number % 2])
    found = await bench.fetch("t", 0)
    assert values_of(found) == written
    assert [record.offset for record in records_of(found)] == list(range(6))
    assert epochs == sorted(set(epochs))
    await bench.stop()


async def test_after_a_crash_list_offsets_returns_the_end_at_once(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    await bench.start()
    await bench.create("t")
    await bench.produce("t", batch(b"a"))
    bench = await ended(bench, "crash")
    wanted = ListOffsetsPartition(partition_index=0, timestamp=-1)
    request = ListOffsetsRequest(
        replica_id=-1, topics=[ListOffsetsTopic(name="t", partitions=[wanted])]
    )
    answer = await bench.ask(ApiKey.LIST_OFFSETS, 7, request)
    part = the_only(the_only(answer.topics).partitions)
    assert (code(part), part.offset) == (ErrorCode.NONE, 1)
    await bench.stop()


async def test_a_torn_tail_is_cut_and_the_rest_is_served(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    await bench.start()
    await bench.create("t")
    await bench.produce("t", batch(b"whole"))
    await bench.crash()
    segment = the_only(sorted((tmp_path / "t-0").glob("*.log")))
    with segment.open("ab") as stream:
        stream.write(batch(b"torn")[:-3])
    bench = bench.again()
    await bench.start()
    assert values_of(await bench.fetch("t", 0)) == [b"whole"]
    assert (await bench.produce("t", batch(b"next"))).base_offset == 1
    await bench.stop()


@pytest.mark.parametrize("how", ENDS)
async def test_a_deleted_topic_stays_deleted(tmp_path: Path, how: str) -> None:
    bench = Bench(tmp_path)
    await bench.start()
    await bench.create("t")
    await bench.create("kept")
    await bench.produce("t", batch())
    await bench.ask(ApiKey.DELETE_TOPICS, 5, bench.delete_request("t"))
    bench = await ended(bench, how)
    assert set(bench.app.metadata.topics) == {"kept"}
    await bench.app.metadata.wait_until(lambda: "t" not in bench.app.metadata.topics, 5)
    assert code(await bench.produce("t", batch())) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert code(await bench.produce("kept", batch())) is ErrorCode.NONE
    await bench.stop()


async def test_a_stop_removes_the_brokers_ephemeral_nodes(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    await bench.start()
    assert bench.tree.node(f"/brokers/ids/{BROKER_ID}") is not None
    assert bench.tree.node("/controller") is not None
    await bench.stop()
    assert bench.tree.node(f"/brokers/ids/{BROKER_ID}") is None
    assert bench.tree.node("/controller") is None
