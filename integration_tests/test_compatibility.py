"""Our tools say what Apache's say, on the same broker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from integration_tests.apache_tools import Tools
from integration_tests.broker import Broker


@pytest.fixture(scope="module")
def tools(jars: str, shared_broker: Broker) -> Iterator[Tools]:
    assert jars
    with Tools(shared_broker.bootstrap) as both:
        yield both


def test_offsets(tools: Tools, topic: str) -> None:
    """Every flag of get-offsets, and its complaints."""
    assert tools.ours("topics", "--create", "--topic", topic, "--partitions", "3").code == 0
    for words in (
        [],
        ["--topic", topic],
        ["--topic", topic, "--partitions", "0,2"],
        ["--topic", topic, "--time", "earliest"],
        ["--topic", topic, "--time", "-1"],
        ["--topic", topic, "--time", "max-timestamp"],
        ["--topic", topic, "--time", "5"],
        ["--topic-partitions", f"{topic}:1-2"],
        ["--topic-partitions", f"{topic}:1,{topic}:-1", "--exclude-internal-topics"],
    ):
        tools.same("get-offsets", *words)
