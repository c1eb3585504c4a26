"""Tests that the metrics document matches the code."""

from __future__ import annotations

from docs import make_metrics


def test_metrics_document_matches_the_code() -> None:
    assert make_metrics.PAGE.read_text() == make_metrics.render(), "run: make docs"
