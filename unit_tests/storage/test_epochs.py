"""Tests of the leader epochs of a log, as tables (KIP-101, KIP-279)."""

from __future__ import annotations

import pytest

from pybroker.storage.epochs import EpochHistory, EpochStart

END = 100
Pairs = list[tuple[int, int]]


def history(entries: Pairs) -> EpochHistory:
    return EpochHistory(EpochStart(*entry) for entry in entries)


@pytest.mark.parametrize(
    ("entries", "epoch", "expected"),
    [
        ([], 0, (-1, -1)),
        ([], -1, (-1, -1)),
        ([(2, 10), (4, 30)], -1, (-1, -1)),
        ([(2, 10), (4, 30)], 0, (0, 10)),
        ([(2, 10), (4, 30)], 1, (1, 10)),
        ([(2, 10), (4, 30)], 2, (2, 30)),
        ([(2, 10), (4, 30)], 3, (2, 30)),
        ([(2, 10), (4, 30)], 4, (4, END)),
        ([(2, 10), (4, 30)], 5, (-1, -1)),
    ],
)
def test_end_offset(entries: Pairs, epoch: int, expected: tuple[int, int]) -> None:
    assert history(entries).end_offset(epoch, END) == expected


@pytest.mark.parametrize(
    ("entries", "new", "expected"),
    [
        ([], (0, 0), [(0, 0)]),
        ([(1, 0)], (2, 5), [(1, 0), (2, 5)]),
        ([(1, 0)], (1, 5), [(1, 0)]),
        ([(1, 0), (2, 5)], (3, 5), [(1, 0), (3, 5)]),
        ([(1, 0), (4, 5)], (3, 9), [(1, 0), (3, 9)]),
        ([(1, 0), (2, 5)], (3, 2), [(1, 0), (3, 2)]),
    ],
)
def test_assign(entries: Pairs, new: tuple[int, int], expected: Pairs) -> None:
    changed = history(entries)
    assert changed.assign(*new) is (entries != expected)
    assert list(changed.entries) == expected


@pytest.mark.parametrize(
    ("end", "expected"),
    [(0, []), (1, [(1, 0)]), (10, [(1, 0)]), (11, [(1, 0), (2, 10)]), (50, [(1, 0), (2, 10)])],
)
def test_truncate_end(end: int, expected: Pairs) -> None:
    changed = history([(1, 0), (2, 10)])
    assert changed.truncate_end(end) is (len(expected) < 2)
    assert list(changed.entries) == expected


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        (0, [(1, 5), (2, 10), (4, 20)]),
        (5, [(1, 5), (2, 10), (4, 20)]),
        (7, [(1, 7), (2, 10), (4, 20)]),
        (10, [(2, 10), (4, 20)]),
        (99, [(4, 99)]),
    ],
)
def test_truncate_start(start: int, expected: Pairs) -> None:
    changed = history([(1, 5), (2, 10), (4, 20)])
    assert changed.truncate_start(start) is (start > 5)
    assert list(changed.entries) == expected


@pytest.mark.parametrize(("offset", "epoch"), [(4, -1), (5, 1), (9, 1), (10, 2), (500, 2)])
def test_epoch_of(offset: int, epoch: int) -> None:
    assert history([(1, 5), (2, 10)]).epoch_of(offset) == epoch
