"""Tests that our tools print the same as Apache's tools on the same broker and ZooKeeper, and that
the page of differences shows the differences that the tests allow.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration_tests import differences
from integration_tests.apache import ApacheZooKeeper
from integration_tests.apache_tools import Tools, assert_same
from integration_tests.broker import PybrokerProcess
from pybroker.tool_list import TOOLS
from unit_tests.patience import WORK_S

pytestmark = pytest.mark.ours

TOOLS_PAGE = Path(__file__).parents[1] / "docs" / "tools.rst"
NUMBERS = r"-?\d+(\.\d+)?|NaN|Infinity"
ZK_WARNING = "deprecation of ZooKeeper"
CONNECTION = "events of the connection"
NODE_TIMES = r"(?<=time = ).*|0x[0-9a-f]+"


@pytest.fixture(scope="module")
def keeper(jars: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheZooKeeper]:
    assert jars
    server = ApacheZooKeeper(tmp_path_factory.mktemp("zookeeper"))
    try:
        server.start()
        yield server
    finally:
        server.close()


@pytest.fixture(scope="module")
def own_broker(
    keeper: ApacheZooKeeper, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PybrokerProcess]:
    broker = PybrokerProcess(
        tmp_path_factory.mktemp("broker") / "data",
        overrides={"broker.id": "3"},
        zookeeper=keeper.connect,
    )
    try:
        broker.start()
        yield broker
    finally:
        broker.close()


@pytest.fixture(scope="module")
def tools(own_broker: PybrokerProcess) -> Iterator[Tools]:
    with Tools(own_broker.bootstrap) as both:
        yield both


@pytest.fixture
def stocked(tools: Tools, topic: str) -> str:
    """Return a topic of three partitions with five records."""
    made = tools.ours("topics", "--create", "--topic", topic, "--partitions", "3")
    assert made.code == 0
    sent = tools.ours("console-producer", "--topic", topic, stdin="a\nb\nc\nd\ne\n")
    assert sent.code == 0
    return topic


def test_the_page_shows_every_difference_and_no_other() -> None:
    text = differences.PAGE.read_text(encoding="utf-8")
    assert text == differences.page_with_rows(text), "run: python -m integration_tests.differences"


def test_every_difference_that_is_allowed_has_its_row() -> None:
    used = {
        name
        for path in Path(__file__).parent.glob("test_*.py")
        for names in re.findall(r"allow=\[([^\]]*)\]", path.read_text(encoding="utf-8"))
        for name in re.findall(r'"([^"]+)"', names)
    }
    assert used <= differences.DIFFERENCES.keys()


def test_offsets(tools: Tools, stocked: str) -> None:
    for words in (
        ["--topic", stocked],
        ["--topic", stocked, "--partitions", "0,2", "--time", "earliest"],
        ["--topic", stocked, "--time", "-3"],
        ["--topic", stocked, "--time", "5", "--exclude-internal-topics"],
        ["--topic", stocked, "--time", "9999999999999"],
        ["--topic", stocked, "--partitions", ""],
        ["--topic-partitions", f"{stocked}:1-2,{stocked}:2-,nosuch:-1"],
    ):
        assert tools.same("get-offsets", *words).code == 0
    for says, *words in (
        ["Could not match any topic-partitions", "--topic", "nosuch"],
        ["numeric partition ids, but received: x", "--partitions", "x"],
        ["Invalid rule specification: a:b", "--topic-partitions", "a:b"],
        ["Malformed time argument soon", "--time", "soon"],
        ["cannot be used with --topic or", "--topic-partitions", "a", "--topic", "a"],
    ):
        assert tools.same("get-offsets", *words, says=says).code == 1


def test_api_versions(tools: Tools) -> None:
    tools.same("broker-api-versions")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--describe", "--topic", "x", "--broker", "3"], "may be specified together"),
        (["--describe"], "At least one entity type must be specified"),
        (["--describe", "--entity-type", "bogus"], "Invalid entity type bogus, the entity type"),
        (["--alter", "--topic", "x"], "At least one of --add-config, --add-config-file, or"),
        (["--alter", "--describe", "--topic", "x"], "exactly one action: --describe, --alter"),
        (["--alter", "--topic", "x", "--add-config", "a"], 'must be in the format "key=val".'),
        (["--describe", "--broker", "x"], "must be a valid integer broker id, but it is: x"),
        (["--alter", "--entity-type", "topics", "--add-config", "a=b"], "must be specified with"),
        (["--describe", "--topic", "nosuch"], "Error while executing config command with args"),
        (
            ["--alter", "--broker", "3", "--add-config", "broker.rack=x"],
            "Cannot update these configs dynamically: Set(broker.rack)",
        ),
        (["--alter", "--broker-logger", "3", "--add-config", "x=INFO"], "Invalid broker logger(s)"),
    ],
)
def test_invalid_changes_of_configs_are_refused(tools: Tools, words: list[str], says: str) -> None:
    assert tools.same("configs", *words, says=says).code == 1


def configs_both(tools: Tools, *words: str) -> None:
    """Make the same change by Apache's tool and by ours, one after the other."""
    assert_same(tools.apache("configs", *words), tools.ours("configs", *words))


def test_configs_of_topics(tools: Tools, topic: str) -> None:
    tools.ours("topics", "--create", "--topic", topic)
    name = ["--entity-type", "topics", "--entity-name", topic]
    both = "retention.ms=5000,cleanup.policy=[compact,delete]"
    configs_both(tools, "--alter", *name, "--add-config", both)
    assert "retention.ms=5000" in tools.same("configs", "--describe", "--topic", topic).out
    removal = ["configs", "--alter", *name, "--delete-config"]
    theirs, ours = tools.apache(*removal, "retention.ms"), tools.ours(*removal, "cleanup.policy")
    assert_same(theirs, ours)
    tools.same(*removal, "retention.ms", says="Invalid config(s): retention.ms")
    tools.ours("configs", "--alter", *name, "--add-config", "retention.bytes=1,retention.ms=[2]")
    tools.same("configs", "--describe", "--topic", topic, "--all")
    tools.same("configs", "--describe", "--entity-type", "topics", allow=["order of topics"])
    shown = tools.ours("configs", "--describe", "--topic", topic, "--format", "json")
    values = {row["name"]: row["value"] for row in json.loads(shown.out)["configs"]}
    assert values == {"retention.bytes": "1", "retention.ms": "2"}


def test_configs_of_brokers(tools: Tools) -> None:
    option = "log.cleaner.threads"
    configs_both(tools, "--alter", "--broker", "3", "--add-config", f"{option}=2")
    configs_both(tools, "--alter", "--broker-defaults", "--add-config", f"{option}=2")
    tools.same("configs", "--describe", "--entity-type", "brokers")
    tools.same("configs", "--describe", "--entity-type", "brokers", "--entity-default")
    tools.same("configs", "--describe", "--broker", "3", "--all")
    tools.same("configs", "--describe", "--broker-logger", "3")
    for entity in (["--broker", "3"], ["--broker-defaults"]):
        assert tools.ours("configs", "--alter", *entity, "--delete-config", option).code == 0
        says = f"Invalid config(s): {option}"
        tools.same("configs", "--alter", *entity, "--delete-config", option, says=says)
    missing = tools.ours("configs", "--describe", "--broker", "7")
    assert (missing.code, missing.err) == (
        1,
        "broker 7 is not running; the running brokers are 3\n",
    )
    quotas = tools.ours("configs", "--describe", "--user", "alice")
    assert (quotas.code, quotas.err) == (
        1,
        "--entity-type users: the brokers do not support quotas yet\n",
    )


def test_configs_in_zookeeper(tools: Tools, keeper: ApacheZooKeeper, topic: str) -> None:
    def same(*words: str, says: str = "") -> None:
        server = ["--zookeeper", keeper.connect]
        tools.same("configs", *server, *words, says=says, allow=[ZK_WARNING])

    same("--describe", "--broker", "3", says="broker 3 is running. Broker configuration operations")
    same("--alter", "--broker-defaults", "--add-config", "log.cleaner.threads=2",
         says="1 brokers are running.")  # fmt: skip
    same("--alter", "--broker", "5", "--add-config", "log.cleaner.threads=2")
    same("--describe", "--broker", "5")
    same("--alter", "--broker", "5", "--delete-config", "nosuch", says="Invalid config(s): nosuch")
    same("--describe", "--all", "--broker", "5", says="--bootstrap-server must be specified for")
    tools.ours("topics", "--create", "--topic", topic)
    server = ["--zookeeper", keeper.connect, "--topic", topic]
    altered = tools.ours("configs", *server, "--alter", "--add-config", "retention.ms=77")
    assert altered.lines == [f"Completed updating config for entity: topic '{topic}'."]
    shown = tools.ours("configs", *server, "--describe")
    assert shown.lines == [f"Configs for topic '{topic}' are retention.ms=77"]
    assert "  retention.ms=77 " in tools.same("configs", "--describe", "--topic", topic).out
    with keeper.client() as client:
        newest = max(client.get_children("/config/changes"))
        note, _ = client.get(f"/config/changes/{newest}")
    assert json.loads(note) == {"version": 2, "entity_path": f"topics/{topic}"}


def test_producing_is_measured(tools: Tools, own_broker: PybrokerProcess, topic: str) -> None:
    tools.ours("topics", "--create", "--topic", topic)
    server = ["--producer-props", f"bootstrap.servers={own_broker.bootstrap}", "acks=1"]
    for words in (
        ["--num-records", "300", "--record-size", "50", "--throughput", "-1"],
        ["--num-records", "20", "--payload-monotonic", "--throughput", "1000"],
        ["--num-records", "5", "--payload-monotonic", "--throughput", "-1", "--print-metrics"],
    ):
        ran = tools.same(
            *("producer-perf-test", "--topic", topic, *words, *server),
            allow=["metrics of the client"],
            mask=[rf"(?<!^)\b({NUMBERS})(?= )|\(.*\)"],
        )
        assert ran.out.startswith(f"{words[1]} records sent, ")
    stored = tools.ours("get-offsets", "--topic", topic)
    assert stored.lines == [f"{topic}:0:{2 * (300 + 20 + 5)}"]


def test_producing_in_transactions_is_measured(
    tools: Tools, own_broker: PybrokerProcess, topic: str
) -> None:
    tools.ours("topics", "--create", "--topic", topic)
    words = ["--num-records", "40", "--payload-monotonic", "--throughput", "100"]
    server = ["--producer-props", f"bootstrap.servers={own_broker.bootstrap}"]
    ran = tools.same(
        *("producer-perf-test", "--topic", topic, *words, *server),
        *("--transactional-id", topic, "--transaction-duration-ms", "100"),
        mask=[rf"(?<!^)\b({NUMBERS})(?= )|\(.*\)"],
    )
    assert ran.out.startswith("40 records sent, ")
    read = ["--topic", topic, "--from-beginning", "--isolation-level", "read_committed"]
    found = tools.ours("console-consumer", *read, "--max-messages", "80")
    assert sorted(found.lines) == sorted(2 * [str(number) for number in range(40)])
    (line,) = tools.ours("get-offsets", "--topic", topic).lines
    assert int(line.split(":")[2]) >= 80 + 2, "each tool has written a commit marker"


def test_payloads_from_a_file(
    tools: Tools, own_broker: PybrokerProcess, topic: str, tmp_path: Path
) -> None:
    tools.ours("topics", "--create", "--topic", topic)
    file = tmp_path / "payloads"
    file.write_text("one,two,three,,")
    words = ["--num-records", "9", "--throughput", "-1", "--payload-file", str(file)]
    server = ["--producer-props", f"bootstrap.servers={own_broker.bootstrap}"]
    tools.same(
        *("producer-perf-test", "--topic", topic, *words, "--payload-delimiter", ",", *server),
        mask=[rf"(?<=sent, ).*|{NUMBERS} ms"],
    )
    read = tools.ours("console-consumer", "--topic", topic, "--from-beginning", "--max-messages=18")
    assert set(read.lines) <= {"one", "two", "three"}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--record-size", "5"], "Either"),
        (["--producer-props", "acks=1"], "--record-size"),
        (["--payload-monotonic", "--producer-props", "acks"], "Invalid property: acks"),
        (["--payload-file", "/nosuch", "--producer-props", "acks=1"], "File does not exist"),
    ],
)
def test_invalid_arguments_of_producer_perf_test_are_refused(
    tools: Tools, words: list[str], says: str
) -> None:
    common = ["--topic", "x", "--num-records", "1", "--throughput", "-1"]
    assert tools.same("producer-perf-test", *common, *words, says=says).code == 1


def test_consuming_is_measured(tools: Tools, topic: str, own_broker: PybrokerProcess) -> None:
    tools.ours("topics", "--create", "--topic", topic, "--partitions", "2")
    tools.ours("producer-perf-test", "--topic", topic, "--num-records", "700", "--record-size",
               "100", "--throughput", "-1", "--bootstrap-server", own_broker.bootstrap)  # fmt: skip
    # Apache's consumer needs a group. The table in `unit_tests/tools/test_perf.py` compares what
    # its tool prints.
    whole = tools.ours("consumer-perf-test", "--topic", topic, "--messages", "700")
    header, line = whole.lines
    assert header == (
        "start.time, end.time, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec,"
        " rebalance.time.ms, fetch.time.ms, fetch.MB.sec, fetch.nMsg.sec"
    )
    moment = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d:\d{3}"
    assert re.fullmatch(
        rf"{moment}, {moment}, 0\.0668, \d+\.\d{{4}}, 700, \d+\.\d{{4}}, \d+, \d+,"
        r" [\d.]+, [\d.]+",
        line,
    )
    short = tools.ours("consumer-perf-test", "--topic", topic, "--messages", "701", "--timeout",
                       "300", "--hide-header", "--print-metrics")  # fmt: skip
    assert short.code == 0
    assert short.lines[0].startswith("WARNING: Exiting before consuming the expected number of")
    assert "records-consumed-total:{client-id=perf-consumer-client}" in short.out


ONE_SHOT = (
    ["ls", "/"],
    ["ls", "-R", "/brokers"],
    ["get", "-s", "/brokers/ids/3"],
    ["stat", "/config"],
    ["get", "/nosuch"],
    ["ls"],
    ["nosuch"],
    ["getAcl", "/brokers"],
)
SCRIPT = r"""
create /shell first
create /shell
create -s /shell/s "hello world"
create -e /shell/e 'x y'
get /shell/e
ls -s /shell
set -s /shell second
set -v 9 /shell third
stat /shell
setAcl /shell world:anyone:cdrwa
getAcl -s /shell
delete /shell
delete -v 5 /shell/e
get relative
ls /a//b
ls -z /
create /nosuch/child
getAllChildrenNumber /shell
deleteall /shell
ls /shell
sync /brokers
printwatches
version
history
redo 4
"""


def test_one_command_of_the_shell(tools: Tools, keeper: ApacheZooKeeper) -> None:
    for words in ONE_SHOT:
        tools.same("zookeeper-shell", "-server", keeper.connect, *words, allow=[CONNECTION])
    tools.same("zookeeper-shell", "-server", f"{keeper.connect}/brokers", "ls", "/",
               allow=[CONNECTION])  # fmt: skip


def test_many_commands_of_the_shell(tools: Tools, keeper: ApacheZooKeeper) -> None:
    server = ["zookeeper-shell", "-server", keeper.connect]
    theirs, ours = tools.apache(*server, stdin=SCRIPT), tools.ours(*server, stdin=SCRIPT)
    assert_same(theirs, ours, allow=[CONNECTION, "version of the shell"], mask=[NODE_TIMES])
    their_errors, our_errors = (ran.err.splitlines() for ran in (theirs, ours))
    for ran in (their_errors, our_errors):
        ran[:] = [line.rpartition("Exception: ")[2] for line in ran if not line.startswith("\t")]
    assert our_errors == their_errors


def test_the_shell_without_a_server(tools: Tools) -> None:
    ran = tools.ours("zookeeper-shell", "127.0.0.1:1", "ls", "/")
    assert ran.code == 1
    assert ran.err == (
        "no ZooKeeper server could be reached (127.0.0.1:1: Connection refused); check the"
        " address and that the server runs\n"
    )


def examples(page: str) -> list[str]:
    """Return the command lines of a document, without the commands that run a server."""
    return [
        line.strip()
        for line in page.splitlines()
        if re.match(r"    (pybroker |echo )", line) and "pybroker start" not in line
    ]


def test_the_examples_of_the_page_of_tools_run(
    keeper: ApacheZooKeeper, own_broker: PybrokerProcess, tmp_path: Path
) -> None:
    page = TOOLS_PAGE.read_text(encoding="utf-8")
    headings = re.findall(r"^([a-z-]+)\n-+$", page, re.MULTILINE)
    assert sorted(headings) == sorted(TOOLS)
    for line in examples(page) * 2:  # the second run works on the results of the first
        command = (
            line.replace("127.0.0.1:9092", own_broker.bootstrap)
            .replace("127.0.0.1:2181", keeper.connect)
            .replace("path: /tmp/payments", f"path: {tmp_path / 'table'}")
            # The second run deletes records before the job has read them.
            .replace("[payments]}", "[payments], fail-on-data-loss: false}")
            .replace(" data/", f" {own_broker.data}/")
            .replace("pybroker ", f"{sys.executable} -m pybroker ", 1)
        )
        done = subprocess.run(
            ["sh", "-c", command],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=WORK_S,
            check=False,
        )
        assert (done.returncode, "Traceback" in done.stderr) == (0, False), line + done.stderr
