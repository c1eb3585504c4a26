"""Tests that the programs in the documents run against a real broker and print what the text
says.
"""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from integration_tests.broker import Broker
from integration_tests.process import free_port
from unit_tests.patience import PATIENCE_S, WORK_S, wait_until

pytestmark = pytest.mark.ours

ROOT = Path(__file__).parents[1]


def program(document: str, imports: str) -> str:
    """Return the indented block of a document that imports that module."""
    text = (ROOT / document).read_text(encoding="utf-8")
    blocks: list[list[str]] = [[]]
    for line in text.splitlines():
        if line and not line.startswith(" "):
            blocks.append([])
        else:
            blocks[-1].append(line)
    found = [block for block in blocks if any(imports in line for line in block)]
    assert len(found) == 1, f"{document} has one program with {imports}"
    return textwrap.dedent("\n".join(found[0]))


def run(code: str, broker: Broker) -> str:
    assert "127.0.0.1:9092" in code
    return output_of("-c", code.replace("127.0.0.1:9092", broker.bootstrap))


@contextmanager
def running(code: str) -> Iterator[None]:
    """Run a program in a process of its own, and kill it at the end of the block."""
    process = subprocess.Popen([sys.executable, "-c", code])
    try:
        yield
        assert process.poll() is None, "the program has failed"
    finally:
        process.kill()
        process.wait()


def output_of(*words: str) -> str:
    """Run Python with these arguments. Return its output."""
    done = subprocess.run(
        [sys.executable, *words],
        capture_output=True,
        text=True,
        timeout=WORK_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_program_of_the_client_page_runs_again(broker: Broker) -> None:
    for first in (0, 10):
        printed = run(program("docs/client.rst", "START_MS"), broker).splitlines()
        assert printed[0] == f"stored at {[*range(first, first + 10)]}"
        assert printed[1] == f"{first} b'ACME' b'0'"
        assert printed[-1] == f"from 5 ms on: {first + 5}"
    for _ in range(2):
        printed = run(program("docs/client.rst", "import pyarrow"), broker).splitlines()
        assert printed == ["[{'key': b'ACME', 'offset_max': 19}]"]


def test_the_first_program_prints_only_new_records_when_it_runs_again(broker: Broker) -> None:
    for first in (0, 3):
        printed = run(program("docs/client.rst", '"words"'), broker).splitlines()
        words = ("one", "two", "three")
        assert printed == [f"{first + n} b'{word}'" for n, word in enumerate(words)]


def test_the_program_about_errors_handles_each_record(broker: Broker) -> None:
    for offset in (0, 1):
        printed = run(program("docs/client.rst", "except RecordTooLarge"), broker).splitlines()
        assert printed == [f"stored at {offset}", "not sent, because it is too large"]


def test_the_program_about_speed_prints_two_rates(broker: Broker) -> None:
    for _ in range(2):
        printed = run(program("docs/client.rst", "COUNT = 100_000"), broker).splitlines()
        sent, read = (re.fullmatch(r"([\d,]+) records a second (\w+)", line) for line in printed)
        assert sent and read and (sent[2], read[2]) == ("sent", "read")


def test_the_program_that_sends_many_records_prints_the_position_of_the_last(
    broker: Broker,
) -> None:
    for offset in (9_999, 19_999):
        printed = run(program("docs/client.rst", "measurements"), broker)
        assert f"topic='measurements', partition=0, offset={offset}, " in printed


def test_the_program_with_serializers_skips_a_record_that_is_no_json(broker: Broker) -> None:
    for _ in range(2):
        printed = run(program("docs/client.rst", "import json"), broker).splitlines()
        assert printed == ["ann {'apples': 3}", "ann None", "skipped: b'3 apples'"]


def test_the_programs_about_admin_run_again(broker: Broker) -> None:
    for _ in range(2):
        printed = run(program("docs/client.rst", "NewPartitions("), broker).splitlines()
        assert printed == ["retention.ms 86400000 DYNAMIC_TOPIC_CONFIG"]
    for begin in (3, 8):
        printed = run(program("docs/client.rst", "CommittedOffset("), broker).splitlines()
        assert printed == [
            "['Empty']",
            "Empty with 0 members",
            f"it begins at [{begin}, {begin}]",
            "ledger-0 is behind by 2",
            "ledger-1 is behind by 2",
            "{TopicPartition(topic='ledger', partition=0): None}",
            "{'audit': None}",
        ]


def test_the_program_that_serves_metrics_counts_its_orders(broker: Broker) -> None:
    port = free_port()
    code = program("docs/client.rst", "from aiohttp import").replace("8000", str(port))
    page = f"http://127.0.0.1:{port}/metrics"
    with running(code.replace("127.0.0.1:9092", broker.bootstrap)):
        wait_until(lambda: orders_sent(page) > 1, what="orders on the page")


def orders_sent(page: str) -> float:
    """Return the number of records that a page of metrics shows for the topic `shop-orders`."""
    try:
        with urllib.request.urlopen(page, timeout=PATIENCE_S) as response:
            text = response.read().decode()
    except OSError:
        return 0.0
    family = "kafka_producer_producer_topic_metrics_record_send_total"
    found = re.search(rf'(?m)^{family}{{client_id="shop",topic="shop-orders"}} (.+)$', text)
    return float(found[1]) if found else 0.0


def test_the_programs_with_a_callback_for_metrics_count_their_records(broker: Broker) -> None:
    printed = run(program("docs/client.rst", "def report("), broker).splitlines()
    assert re.fullmatch(r"1000 records in \d+ batches, 0 failed", printed[0])
    assert re.fullmatch(r"99% of the requests took at most \d+\.\d+ s", printed[1])
    printed = run(program("docs/client.rst", "class ClientCollector"), broker).splitlines()
    labels = 'client_id="web",topic="visits-of-pages"'
    assert f"kafka_producer_producer_topic_metrics_record_send_total{{{labels}}} 1.0" in printed


@pytest.mark.parametrize(
    ("library", "topic", "value"),
    [
        ("aiokafka", "letters", b"hello"),
        ("kafka", "bills", b"12 EUR"),
        ("confluent_kafka", "tickets", b"row 7"),
    ],
)
def test_the_programs_before_and_after_a_move_do_the_same(
    library: str, topic: str, value: bytes, broker: Broker
) -> None:
    pytest.importorskip(library, reason=f"install {library.replace('_', '-')}")
    before = run(program("docs/moving.rst", f"from {library} import"), broker).splitlines()
    assert before == ["stored at 0", f"read b'ann' {value!r}"]
    after = run(program("docs/moving.rst", f'topics=["{topic}"]'), broker).splitlines()
    assert after == ["stored at 1", f"read b'ann' {value!r}"]


def test_the_program_with_the_partitioner_of_confluent_kafka(broker: Broker) -> None:
    printed = run(program("docs/moving.rst", "import zlib"), broker)
    assert "topic='seats', partition=0, offset=0," in printed


def run_commands(document: str, topic: str, broker: Broker) -> None:
    """Run the shell lines of a document that name the topic."""
    lines = [line.strip() for line in (ROOT / document).read_text(encoding="utf-8").splitlines()]
    chosen = [line for line in lines if f"--topic {topic}" in line]
    assert chosen, f"{document} has a command with --topic {topic}"
    for line in chosen:
        command = line.replace("127.0.0.1:9092", broker.bootstrap)
        command = command.replace("pybroker ", f"{sys.executable} -m pybroker ", 1)
        subprocess.run(["sh", "-c", command], check=True, timeout=PATIENCE_S)


def test_the_programs_of_the_page_of_snapshots(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for count in (1, 2):
        run_commands("docs/snapshots.rst", "visits", broker)
        printed = run(program("docs/snapshots.rst", "monday ="), broker).splitlines()
        assert printed == [f"{{'visits': {count}}}", "visits-0 same 0", "True () ()"]
        printed = run(program("docs/snapshots.rst", "import RangeReader"), broker).splitlines()
        assert printed == [f"visits-0 {offset} b'hello'" for offset in range(count)]


def test_both_workers_of_the_client_page_get_records_in_each_run(broker: Broker) -> None:
    for end in (25, 50):
        printed = run(program("docs/client.rst", "asyncio.TaskGroup"), broker).splitlines()
        assert {"ann has 2 partitions", "bob has 2 partitions"} <= set(printed)
        assert printed[-2] == "handled: [('ann', 50), ('bob', 50)]"
        assert printed[-1] == f"committed: {[end] * 4}"


def test_the_kafka_python_program_of_the_readme(broker: Broker) -> None:
    for offset in (0, 1):
        printed = run(program("README.rst", "from kafka import"), broker).splitlines()
        assert printed[0] == f"{offset}"
        assert printed[1:] == [f"{n} b'from' b'python'" for n in range(offset + 1)]


def test_the_tests_of_the_page_about_testing(tmp_path: Path) -> None:
    tests = tmp_path / "test_orders.py"
    tests.write_text(program("docs/testing.rst", "from kafka import"))
    words = ("-m", "pytest", "-p", "pybroker.testing.plugin", "-p", "no:cacheprovider")
    printed = output_of(
        *words, f"--rootdir={tmp_path}", f"--basetemp={tmp_path / 'tmp'}", str(tests)
    )
    assert "2 passed" in printed


@pytest.mark.parametrize("name", ["test_every_order_is_kept_once", "test_no_mail_is_left_out"])
def test_the_simulations_of_the_page_about_testing(name: str, tmp_path: Path) -> None:
    tests = tmp_path / "test_simulated.py"
    tests.write_text(program("docs/testing.rst", f"def {name}("))
    assert "5 passed" in output_of("-m", "pytest", "-q", "-p", "no:cacheprovider", str(tests))


def test_the_cluster_program_of_the_page_about_testing() -> None:
    code = program("docs/testing.rst", "from pybroker.testing import")
    assert output_of("-c", code) == "3 brokers\n"


def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("sphinx", reason="install the site's tools: pip install '.[docs]'")
    output_of("-m", "sphinx", "-q", "-W", "-E", str(ROOT / "docs"), str(tmp_path))
    assert "Python API" in (tmp_path / "api.html").read_text(encoding="utf-8")
