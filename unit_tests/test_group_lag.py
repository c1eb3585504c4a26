"""Tests of the computation of consumer lag: it is never negative, and None if it is unknown."""

from __future__ import annotations

import pytest

from pybroker.group_lag import LogSpan, bytes_behind, records_behind, seconds_behind


@pytest.mark.parametrize(
    ("committed", "end", "records"), [(0, 0, 0), (3, 10, 7), (10, 10, 0), (11, 10, 0), (0, 5, 5)]
)
def test_records(committed: int, end: int, records: int) -> None:
    assert records_behind(committed, end) == records


@pytest.mark.parametrize(
    ("committed", "span", "size"),
    [
        (100, LogSpan(100, 200, 200, 1_000), 1_000),
        (150, LogSpan(100, 200, 200, 1_000), 500),
        (200, LogSpan(100, 200, 200, 1_000), 0),
        (250, LogSpan(100, 200, 200, 1_000), 0),
        (7, LogSpan(100, 200, 200, 1_000), 1_000),  # deleted records have no size any more
        (0, LogSpan(0, 0, 0, 0), 0),
        (5, LogSpan(5, 5, 5, 77), 0),
        (150, LogSpan(100, 200, 200), None),
    ],
)
def test_bytes(committed: int, span: LogSpan, size: int | None) -> None:
    assert bytes_behind(committed, span) == size


def test_seconds() -> None:
    assert seconds_behind(1_000, 3_500) == 2.5
    assert seconds_behind(4_000, 3_500) == 0
    assert seconds_behind(-1, 3_500) is None
