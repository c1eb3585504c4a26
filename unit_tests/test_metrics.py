"""Tests of metrics: counters, and the distribution of durations."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pybroker.metrics import (
    Metrics,
    SharedTimeMeter,
    TimeMeter,
    bucket_end_s,
    bucket_of,
    quantile_s,
)


@given(st.floats(min_value=1e-7, max_value=1e5))
def test_a_bucket_is_accurate_to_an_eighth(seconds: float) -> None:
    end = bucket_end_s(bucket_of(seconds))
    assert seconds < end <= seconds * 1.126


@given(st.floats(min_value=-1.0, max_value=1e5), st.floats(min_value=-1.0, max_value=1e5))
def test_buckets_keep_the_order(one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert bucket_of(low) <= bucket_of(high)


def test_a_duration_of_zero_has_a_bucket_that_ends_at_zero() -> None:
    assert bucket_end_s(bucket_of(0.0)) == 0.0
    assert quantile_s({}, 0.5) == 0.0


@pytest.mark.parametrize("meter", [TimeMeter(), SharedTimeMeter()])
def test_quantiles_of_counted_durations(meter: TimeMeter) -> None:
    for milliseconds in range(1, 101):
        meter.add(milliseconds / 1000)
    assert meter.count == 100 and meter.total_s == pytest.approx(5.05)
    for share in (0.5, 0.95, 0.99):
        assert quantile_s(meter.buckets, share) == pytest.approx(share / 10, rel=0.15)


def test_a_weighted_duration_counts_with_its_weight() -> None:
    meter = TimeMeter()
    meter.add(0.001, 16)
    meter.add(1.0)
    assert meter.count == 17 and meter.total_s == pytest.approx(1.016)
    assert quantile_s(meter.buckets, 0.5) < 0.002


def test_a_removed_topic_stays_in_the_sum() -> None:
    metrics = Metrics()
    metrics.topic("a").bytes_in += 5
    metrics.topic("b").bytes_in += 7
    metrics.forget_topic("a")
    metrics.forget_topic("a")
    assert list(metrics.topics) == ["b"]
    assert metrics.all_topics().bytes_in == 12


def test_names_of_missing_topics_take_no_memory() -> None:
    metrics = Metrics()
    for number in range(1000):
        metrics.counters(f"no-such-{number}").failed_fetch_requests += 1
    assert not metrics.topics
    assert metrics.all_topics().failed_fetch_requests == 1000
