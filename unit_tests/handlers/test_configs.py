"""Tests of DescribeConfigs, and the options in force after a change."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from pybroker.config.layered_config import Source
from pybroker.errors import ErrorCode
from pybroker.model import TopicPartition
from pybroker.records.batch import iter_headers
from pybroker.records.compression import Codec
from pybroker.storage.log_config import LogConfig
from unit_tests.handlers.bench import Bench, batch, code, values_of
from unit_tests.handlers.config_words import (
    BROKER,
    DELETE,
    LOGGER,
    ME,
    SET,
    TOPIC,
    Resource,
    change,
    config,
    describe,
    option,
    shown,
    until_largest_is,
    write_as_a_tool,
)
from unit_tests.patience import until


def log_config(bench: Bench, topic: str) -> LogConfig:
    return bench.app.replicas.partitions[TopicPartition(topic, 0)].log.config


@pytest.mark.parametrize("version", range(5))
async def test_each_version_describes_a_topic_and_a_broker(bench: Bench, version: int) -> None:
    await bench.create("t", configs={"retention.ms": "5"})
    topic, broker = await describe(bench, (TOPIC, "t"), (BROKER, ME), version=version)
    own = {item.name: item for item in topic.configs}["retention.ms"]
    default = {item.name: item for item in broker.configs}["num.partitions"]
    assert (own.value, default.value, default.read_only) == ("5", "1", True)
    if version == 0:
        assert (own.is_default, default.is_default) == (False, True)
    else:
        assert (own.config_source, default.config_source) == (Source.TOPIC, Source.DEFAULT)
        assert [item.source for item in own.synonyms] == [Source.TOPIC]
    if version >= 3:
        assert (own.config_type, default.config_type) == (5, 3)
        assert own.documentation == "The age at which a segment is deleted; -1 means never."


async def test_sources_of_all_layers(tmp_path: Path) -> None:
    name = "log.segment.bytes"
    async with Bench(tmp_path, properties={name: "100000"}) as bench:
        await bench.create("t")
        topic = (TOPIC, "t")
        assert await shown(bench, topic, "segment.bytes") == ("100000", Source.FILE)
        await change(bench, (BROKER, ""), (SET, name, "200000"))
        assert await shown(bench, topic, "segment.bytes") == ("200000", Source.ALL_BROKERS)
        await change(bench, (BROKER, ME), (SET, name, "300000"))
        assert await shown(bench, topic, "segment.bytes") == ("300000", Source.BROKER)
        await change(bench, topic, (SET, "segment.bytes", "400000"))
        found = await option(bench, topic, "segment.bytes")
        assert [(item.name, item.value, item.source) for item in found.synonyms] == [
            ("segment.bytes", "400000", Source.TOPIC),
            (name, "300000", Source.BROKER),
            (name, "200000", Source.ALL_BROKERS),
            (name, "100000", Source.FILE),
            (name, "1073741824", Source.DEFAULT),
        ]
        assert await shown(bench, (BROKER, ""), name) == ("200000", Source.ALL_BROKERS)


async def test_keys_choose_options_and_unknown_ones_are_left_out(bench: Bench) -> None:
    await bench.create("t")
    (some,) = await describe(bench, (TOPIC, "t"), keys=["retention.ms", "nope"])
    (all_of_them,) = await describe(bench, (TOPIC, "t"), keys=[])
    assert [item.name for item in some.configs] == ["retention.ms"]
    assert len(all_of_them.configs) > 25


@pytest.mark.parametrize(
    ("resource", "expected", "words"),
    [
        ((TOPIC, "gone"), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "does not exist"),
        ((TOPIC, "no name"), ErrorCode.INVALID_TOPIC_EXCEPTION, "Topic name is invalid"),
        ((TOPIC, ""), ErrorCode.INVALID_TOPIC_EXCEPTION, "Topic name is invalid"),
        (
            (BROKER, "7"),
            ErrorCode.INVALID_REQUEST,
            "Unexpected broker id, expected 1 or empty string, but received 7",
        ),
        (
            (BROKER, "x"),
            ErrorCode.INVALID_REQUEST,
            "Broker id must be an integer, but it is: x",
        ),
        ((LOGGER, ""), ErrorCode.INVALID_REQUEST, "Broker id must not be empty"),
        (
            (LOGGER, "7"),
            ErrorCode.INVALID_REQUEST,
            "Unexpected broker id, expected 1 but received 7",
        ),
        ((16, "x"), ErrorCode.INVALID_REQUEST, "only supported on KRaft clusters"),
        ((3, "x"), ErrorCode.INVALID_REQUEST, "Unexpected resource type 3 for resource x"),
    ],
)
async def test_a_resource_that_cannot_be_described(
    bench: Bench, resource: Resource, expected: ErrorCode, words: str
) -> None:
    failed, fine = await describe(bench, resource, (BROKER, ME))
    assert (code(failed), failed.configs) == (expected, [])
    assert words in str(failed.error_message)
    assert code(fine) is ErrorCode.NONE


async def test_a_limited_answer_has_an_item_for_each_resource(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pybroker.handlers.configs._OPTIONS_MAX", 1000)
    results = await describe(bench, *[(BROKER, ME)] * 250)
    codes = [code(result) for result in results]
    assert codes == [ErrorCode.NONE] * 100 + [ErrorCode.INVALID_REQUEST] * 150


async def test_an_unknown_option_is_described_without_its_value(bench: Bench) -> None:
    assert (await change(bench, (BROKER, ME), (SET, "my.plugin.password", "p")))[0] == 0
    found = await option(bench, (BROKER, ME), "my.plugin.password")
    assert (found.value, found.is_sensitive, found.config_type) == (None, True, 0)


# the options in force


async def test_a_change_is_in_force_when_it_is_answered(bench: Bench) -> None:
    await bench.create("t")
    assert code(await bench.produce("t", batch(bytes(500)))) is ErrorCode.NONE
    await change(bench, (TOPIC, "t"), (SET, "max.message.bytes", "100"))
    assert code(await bench.produce("t", batch(bytes(500)))) is ErrorCode.MESSAGE_TOO_LARGE
    await change(bench, (TOPIC, "t"), (DELETE, "max.message.bytes", None))
    assert code(await bench.produce("t", batch(bytes(500)))) is ErrorCode.NONE


@pytest.mark.parametrize("broker", ["", ME])
async def test_a_change_of_the_broker_applies_to_topics_without_an_own_value(
    bench: Bench, broker: str
) -> None:
    await bench.create("t")
    await bench.create("own", configs={"max.message.bytes": "5000"})
    await change(bench, (BROKER, broker), (SET, "message.max.bytes", "100"))
    assert code(await bench.produce("t", batch(bytes(500)))) is ErrorCode.MESSAGE_TOO_LARGE
    assert code(await bench.produce("own", batch(bytes(500)))) is ErrorCode.NONE
    await bench.create("later")
    assert code(await bench.produce("later", batch(bytes(500)))) is ErrorCode.MESSAGE_TOO_LARGE


async def test_a_change_survives_a_restart(bench: Bench) -> None:
    await bench.create("t")
    await change(bench, (BROKER, ""), (SET, "message.max.bytes", "100"))
    await bench.stop()
    async with bench.again() as again:
        assert code(await again.produce("t", batch(bytes(500)))) is ErrorCode.MESSAGE_TOO_LARGE
        assert await shown(again, (BROKER, ME), "message.max.bytes") == (
            "100",
            Source.ALL_BROKERS,
        )


async def test_a_config_written_to_zookeeper_by_a_tool_takes_effect(bench: Bench) -> None:
    await bench.create("t")
    write_as_a_tool(bench, "topics/t", config(max_message_bytes="100"))
    await until_largest_is(bench, 100)
    write_as_a_tool(bench, "topics/t", config())
    await until_largest_is(bench, 1_048_588)
    write_as_a_tool(bench, "brokers/<default>", config(message_max_bytes="200"))
    await until_largest_is(bench, 200)


async def test_names_and_values_too_long_for_a_message_are_omitted(bench: Bench) -> None:
    await bench.create("t")
    long = ",".join(["0:1"] * 10_000)
    values = {"leader.replication.throttled.replicas": long, "x" * 40_000: "1", "y": "2"}
    broker_values = {**values, "log.cleanup.policy": "delete," * 9000 + "delete"}
    for entity, content in (("topics/t", values), ("brokers/<default>", broker_values)):
        texts = {"version": 1, "config": {**content, "message.max.bytes": "200"}}
        write_as_a_tool(bench, entity, json.dumps(texts).encode())
    await until_largest_is(bench, 200)
    for result in await describe(bench, (TOPIC, "t"), (BROKER, ""), (BROKER, ME)):
        assert code(result) is ErrorCode.NONE
        assert all(len(item.name) < 100 and len(item.value or "") < 1000 for item in result.configs)


async def test_invalid_values_in_zookeeper_are_ignored(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    await bench.create("t")
    write_as_a_tool(
        bench,
        "brokers/<default>",
        config(message_max_bytes="300", log_segment_bytes="x", num_partitions="9"),
    )
    await until_largest_is(bench, 300)
    assert "log.segment.bytes" in caplog.text
    assert "num.partitions" in caplog.text
    write_as_a_tool(bench, f"brokers/{ME}", b"nonsense")
    write_as_a_tool(bench, "topics/t", b"nonsense")
    await until(lambda: "topic options ignored topic=t" in caplog.text)
    await until_largest_is(bench, 300)
    assert await shown(bench, (BROKER, ME), "log.segment.bytes") == ("1073741824", Source.DEFAULT)
    await bench.stop()
    async with bench.again() as again:
        await until_largest_is(again, 300)


async def test_a_host_name_among_the_addresses_invalidates_no_other_option(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """Kafka accepts host names in that option. The retention in the same node must still apply."""
    await bench.create("t")
    wrong = {"max_connections_per_ip_overrides": "127.0.0.1:5,localhost:5"}
    write_as_a_tool(bench, "brokers/<default>", config(log_retention_ms="-1", **wrong))
    write_as_a_tool(bench, f"brokers/{ME}", config(message_max_bytes="200", **wrong))
    await until_largest_is(bench, 200)
    assert log_config(bench, "t").retention_ms == -1
    assert "localhost is not an IP address" in caplog.text


async def test_unreadable_topic_options_delete_no_records(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """The default retention would delete records older than a week, also of a compacted topic."""
    kept = {"retention.ms": "-1", "min.insync.replicas": "2"}
    await bench.create("kept", configs=kept)
    await bench.create("compacted", configs={"cleanup.policy": "compact"})
    before = {name: log_config(bench, name) for name in ("kept", "compacted")}
    for name in before:
        write_as_a_tool(bench, f"topics/{name}", b'{"version":1,"config":{"retention.ms":"-1"')
    await bench.create("t")
    write_as_a_tool(bench, "topics/t", config(max_message_bytes="100"))
    await until_largest_is(bench, 100)  # so it has read the other topics
    assert all(f"topic options ignored topic={name}" in caplog.text for name in before)
    assert {name: log_config(bench, name) for name in before} == before
    await bench.stop()
    async with bench.again() as again:
        for name in before:
            found = log_config(again, name)
            assert (found.retention_ms, found.retention_bytes) == (-1, -1)
            assert found.compacts  # its gaps may be no holes


@pytest.mark.parametrize(
    "wrong", [{"retention_ms": "never"}, {"retention_bytes": "1 GB"}, {"cleanup_policy": "compct"}]
)
async def test_an_invalid_retention_deletes_nothing(bench: Bench, wrong: dict[str, str]) -> None:
    await bench.create("t")
    write_as_a_tool(bench, "topics/t", config(max_message_bytes="100", **wrong))
    await until_largest_is(bench, 100)
    found = log_config(bench, "t")
    assert (found.retention_ms, found.retention_bytes) == (-1, -1)
    assert found.compacts == ("cleanup_policy" in wrong)  # then its gaps may be no holes
    write_as_a_tool(bench, "topics/t", config(max_message_bytes="200"))
    await until_largest_is(bench, 200)
    assert log_config(bench, "t").retention_ms == 7 * 24 * 3600 * 1000


async def test_limits_of_the_broker_follow_a_change(bench: Bench) -> None:
    before = bench.app.live.current
    await change(
        bench,
        (BROKER, ME),
        (SET, "max.connections", "5"),
        (SET, "producer.id.expiration.ms", "1000"),
    )
    now = bench.app.live.current
    assert (before.max_connections, now.max_connections) == (2_147_483_647, 5)
    assert bench.logs.producer_id_expiration_ms == 1000


async def test_levels_of_loggers_change(bench: Bench) -> None:
    name = "pybroker.handlers.a_test"
    logger = logging.getLogger(name)
    resource = (LOGGER, ME)
    assert (await change(bench, resource, (SET, name, "DEBUG"), validate_only=True))[0] == 0
    assert logger.level == logging.NOTSET
    assert (await change(bench, resource, (SET, name, "DEBUG")))[0] == 0
    assert logger.level == logging.DEBUG
    assert await shown(bench, resource, name) == ("DEBUG", Source.LOGGER)
    assert (await change(bench, resource, (DELETE, name, "")))[0] == 0
    assert logger.level == logging.NOTSET


async def test_options_of_a_created_topic_have_their_sources(tmp_path: Path) -> None:
    async with Bench(tmp_path, properties={"log.segment.bytes": "100000"}) as bench:
        await change(bench, (BROKER, ""), (SET, "message.max.bytes", "9000"))
        await bench.create("t", configs={"flush.ms": "5"})
        names = ("flush.ms", "segment.bytes", "max.message.bytes", "retention.ms")
        assert [await shown(bench, (TOPIC, "t"), name) for name in names] == [
            ("5", Source.TOPIC),
            ("100000", Source.FILE),
            ("9000", Source.ALL_BROKERS),
            ("604800000", Source.DEFAULT),
        ]


@pytest.mark.parametrize("sent", list(Codec))
@pytest.mark.parametrize(
    ("word", "stored"),
    [
        ("uncompressed", Codec.NONE),
        ("gzip", Codec.GZIP),
        ("snappy", Codec.SNAPPY),
        ("lz4", Codec.LZ4),
        ("zstd", Codec.ZSTD),
        ("producer", None),
    ],
)
async def test_batches_are_stored_in_the_codec_of_the_topic(
    bench: Bench, word: str, stored: Codec | None, sent: Codec
) -> None:
    await bench.create("t")
    await change(bench, (TOPIC, "t"), (SET, "compression.type", word))
    values = [b"one" * 100, b"two" * 100]
    bench.blocking.done.clear()
    for first_sequence in (0, 2, 2):  # the last is the second once more
        sent_batch = batch(*values, codec=sent, producer=(5, 0, first_sequence))
        assert code(await bench.produce("t", sent_batch)) is ErrorCode.NONE
    expected = sent if stored is None else stored
    assert ("stored_form" in bench.blocking.done) is (expected != sent)
    answer = await bench.fetch("t", 0)
    assert values_of(answer) == values * 2
    assert answer.records is not None
    headers = [header for _, header in iter_headers(answer.records)]
    assert [header.codec for header in headers] == [expected] * 2
    assert [header.base_sequence for header in headers] == [0, 2]


@pytest.mark.parametrize("codec", ["gzip", "lz4", "zstd"])
async def test_leader_compresses_with_the_level_of_the_topic(bench: Bench, codec: str) -> None:
    value = b" ".join(b"%x" % (number * number) for number in range(3000))
    low, high = {"gzip": "1", "lz4": "9", "zstd": "1"}[codec], {"lz4": "12"}.get(codec, "9")
    sizes = []
    for topic, level in (("low", low), ("high", high)):
        configs = {"compression.type": codec, f"compression.{codec}.level": level}
        await bench.create(topic, configs=configs)
        await bench.produce(topic, batch(value))
        answer = await bench.fetch(topic, 0)
        assert values_of(answer) == [value]
        assert answer.records is not None
        sizes.append(len(answer.records))
    assert sizes[1] < sizes[0]


async def test_a_batch_that_is_too_large_in_the_codec_of_the_topic_is_refused(
    bench: Bench,
) -> None:
    limits = {"compression.type": "uncompressed", "max.message.bytes": "500"}
    await bench.create("t", configs=limits)
    result = await bench.produce("t", batch(bytes(5000), codec=Codec.GZIP))
    assert code(result) is ErrorCode.MESSAGE_TOO_LARGE
