"""The types of the clients' keyword arguments. `make lint` holds them: mypy reports each `type:
ignore` that hides no error.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any, assert_type

import pytest

from docs import make_keywords
from pybroker.client import Admin, ConfigError, Consumer, Producer
from pybroker.client.keywords import ProducerKeywords
from pybroker.client.options import ProducerOptions, parse_options
from pybroker.ports import Buffer

WRONG: tuple[Callable[[], object], ...] = (
    lambda: Producer(linger_mss=3),  # type: ignore[call-arg]
    lambda: Producer(linger_ms="x"),  # type: ignore[arg-type]
    lambda: Producer(compression_type="lz5"),  # type: ignore[arg-type]
    lambda: Producer(acks=2),  # type: ignore[arg-type]
    lambda: Consumer(isolation_level="committed"),  # type: ignore[arg-type]
    lambda: Consumer(enable_auto_commit="maybe"),  # type: ignore[arg-type]
    lambda: Consumer(partition_assignment_strategy=3),  # type: ignore[arg-type]
    lambda: Admin(linger_ms=3),  # type: ignore[call-arg]
)


@pytest.mark.parametrize("make", WRONG)
def test_wrong_keyword_arguments_are_errors_of_the_types_and_of_the_options(
    make: Callable[[], object],
) -> None:
    with pytest.raises(ConfigError):
        make()


def test_right_keyword_arguments_pass_the_types() -> None:
    chosen: ProducerKeywords = {"acks": "all", "compression_type": "zstd", "max_in_flight": 3}
    assert Producer("localhost:9092", **chosen).options.acks == -1
    strategy = Consumer(group_id=None, partition_assignment_strategy=["range"]).options
    assert strategy.partition_assignment_strategy == ("range",)


def test_serializers_and_deserializers_tell_the_types_of_keys_and_values() -> None:
    def to_bytes(value: int | None) -> bytes | None:
        return None if value is None else b"%d" % value

    assert_type(Producer(), Producer[Buffer, Buffer])
    assert_type(Consumer(), Consumer[bytes | None, bytes | None])
    assert_type(Producer(key_serializer=str.encode), Producer[str, Buffer])
    assert_type(Producer(value_serializer=to_bytes), Producer[Buffer, int | None])
    assert_type(Consumer(key_deserializer=bytes.decode), Consumer[str, bytes | None])
    assert_type(Consumer(value_deserializer=json.loads), Consumer[bytes | None, Any])
    any_length: Consumer[int, str] = Consumer(key_deserializer=len, value_deserializer=str)
    assert any_length.options.group_id is None


def test_keywords_are_made_from_the_table_of_options() -> None:
    assert make_keywords.PATH.read_text() == make_keywords.render(), "run: make docs"
    names = {row.name for row in dataclasses.fields(ProducerOptions)}
    known = {*ProducerKeywords.__optional_keys__}
    assert known == names - {*make_keywords.POSITIONAL} | {"max_in_flight"}


def test_bootstrap_servers_may_be_a_list() -> None:
    options = parse_options(ProducerOptions, {}, ["one:1", "two:2"])
    assert options.bootstrap_servers == (("one", 1), ("two", 2))
