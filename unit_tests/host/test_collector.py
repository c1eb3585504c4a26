"""Tests that the objects of a started broker are not searched for reference cycles again."""

from __future__ import annotations

import gc

from pybroker.host.process import spare_the_collector


def test_objects_of_the_start_are_not_collected_again() -> None:
    threshold = gc.get_threshold()
    frozen = gc.get_freeze_count()
    kept = [[number] for number in range(1000)]
    try:
        spare_the_collector()
        assert gc.get_freeze_count() > frozen + len(kept)
        assert gc.get_threshold()[0] > threshold[0]
        assert gc.isenabled()
    finally:
        gc.set_threshold(*threshold)


def test_the_collector_runs_rarely_during_a_start() -> None:
    threshold, frozen = gc.get_threshold(), gc.get_freeze_count()
    collections = gc.get_stats()[2]["collections"]
    try:
        spare_the_collector(collects=False)
        assert gc.get_stats()[2]["collections"] == collections
        assert gc.get_freeze_count() > frozen
        assert gc.get_threshold()[0] > threshold[0]
    finally:
        gc.set_threshold(*threshold)
