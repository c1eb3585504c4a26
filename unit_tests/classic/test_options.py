"""Tests of options and subscriptions of the classic consumer as users write them."""

from __future__ import annotations

import logging

import pytest

from pybroker.classic import ClassicConsumer, ClassicOptions
from pybroker.classic.options import parse_classic_options
from pybroker.classic.subscription import Subscription, as_registered, by_names, by_pattern
from pybroker.client import ClientError, ConfigError
from pybroker.config.declaration import options_of
from pybroker.coordinator.zookeeper.schemas import ConsumerRegistration
from unit_tests.sources import ROOT


def test_option_names_may_have_dots_or_underscores() -> None:
    options = parse_classic_options(
        {"group.id": "g", "auto.commit.enable": "false", "rebalance_max_retries": 7}
    )
    assert options.group_id == "g"
    assert options.auto_commit_enable is False
    assert options.rebalance_max_retries == 7
    assert options.auto_offset_reset == "largest"
    assert options.auto_commit_interval_ms == 60_000


def test_all_faults_of_classic_options_are_reported_together() -> None:
    with pytest.raises(ConfigError) as caught:
        ClassicConsumer("localhost", auto_offset_reset="earliest", rebalance_max_retrys=1)
    assert caught.value.faults == [
        "unknown option rebalance_max_retrys; did you mean rebalance.max.retries?",
        "auto.offset.reset=earliest: expected one of smallest, largest",
        "group.id is missing: set it to the group whose members share the partitions",
    ]


def test_an_option_without_effect_is_named(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        parse_classic_options({"group.id": "g", "num.consumer.fetchers": "2"})
    assert "name=num.consumer.fetchers" in caplog.text


def test_a_keyword_argument_without_effect_is_a_fault() -> None:
    with pytest.raises(ConfigError, match="option num_consumer_fetchers has no effect") as caught:
        parse_classic_options({"group_id": "g", "num_consumer_fetchers": 2})
    assert isinstance(caught.value, ClientError)


def test_the_page_lists_every_option_with_its_default() -> None:
    page = " ".join((ROOT / "docs" / "classic.rst").read_text().split())
    for option in options_of(ClassicOptions).values():
        default = option.format(option.default)
        shown = f" (``{default}``)" if default else ""
        assert f"- ``{option.name}``{shown}: {option.meaning}." in page


def test_a_pattern_is_for_whole_names() -> None:
    white = by_pattern("white_list", ' "orders,pay.*" ', 2)
    assert white.counts == {"orders|pay.*": 2}
    topics = ["orders", "orders2", "payments", "x", "__consumer_offsets"]
    assert white.streams(topics, exclude_internal=True) == {"orders": 2, "payments": 2}
    black = by_pattern("black_list", "orders,pay.*", 1)
    assert black.streams(topics, exclude_internal=True) == {"orders2": 1, "x": 1}
    assert "__consumer_offsets" in black.streams(topics, exclude_internal=False)


@pytest.mark.parametrize("expression", ["(", "*x"])
def test_a_pattern_that_cannot_be_read_is_refused(expression: str) -> None:
    with pytest.raises(ConfigError, match="is not a valid regular expression"):
        by_pattern("white_list", expression, 1)


def test_streams_are_counted_from_one() -> None:
    with pytest.raises(ConfigError, match="topic 't' has 0 streams"):
        by_names({"t": 0})
    with pytest.raises(ConfigError, match="no topic"):
        by_names({})
    with pytest.raises(ConfigError, match="0 streams"):
        by_pattern("white_list", "t", 0)


def test_registrations_of_other_members_are_read() -> None:
    pattern = as_registered(ConsumerRegistration({"a.*": 3}, "white_list", 0))
    assert pattern.streams(["ab", "b"], exclude_internal=True) == {"ab": 3}
    assert as_registered(ConsumerRegistration({"t": 1}, "static", 0)) == by_names({"t": 1})
    strange = as_registered(ConsumerRegistration({"t": 1, "u": 1}, "white_list", 0))
    assert strange == Subscription("static", {"t": 1, "u": 1})
