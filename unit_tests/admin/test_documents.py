"""The page of metrics agrees with the code."""

from __future__ import annotations

from docs import make_metrics


def test_the_page_of_metrics_is_made_from_the_list() -> None:
    assert make_metrics.PAGE.read_text() == make_metrics.render(), "run: make docs"
