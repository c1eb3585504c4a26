"""Tests that `consumer-groups` prints the same as Apache's kafka-consumer-groups.sh on the same
cluster with the same groups: some have members of confluent-kafka, some have only committed
offsets.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import confluent_kafka
import pytest

from integration_tests.apache import ApacheKafka
from integration_tests.apache_tools import Ran, Tools, assert_same
from integration_tests.broker import Broker, PybrokerProcess
from unit_tests.patience import PATIENCE_S, wait_until

ORDER: Final = "order of groups"
ROWS: Final = "rows of tables"
ERRORS: Final = "errors of groups"
MODULE_MS_MAX: Final = 3_600_000
LOADING: Final = {
    confluent_kafka.KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    confluent_kafka.KafkaError.COORDINATOR_NOT_AVAILABLE,
    confluent_kafka.KafkaError.NOT_COORDINATOR,
}
"""The errors that librdkafka retries only for a moment before it reports them."""
QUICK: Final = {"group.initial.rebalance.delay.ms": "0", "offsets.topic.num.partitions": "5"}
LONG: Final = "a-topic-with-a-name-that-is-longer-than-most"


@dataclass(slots=True)
class Cluster:
    """A broker with topics `orders` (3 partitions, 4 records in the first), `LONG` (1 record) and
    `later`, Apache's and our tools, and the consumers of the groups.
    """

    bootstrap: str
    tools: Tools
    consumers: list[confluent_kafka.Consumer] = field(default_factory=list)

    def consumer(self, group: str, **options: object) -> confluent_kafka.Consumer:
        made = confluent_kafka.Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": group,
                "client.id": "reader",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "max.poll.interval.ms": MODULE_MS_MAX,  # a member is not polled any more
                **options,
            }
        )
        self.consumers.append(made)
        return made

    def commit(self, group: str, *offsets: tuple[str, int, int]) -> None:
        """Commit offsets by a consumer that is not a member of the group."""
        rows = [confluent_kafka.TopicPartition(*row) for row in offsets]
        committing = self.consumer(group)

        def is_done() -> bool:
            try:
                committing.commit(offsets=rows, asynchronous=False)
            except confluent_kafka.KafkaException as error:
                if error.args[0].code() not in LOADING:
                    raise
                return False
            return True

        wait_until(is_done, what=f"the commit of {group}")

    def join(self, group: str, *topics: str, **options: object) -> confluent_kafka.Consumer:
        """Join with a member and wait until it has its partitions."""
        made = self.consumer(group, **options)
        made.subscribe(list(topics))

        def is_assigned() -> bool:
            made.poll(0.1)
            return bool(made.assignment())

        wait_until(is_assigned, what=f"an assignment in group {group}")
        return made

    def same(self, words: str, *more: str, **how: object) -> Ran:
        return self.tools.same("consumer-groups", *words.split(), *more, **how)  # type: ignore[arg-type]

    def both(self, words: str) -> tuple[Ran, Ran]:
        """Return the results of Apache's tool and then of our tool, which change the same
        groups.
        """
        chosen = words.split()
        return (
            self.tools.apache("consumer-groups", *chosen),
            self.tools.ours("consumer-groups", *chosen),
        )

    def ours(self, words: str) -> Ran:
        return self.tools.ours("consumer-groups", *words.split())


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


def write(bootstrap: str, topic: str, count: int) -> None:
    """Write records to the first partition."""
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap})
    for number in range(count):
        producer.produce(topic, str(number).encode(), partition=0)
    assert producer.flush(PATIENCE_S) == 0


@pytest.fixture(scope="module")
def cluster(broker: Broker) -> Iterator[Cluster]:
    with Tools(broker.bootstrap) as tools:
        for topic, partitions, records in (("orders", 3, 4), (LONG, 1, 1), ("later", 1, 0)):
            made = tools.ours(
                "topics", "--create", "--topic", topic, "--partitions", str(partitions)
            )
            assert made.code == 0, made
            write(broker.bootstrap, topic, records)
        found = Cluster(broker.bootstrap, tools)
        found.commit("done", ("orders", 0, 4), ("orders", 1, 0), (LONG, 0, 0))
        found.commit("beyond", ("orders", 1, 7))
        found.join("busy", "orders", **{"group.instance.id": "static-1"})
        found.join("two-topics", "orders", LONG)
        found.commit("late-by-all", ("orders", 2, 0))
        yield found
        for consumer in found.consumers:
            consumer.close()


@pytest.mark.parametrize(
    "words",
    ["--list", "--list --state", "--list --state empty", "--list --state Stable,Dead,EMPTY"],
)
def test_lists(cluster: Cluster, words: str) -> None:
    ours = cluster.same(words, allow=[ORDER])
    assert ours.code == 0 and "done" in ours.out
    assert ours.lines[1:] == sorted(ours.lines[1:])


@pytest.mark.parametrize(
    "form", ["", " --offsets", " --members", " --members --verbose", " --state"]
)
@pytest.mark.parametrize(
    "groups",
    [
        "--group done",
        "--group busy",
        "--group two-topics",
        "--group nosuch",
        "--group busy --group done --group nosuch --group two-topics",
        "--all-groups",
    ],
)
def test_descriptions(cluster: Cluster, groups: str, form: str) -> None:
    ours = cluster.same(f"--describe {groups}{form}", allow=["lag below zero", ORDER])
    assert ours.code == 0


def test_a_description_is_in_order(cluster: Cluster) -> None:
    theirs, ours = cluster.both("--describe --group busy")
    assert ours.lines == theirs.lines
    assert [line.split()[1:3] for line in ours.lines[2:]] == [
        ["orders", str(number)] for number in range(3)
    ]


def test_messages_beside_a_description(cluster: Cluster) -> None:
    cluster.same(
        "--describe --group done",
        says="Consumer group 'done' has no active members.",
        allow=[ORDER],
    )
    cluster.same("--describe --group nosuch", says="Consumer group 'nosuch' does not exist.")


def test_a_lag_is_never_negative(cluster: Cluster) -> None:
    ours = cluster.same("--describe --group beyond", allow=["lag below zero"])
    assert ours.lines[-1].split()[3:6] == ["7", ours.lines[-1].split()[4], "0"]


def test_lag_in_detail(cluster: Cluster) -> None:
    words = "--describe --group done --lag-details"
    rows = [line.split() for line in cluster.ours(words).lines[2:]]
    (behind,) = [row for row in rows if row[1] == LONG]
    group, _, partition, current, end, lag, stable, size, seconds, *_ = behind
    assert (group, partition, current, end, lag, stable) == ("done", "0", "0", "1", "1", "1")
    assert int(size) > 60, "a batch has a head of 61 bytes"
    assert float(seconds) >= 0
    documents = [
        json.loads(line) for line in cluster.ours("--describe --group done --format json").lines
    ]
    (found,) = [row for row in documents if row["topic"] == LONG]
    assert (found["lag"], found["stableLag"], found["lagBytes"]) == (1, 1, int(size))
    assert found["lagSeconds"] >= float(seconds)
    (finished,) = [row for row in documents if row["partition"] == 1]
    assert (finished["lag"], finished["lagBytes"], finished["lagSeconds"]) == (0, 0, 0.0)


RESETS: Final = (
    "--topic orders --to-earliest",
    "--topic orders --to-latest",
    "--topic orders:0,2 --to-latest",
    f"--topic orders:1 --topic {LONG} --to-earliest",
    "--all-topics --to-current",
    "--topic later --topic orders --to-current",
    "--all-topics --to-offset 1",
    "--all-topics --to-offset 99",
    "--all-topics --shift-by -1",
    "--all-topics --shift-by 1",
    "--all-topics --to-datetime 2020-02-29T23:59:59.000",
    "--all-topics --to-datetime 2020-02-29T23:59:59.000+01:30",
    "--all-topics --to-datetime 2099-01-01T00:00:00.000",
    "--all-topics --by-duration P1D",
    "--all-topics --by-duration PT0.000S",
)


@pytest.mark.parametrize("scenario", RESETS)
def test_plans_of_resets(cluster: Cluster, scenario: str) -> None:
    for mode in ("--dry-run", "--dry-run --export"):
        ours = cluster.same(f"--reset-offsets --group done {scenario} {mode}", allow=[ROWS, ORDER])
        assert ours.code == 0 and len(ours.lines) > 1


def test_plans_for_several_groups(cluster: Cluster) -> None:
    words = "--reset-offsets --group done --group late-by-all --all-topics --to-latest --dry-run"
    cluster.same(words, allow=[ROWS, ORDER])
    cluster.same(f"{words} --export", allow=[ORDER])


def test_a_plan_for_a_group_without_commits(cluster: Cluster) -> None:
    cluster.same("--reset-offsets --group nosuch --all-topics --to-latest --dry-run", allow=[ROWS])


def test_resets_are_carried_out_as_planned(cluster: Cluster, tmp_path: Path) -> None:
    """Each tool carries out a reset, and the other tool then describes the committed offsets."""
    for number, scenario in enumerate(RESETS):
        words = f"--reset-offsets {scenario} --execute"
        theirs_group, our_group = f"reset-{number}-a", f"reset-{number}-b"
        for group in (theirs_group, our_group):
            cluster.commit(group, ("orders", 0, 2), ("orders", 1, 0), (LONG, 0, 1))
        theirs = cluster.tools.apache("consumer-groups", "--group", theirs_group, *words.split())
        ours = cluster.tools.ours("consumer-groups", "--group", our_group, *words.split())
        assert_same(theirs, ours, allow=[ROWS, ORDER], mask=[r"reset-\d+-[ab]"])
        assert ours.code == 0
        assert_same(
            cluster.tools.apache("consumer-groups", "--describe", "--group", our_group),
            cluster.tools.ours("consumer-groups", "--describe", "--group", theirs_group),
            allow=[ORDER],
            mask=[r"reset-\d+-[ab]"],
        )


def test_an_exported_plan_can_be_imported(cluster: Cluster, tmp_path: Path) -> None:
    for groups in ("--group done", "--group done --group late-by-all"):
        words = f"--reset-offsets {groups} --all-topics --to-latest --dry-run --export"
        theirs, ours = cluster.both(words)
        for name, ran in (("theirs", theirs), ("ours", ours)):
            path = tmp_path / f"{name}.csv"
            path.write_text(ran.out.rstrip("\n") + "\n")
            cluster.same(
                f"--reset-offsets {groups} --dry-run --from-file", str(path), allow=[ROWS, ORDER]
            )
    (tmp_path / "other.csv").write_text("nosuch,orders,0,1\n")
    cluster.same(
        "--reset-offsets --group done --dry-run --from-file",
        str(tmp_path / "other.csv"),
        says="No reset plan for group done found",
        allow=[ROWS],
    )


def test_a_group_with_members_is_not_reset(cluster: Cluster) -> None:
    words = "--reset-offsets --group busy --topic orders --to-latest --execute"
    ours = cluster.same(words, says="if the group 'busy' is inactive", allow=[ROWS])
    assert "still in group 'busy': " in ours.err
    assert "(instance static-1), client reader, host /127.0.0.1" in ours.err


def test_groups_are_deleted(cluster: Cluster) -> None:
    for name in ("gone-a", "gone-b", "gone-c", "gone-d"):
        cluster.commit(name, ("orders", 0, 0))
    theirs = cluster.tools.apache("consumer-groups", "--delete", "--group", "gone-a")
    ours = cluster.tools.ours("consumer-groups", "--delete", "--group", "gone-b")
    assert_same(theirs, ours, mask=["gone-."])
    theirs = cluster.tools.apache(
        "consumer-groups", "--delete", *("--group", "busy", "--group", "gone-c")
    )
    ours = cluster.tools.ours(
        "consumer-groups", "--delete", *("--group", "busy", "--group", "gone-d")
    )
    assert_same(theirs, ours, allow=[ERRORS, "names of deleted groups"])
    assert "NON_EMPTY_GROUP" in ours.out and "still in group 'busy': " in ours.err
    assert "gone-" not in cluster.same("--list", allow=[ORDER]).out
    cluster.same("--delete --group nosuch", allow=[ERRORS])


def test_offsets_are_deleted(cluster: Cluster) -> None:
    for name in ("forget-a", "forget-b"):
        cluster.commit(name, *(("orders", number, 0) for number in range(3)), (LONG, 0, 0))
    for topics in ("orders:0,2", "orders", LONG, "orders:7", "nosuch", f"orders:1 --topic {LONG}"):
        words = f"--delete-offsets --topic {topics}".split()
        theirs = cluster.tools.apache("consumer-groups", "--group", "forget-a", *words)
        ours = cluster.tools.ours("consumer-groups", "--group", "forget-b", *words)
        assert_same(theirs, ours, allow=[ROWS, ERRORS], mask=["forget-."])
        for name in ("forget-a", "forget-b"):
            cluster.same(f"--describe --group {name}", allow=[ORDER])


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--group busy --topic orders", "Encounter some partition level error"),
        ("--group busy --topic orders:0,7 --topic nosuch", "Encounter some partition level error"),
        ("--group nosuch --topic orders", "'nosuch' does not exist."),
    ],
)
def test_offsets_that_are_not_deleted(cluster: Cluster, words: str, says: str) -> None:
    cluster.same(f"--delete-offsets {words}", says=says, allow=[ROWS, ERRORS])


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--describe", "Option [describe] takes one of these options: "),
        (
            "--describe --group a --state --members",
            "Option [describe] takes at most one of these options: [members], [offsets], [state]",
        ),
        ("--describe --group a --state x", "Option [describe] does not take a value for [state]"),
        (
            "--members --group a",
            "Option(s) [members] are unavailable given other options on the command line",
        ),
        ("--list --state stable,x", "Invalid state list 'stable,x'. Valid states are: Preparing"),
        ("--list --type x", "Invalid types list 'x'. Valid types are: Consumer, Classic"),
        ("--delete", "Option [delete] takes one of these options: "),
        ("--delete --group a --topic b", "does not support topic-specific offset deletion"),
        ("--delete-offsets --group a", "Option [delete-offsets] takes the following options: "),
        ("--delete-offsets --group a --topic b:x", "Invalid partition 'x' specified in topic arg"),
        ("--reset-offsets --group done --to-current", "One of the reset scopes should be defined"),
        (
            "--reset-offsets --group done --all-topics",
            "Option '[reset-offsets]' requires one of the following scenarios: ",
        ),
        (
            "--reset-offsets --group a --all-topics --to-current --to-earliest",
            'Option "[to-earliest]" can\'t be used with option "[to-current]"',
        ),
        (
            "--reset-offsets --group a --all-topics --to-current --dry-run --execute",
            "Option [reset-offsets] only accepts one of [execute] and [dry-run]",
        ),
        (
            "--reset-offsets --group a --all-topics --to-current",
            "WARN: No action will be performed as the --execute option is missing.",
        ),
        (
            "--reset-offsets --all-topics --to-current --dry-run",
            "Option [reset-offsets] takes one of these options: ",
        ),
        (
            "--reset-offsets --group done --topic later --shift-by 1 --dry-run",
            "Cannot shift offset for partition later-0 since there is no current committed offset",
        ),
        (
            "--reset-offsets --group done --topic orders:1:2 --to-latest --dry-run",
            "Invalid topic arg 'orders:1:2', expected topic name and partitions",
        ),
        ("--list --group a", 'Option "[group]" can\'t be used with option "[list]"'),
        (
            "--describe --group a --all-groups",
            'Option "[group]" can\'t be used with option "[all-groups]"',
        ),
        (
            "--describe --group a --topic b",
            'Option "[topic]" can\'t be used with option "[describe]"',
        ),
        ("--group a", "Command must include exactly one action: --list, --describe, --delete"),
        ("--list --describe --all-groups", "Command must include exactly one action: --list,"),
    ],
)
def test_complaints(cluster: Cluster, words: str, says: str) -> None:
    cluster.same(words, says=says, allow=[ROWS])


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--topic nosuch --to-latest", "Executing consumer group command failed due to"),
        ("--all-topics --to-datetime 2020", "It does not contain a 'T' according to ISO8601"),
        ("--all-topics --to-datetime 2020-01-01T00:00:00", 'Unparseable date: "2020-01-01T00:00'),
        ("--all-topics --to-datetime 2020-02-30T00:00:00.000", "Unparseable date: "),
        ("--all-topics --by-duration 5", "Text cannot be parsed to a Duration"),
        ("--from-file /nosuch", "Executing consumer group command failed due to"),
    ],
)
def test_commands_that_fail(cluster: Cluster, words: str, says: str) -> None:
    theirs, ours = cluster.both(f"--reset-offsets --group done --dry-run {words}")
    assert (theirs.code, ours.code) == (0, 1)
    assert says in theirs.complaint and says in ours.complaint
    assert ours.out == "" and len(ours.err.splitlines()) == 1


def test_console_consumers_continue_at_the_committed_offsets(cluster: Cluster, topic: str) -> None:
    """Apache's console consumer and ours read in turn in the same group."""
    made = cluster.tools.ours("topics", "--create", "--topic", topic, "--partitions", "1")
    assert made.code == 0
    write(cluster.bootstrap, topic, 8)
    words = [*("--topic", topic, "--from-beginning", "--max-messages", "2")]
    named = (
        ("--group", topic),
        ("--consumer-property", f"group.id={topic}"),
        ("--group", topic, "--consumer-property", f"group.id={topic}"),
        ("--group", topic),
    )
    for number, group in enumerate(named):
        tool = cluster.tools.ours if number % 2 else cluster.tools.apache
        ran = tool("console-consumer", *words, *group)
        assert (ran.code, ran.lines) == (0, [str(2 * number), str(2 * number + 1)]), ran
        assert "Processed a total of 2 messages" in ran.err
        described = cluster.same(f"--describe --group {topic}", allow=[ORDER])
        assert described.lines[-1].split()[3:6] == [str(2 * number + 2), "8", str(6 - 2 * number)]


def test_console_consumers_read_all_topics_that_match(cluster: Cluster, topic: str) -> None:
    for name in (f"{topic}-a", f"{topic}-b", f"{topic}-other"):
        assert cluster.tools.ours("topics", "--create", "--topic", name).code == 0
        write(cluster.bootstrap, name, 2)
    words = ["--include", f"{topic}-[ab]", "--from-beginning", "--max-messages", "4"]
    theirs = cluster.tools.apache("console-consumer", *words)
    ours = cluster.tools.ours("console-consumer", *words)
    assert_same(theirs, ours, in_any_order=True)
    assert sorted(ours.lines) == ["0", "0", "1", "1"]
    listed = cluster.same("--list", allow=[ORDER]).lines
    assert sum(bool(re.fullmatch(r"console-consumer-\d{1,5}", name)) for name in listed) == 2


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--topic a --group b --partition 0", "Options group and partition cannot be specified"),
        (
            "--topic a --group b --consumer-property group.id=c",
            "The group ids provided in different places (directly using '--group', via"
            " '--consumer-property', or via '--consumer.config') do not match. Detected group ids:",
        ),
        ("--group a", "Exactly one of --include/--topic is required."),
        ("--topic a --include a", "Exactly one of --include/--topic is required."),
        (
            "--topic a --from-beginning --consumer-property auto.offset.reset=latest",
            "Can't simultaneously specify --from-beginning and 'auto.offset.reset=latest', please"
            " remove one option",
        ),
    ],
)
def test_console_consumers_report_invalid_arguments(
    cluster: Cluster, words: str, says: str
) -> None:
    cluster.tools.same("console-consumer", *words.split(), says=says)
