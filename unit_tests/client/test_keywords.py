"""The types of the clients' keyword arguments. `make lint` holds them: mypy reports each `type:
ignore` that hides no error.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from docs import make_keywords
from pybroker.client import Admin, ConfigError, Consumer, Producer
from pybroker.client.keywords import ProducerKeywords
from pybroker.client.options import ProducerOptions, parse_options

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


def test_keywords_are_made_from_the_table_of_options() -> None:
    assert make_keywords.PATH.read_text() == make_keywords.render(), "run: make docs"
    names = {row.name for row in dataclasses.fields(ProducerOptions)}
    known = {*ProducerKeywords.__optional_keys__}
    assert known == names - {*make_keywords.POSITIONAL} | {"max_in_flight"}


def test_bootstrap_servers_may_be_a_list() -> None:
    options = parse_options(ProducerOptions, {}, ["one:1", "two:2"])
    assert options.bootstrap_servers == (("one", 1), ("two", 2))
