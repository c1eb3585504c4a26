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
