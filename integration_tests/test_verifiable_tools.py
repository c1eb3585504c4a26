"""Tests that `verifiable-producer` and `verifiable-consumer` print the same events as Apache's
tools: with the same arguments on the same broker, the lines are equal except for their times.
"""

from __future__ import annotations

import contextlib
import json
import signal
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Final

import pytest

from integration_tests import maven
from integration_tests.apache import ApacheKafka
from integration_tests.broker import Broker, PybrokerProcess
from integration_tests.process import ChildProcess

CLASSES: Final = {
    "verifiable-producer": "org.apache.kafka.tools.VerifiableProducer",
    "verifiable-consumer": "org.apache.kafka.tools.VerifiableConsumer",
}
SIDES: Final = ("apache", "ours")
QUICK: Final = {"group.initial.rebalance.delay.ms": "0", "offsets.topic.num.partitions": "5"}
Event = dict[str, Any]


@pytest.fixture(scope="module", params=["apache", "ours"])
def broker(
    request: pytest.FixtureRequest, jars: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Broker]:
    assert jars
    made: Broker
    if request.param == "apache":
        made = ApacheKafka(tmp_path_factory.mktemp("apache"), heap_mib=512)
    else:
        made = PybrokerProcess(tmp_path_factory.mktemp("ours") / "data", overrides=QUICK)
    try:
        made.start()
        yield made
    finally:
        made.close()


def program(side: str, tool: str, *words: str) -> ChildProcess:
    """Start Apache's tool, or ours, in a separate process, because tests end it by signals."""
    if side == "ours":
        return ChildProcess([sys.executable, "-m", "pybroker", tool, *words])
    quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=off"
    java = [maven.java(), "-Xmx256m", "-XX:TieredStopAtLevel=1", quiet]
    return ChildProcess([*java, "-cp", maven.class_path(), CLASSES[tool], *words])


@contextlib.contextmanager
def running(side: str, tool: str, *words: str) -> Iterator[ChildProcess]:
    child = program(side, tool, *words)
    try:
        yield child
    finally:
        child.close()


def events(child: ChildProcess) -> list[Event]:
    """Return the printed events, each with its time and without it."""
    found = []
    for line in child.output.splitlines():
        if line.startswith("{"):
            event = json.loads(line)
            assert list(event)[:2] == ["timestamp", "name"], line
            assert event.pop("timestamp") > 1_600_000_000_000
            found.append(event)
    return found


def run(side: str, tool: str, *words: str) -> tuple[int, list[Event]]:
    """Run the tool to its end."""
    with running(side, tool, *words) as child:
        code = child.wait()
        return code, events(child)


def named(found: Sequence[Event], name: str) -> list[Event]:
    return [event for event in found if event["name"] == name]


@pytest.mark.parametrize(
    "words",
    [
        ["--max-messages", "5"],
        ["--max-messages", "5", "--value-prefix", "3", "--repeating-keys", "2", "--acks", "1"],
        ["--max-messages", "3", "--throughput", "1000", "--message-create-time", "1000"],
        ["--max-messages", "0"],
    ],
)
def test_producers_print_the_same_events(broker: Broker, topic: str, words: list[str]) -> None:
    sides = {}
    for side in SIDES:
        code, found = run(
            *(side, "verifiable-producer", "--bootstrap-server", broker.bootstrap),
            *("--topic", f"{topic}-{side}", *words),
        )
        assert code == 0
        last = found[-1]
        assert isinstance(last.pop("avg_throughput"), float)
        for event in found:
            if "topic" in event:
                assert event.pop("topic") == f"{topic}-{side}"
        sides[side] = found
    assert sides["ours"] == sides["apache"]


def test_a_producer_ends_at_a_signal(broker: Broker, topic: str) -> None:
    for side in SIDES:
        words = ["--bootstrap-server", broker.bootstrap, "--topic", topic, "--throughput", "100"]
        with running(side, "verifiable-producer", *words) as child:
            child.wait_for_line("producer_send_success")
            child.signal(signal.SIGTERM)
            assert child.wait() == 128 + signal.SIGTERM
            found = events(child)
        assert [event["name"] for event in found[-2:]] == ["shutdown_complete", "tool_data"]
        sent = named(found, "producer_send_success")
        assert found[-1]["acked"] == len(sent)
        # Apache's tool may be stopped between counting and sending.
        assert found[-1]["sent"] in (len(sent), len(sent) + (side == "apache"))
        assert [event["value"] for event in sent] == [str(number) for number in range(len(sent))]


def test_consumers_print_the_same_events(broker: Broker, topic: str) -> None:
    """The records are in one batch, so that one answer has all records."""
    made, _ = run(
        *("ours", "verifiable-producer", "--bootstrap-server", broker.bootstrap),
        *("--topic", topic, "--max-messages", "7", "--repeating-keys", "3"),
    )
    assert made == 0
    for words in (
        ["--verbose", "--max-messages", "7"],
        ["--max-messages", "4"],
        ["--max-messages", "7", "--enable-autocommit"],
        ["--max-messages", "7", "--group-instance-id", "static"],
        ["--max-messages", "0"],
        ["--max-messages", "7", "--assignment-strategy", JAVA_COOPERATIVE],
    ):
        sides = {}
        for side in SIDES:
            group = f"{topic}-{side}-{'-'.join(words)}".replace("--", "")
            code, found = run(
                *(side, "verifiable-consumer", "--bootstrap-server", broker.bootstrap),
                *("--topic", topic, "--group-id", group, *words),
            )
            assert code == 0
            sides[side] = in_one(found)
        assert sides["ours"] == sides["apache"], words


JAVA_COOPERATIVE: Final = "org.apache.kafka.clients.consumer.CooperativeStickyAssignor"


def in_one(found: Sequence[Event]) -> list[Event]:
    """Return the events, with the events of several fetches merged, because the number of fetches
    is random.
    """
    together: list[Event] = []
    for event in found:
        before = next((row for row in together if row["name"] == event["name"]), None)
        if event["name"] == "records_consumed" and before is not None:
            before["count"] += event["count"]
            before["partitions"][0]["count"] += event["partitions"][0]["count"]
            before["partitions"][0]["maxOffset"] = event["partitions"][0]["maxOffset"]
        elif event["name"] == "offsets_committed" and before is not None:
            before["offsets"] = event["offsets"]
        else:
            together.append(event)
    return together


def test_consumers_share_a_topic_and_leave_at_a_signal(broker: Broker, topic: str) -> None:
    """Apache's consumer and ours are in one group: the second takes over partitions, and releases
    them again.
    """
    made, _ = run(
        *("ours", "verifiable-producer", "--bootstrap-server", broker.bootstrap),
        *("--topic", topic, "--max-messages", "1"),
    )
    assert made == 0
    words = [
        *("--bootstrap-server", broker.bootstrap, "--topic", topic, "--group-id", topic),
        *("--session-timeout", "6000"),
    ]
    with (
        running("apache", "verifiable-consumer", *words) as theirs,
        running("ours", "verifiable-consumer", *words) as ours,
    ):
        for child in (theirs, ours):
            child.wait_for_line("partitions_assigned")
        ours.signal(signal.SIGINT)
        assert ours.wait() == 128 + signal.SIGINT
        theirs.signal(signal.SIGTERM)
        assert theirs.wait() == 128 + signal.SIGTERM
        for child in (theirs, ours):
            assert [event["name"] for event in events(child)][-1] == "shutdown_complete"
