"""Tests of the clients' options as users write them."""

from __future__ import annotations

import re
from typing import Any

import pytest

import pybroker.client.errors
from pybroker.client import Admin, ClientError, ConfigError, Consumer, Producer
from pybroker.client.addresses import format_address, split_address
from pybroker.client.options import (
    WITHOUT_EFFECT,
    ConsumerOptions,
    ProducerOptions,
    parse_options,
)
from pybroker.config.properties import parse_properties


def producer(**given: Any) -> ProducerOptions:
    return parse_options(ProducerOptions, given)


def faults(given: dict[str, object]) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse_options(ProducerOptions, given)
    return caught.value.faults


def test_dots_and_underscores_and_text_are_taken() -> None:
    options = producer(**{"linger.ms": "5", "batch_size": 7, "enable.idempotence": "FALSE"})
    assert (options.linger_ms, options.batch_size, options.enable_idempotence) == (5, 7, False)
    assert producer(max_in_flight=2).max_in_flight_requests_per_connection == 2


def test_the_defaults_are_those_of_kafka() -> None:
    options = producer()
    assert (options.acks, options.enable_idempotence, options.linger_ms) == (-1, True, 0)
    assert (options.batch_size, options.buffer_memory) == (16_384, 33_554_432)
    assert (options.delivery_timeout_ms, options.request_timeout_ms) == (120_000, 30_000)
    consumer = parse_options(ConsumerOptions, {})
    assert (consumer.auto_offset_reset, consumer.max_poll_records) == ("latest", 500)
    assert (consumer.fetch_max_bytes, consumer.fetch_max_wait_ms) == (52_428_800, 500)


def test_a_groups_options_fit_together() -> None:
    def consumer(**given: object) -> ConsumerOptions:
        return parse_options(ConsumerOptions, given)

    plain = consumer(group_id="")
    assert (plain.group_id, plain.session_timeout_ms, plain.heartbeat_interval_ms) == (
        None,
        45_000,
        3_000,
    )
    assert consumer(session_timeout_ms=600).heartbeat_interval_ms == 200
    assert consumer(
        partition_assignment_strategy="CooperativeStickyAssignor, range"
    ).partition_assignment_strategy == ("cooperative-sticky", "range")
    faulty: list[tuple[dict[str, object], str]] = [
        ({"group.instance.id": "i"}, "needs a group.id"),
        ({"session.timeout.ms": 9, "heartbeat.interval.ms": 9}, "must be below session.timeout.ms"),
        ({"partition.assignment.strategy": "uniform"}, "must be one of range, roundrobin, sticky"),
        ({"partition.assignment.strategy": []}, "must name at least one assignor"),
    ]
    for given, words in faulty:
        with pytest.raises(ConfigError, match=re.escape(words)):
            parse_options(ConsumerOptions, given)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("lingr.ms", "linger.ms"),
        ("compresion_type", "compression_type"),
        ("bootstrap.server.s", "bootstrap.servers"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest(name: str, hint: str) -> None:
    assert faults({name: "x"}) == [f"unknown option {name}; did you mean {hint}?"]


def test_all_faults_are_reported_together() -> None:
    found = faults({"linger.ms": "soon", "acks": 2, "qqqqqq": 1, "batch.size": -1})
    assert found == [
        "option linger.ms must be a whole number, not 'soon'",
        "option acks must be all, -1, 0 or 1, not 2",
        "unknown option qqqqqq",
        "option batch.size must be from 0 to 2147483647, not -1",
    ]
    assert faults({"linger.ms": 1, "linger_ms": 2}) == ["option linger_ms is set twice"]


@pytest.mark.parametrize(("acks", "number"), [("all", -1), (-1, -1), ("1", 1), (0, 0)])
def test_acks_in_every_spelling(acks: object, number: int) -> None:
    assert producer(acks=acks).acks == number


def test_default_idempotence_gives_way_to_contradicting_options() -> None:
    assert not producer(acks=1).enable_idempotence
    assert not producer(max_in_flight=6).enable_idempotence
    assert faults({"acks": 1, "enable.idempotence": True}) == ["enable.idempotence needs acks=all"]
    assert "at most 5" in faults({"max_in_flight": 6, "enable_idempotence": "true"})[0]


def test_the_delivery_limit_covers_linger_and_one_request() -> None:
    assert producer(linger_ms=200_000).delivery_timeout_ms == 230_000
    assert "at least linger.ms + request.timeout.ms" in faults({"delivery.timeout.ms": 1_000})[0]


KINDS = [Producer, Consumer, Admin]
SERIALIZER = "org.apache.kafka.common.serialization.StringSerializer"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "line", [f"key.serializer={SERIALIZER}", f"value.deserializer={SERIALIZER}", "retries=3"]
)
def test_a_properties_files_options_without_effect_bring_a_warning(
    kind: type[Producer | Consumer | Admin], line: str, caplog: pytest.LogCaptureFixture
) -> None:
    given: dict[str, Any] = dict(parse_properties(line))
    (name,) = given
    plain: dict[str, Any] = {name: str(value) for name, value in given.items()}
    of_tools: dict[str, Any] = {name.replace(".", "_"): value for name, value in given.items()}
    for options in (given, plain, of_tools):
        kind(**options)
    assert caplog.text.count("option without effect") == 3
    assert f"option without effect name={name}" in caplog.text


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", WITHOUT_EFFECT)
def test_a_keyword_argument_without_effect_is_a_fault(
    kind: type[Producer | Consumer | Admin], name: str
) -> None:
    if name.endswith("serializer") and kind is (Consumer if "deser" in name else Producer):
        return  # an argument of this client; see test_serializers and test_deserializers
    values: list[Any] = [str.encode, 3] if name == "retries" else [str.encode, 3, "utf-8"]
    for value in values:
        with pytest.raises(ConfigError, match=f"^option {name} has no effect: .*; leave it out$"):
            kind(**{name: value})


UNKNOWN: dict[str, Any] = {"api_version": (3, 9)}


@pytest.mark.parametrize("kind", KINDS)
def test_an_unknown_keyword_argument_is_a_fault(kind: type[Producer | Consumer | Admin]) -> None:
    with pytest.raises(ConfigError, match="unknown option api_version"):
        kind(**UNKNOWN)


def test_wrong_options_are_an_error_of_the_client() -> None:
    assert issubclass(ConfigError, ClientError)
    assert issubclass(ConfigError, pybroker.errors.ConfigError), "tools and Spark catch this one"


def test_every_error_of_the_client_can_be_imported_from_it() -> None:
    found = {
        name
        for name, value in vars(pybroker.client.errors).items()
        if isinstance(value, type) and issubclass(value, ClientError)
    }
    assert found <= set(pybroker.client.__all__)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("h:1", ("h", 1)),
        ("[::1]:9092", ("::1", 9092)),
        ("PLAINTEXT://h.example:65535", ("h.example", 65_535)),
    ],
)
def test_addresses(text: str, address: tuple[str, int]) -> None:
    assert split_address(text) == address
    assert text.endswith(format_address(*address))


@pytest.mark.parametrize("text", ["h", "h:", ":1", "h:0", "h:65536", "h:x"])
def test_an_invalid_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be host:port"):
        split_address(text)


def test_servers_may_be_text_or_a_list() -> None:
    both = (("a", 1), ("b", 2))
    assert producer(bootstrap_servers="a:1, b:2").bootstrap_servers == both
    assert producer(**{"bootstrap.servers": ["a:1", "b:2"]}).bootstrap_servers == both
    assert faults({"bootstrap.servers": ""})
