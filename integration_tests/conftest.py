"""Fixtures: brokers for tests, and third-party programs that may be missing.

`PYBROKER_TEST_BOOTSTRAP` chooses the brokers: `process` (the default) is our broker as users start
it, `memory` our broker in the process of the tests, `apache` Apache Kafka, to check that a test
expects Kafka's real behaviour. Tests that such brokers cannot pass are marked, and left out.
"""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Protocol, TypeVar

import pytest
from pyspark.sql import SparkSession
from xdist.remote import Producer  # type: ignore[import-untyped]
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

from integration_tests import golang, maven, namespaces, npm, spark_session, spark_topics, stages
from integration_tests.apache import ApacheKafka, ApacheZooKeeper
from integration_tests.broker import Broker, PybrokerProcess
from integration_tests.etl_numbers import PARTITIONS, Numbers
from integration_tests.memory_broker import MemoryBroker
from integration_tests.outside_clients import KcatUnavailable, kcat

T = TypeVar("T")
MARKS: Final = {
    "process": "",
    "memory": "process: needs a broker in a separate process",
    "apache": "ours: tests behaviour that only pybroker has",
}
"""Kind of broker -> the mark of tests that cannot pass with it."""
BOOTSTRAP: Final = os.environ.get("PYBROKER_TEST_BOOTSTRAP", "process")
ON_APACHE: Final = BOOTSTRAP == "apache"
_LOG_LINES_SHOWN: Final = 60


class BrokerMaker(Protocol):
    """A function that creates a broker without starting it. The broker is closed after the test."""

    def __call__(
        self, *, overrides: Mapping[str, str] | None = None, zookeeper: str | None = None
    ) -> Broker: ...


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--stage", choices=list(stages.STAGES), help="tests of this stage only")


def pytest_configure(config: pytest.Config) -> None:
    if BOOTSTRAP not in MARKS:
        raise pytest.UsageError(f"PYBROKER_TEST_BOOTSTRAP is one of {', '.join(MARKS)}")
    for mark in filter(None, MARKS.values()):
        config.addinivalue_line("markers", mark)
    config.addinivalue_line("markers", "long: runs in make test-all, not in make test")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Ignore the files of other stages if `--stage` is given."""
    stage = config.getoption("--stage")
    is_test = stages.FOLDER in collection_path.parents and collection_path.match("test_*.py")
    return True if stage and is_test and stages.stage_of(collection_path) != stage else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if all(Path(argument).is_dir() for argument in config.args):
        stale = stages.stale_rows((item.path, item.name) for item in items)
        if stale:
            raise pytest.UsageError("\n".join(["integration_tests/stages.py names", *stale]))
    mark, _, _ = MARKS[BOOTSTRAP].partition(":")
    left_out = {item for item in items if mark and item.get_closest_marker(mark)}
    config.hook.pytest_deselected(items=list(left_out))
    kept = [item for item in items if item not in left_out]
    items[:] = sorted(kept, key=lambda item: stages.order_of(item.path))
    for item in items:
        if stages.is_long(item.path, item.name):
            item.add_marker(pytest.mark.long)


class _Groups(LoadScopeScheduling):  # type: ignore[misc]
    """Assigns each group of tests to the next free process, in the order of collection."""

    def _split_scope(self, nodeid: str) -> str:
        return stages.group_of(self.config.rootpath / nodeid.partition("::")[0])


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> _Groups:
    config.option.loadscopereorder = False
    return _Groups(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the output of a failed test's brokers."""
    report = yield
    if report.failed and isinstance(item, pytest.Function):
        for broker in item.stash.get(_BROKERS, []):
            tail = broker.log_text.splitlines()[-_LOG_LINES_SHOWN:]
            report.sections.append((f"broker {broker.bootstrap}", "\n".join(tail)))
    return report


_BROKERS = pytest.StashKey[list[Broker]]()


def _make(
    folder: Path, overrides: Mapping[str, str] | None, zookeeper: str | None = None
) -> Broker:
    if BOOTSTRAP == "memory":
        assert zookeeper is None, "mark the test with `process`"
        return MemoryBroker(folder / "data", overrides=overrides)
    if ON_APACHE:
        folder.mkdir(exist_ok=True)
        return ApacheKafka(folder, overrides=overrides, zookeeper=zookeeper, heap_mib=512)
    return PybrokerProcess(folder / "data", overrides=overrides, zookeeper=zookeeper)


@contextmanager
def running(folder: Path, overrides: Mapping[str, str] | None = None) -> Iterator[Broker]:
    """Yield a running broker."""
    broker = _make(folder, overrides)
    try:
        broker.start()
        yield broker
    finally:
        broker.close()


@pytest.fixture
def new_broker(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[BrokerMaker]:
    """Return a function that creates brokers for this test only."""
    made: list[Broker] = []
    request.node.stash[_BROKERS] = made

    def make(*, overrides: Mapping[str, str] | None = None, zookeeper: str | None = None) -> Broker:
        made.append(_make(tmp_path / f"broker-{len(made)}", overrides, zookeeper))
        return made[-1]

    yield make
    for broker in made:
        broker.close()


@pytest.fixture(scope="module")
def shared_broker(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Broker]:
    """Return one running broker for a test module, with the properties `BROKER_OVERRIDES` of the
    module.
    """
    overrides = getattr(request.module, "BROKER_OVERRIDES", None)
    with running(tmp_path_factory.mktemp("broker"), overrides) as broker:
        yield broker


@pytest.fixture
def broker(shared_broker: Broker, request: pytest.FixtureRequest) -> Broker:
    """Return the module's running broker."""
    request.node.stash[_BROKERS] = [shared_broker]
    return shared_broker


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """Return a topic name that no other test uses."""
    return f"{request.function.__name__.removeprefix('test_')[:60]}-{uuid.uuid4().hex[:8]}"


@pytest.fixture(scope="session")
def jars() -> str:
    """Return the class path of Apache Kafka and its tools."""
    return or_skip(maven.class_path)


@pytest.fixture(scope="session")
def datasets() -> Path:
    """Return the folder of the real data sets."""
    return or_skip(npm.datasets)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Return the only Spark session of the run. It has Apache's connector if the jars are
    available.
    """
    jars, _ = spark_session.connector_or_reason()
    with spark_session.session(tmp_path_factory.mktemp("spark"), jars=jars) as made:
        yield made


@pytest.fixture
def numbers(spark: SparkSession, broker: Broker, topic: str, tmp_path: Path) -> Numbers:
    """Return a topic of numbers and a job that reads it."""
    spark_topics.create(broker.bootstrap, topic, PARTITIONS)
    return Numbers(broker, topic, spark, tmp_path)


@pytest.fixture(scope="session")
def connector(spark: SparkSession) -> SparkSession:
    """Return the Spark session with Apache's connector (`format("kafka")`)."""
    _, reason = spark_session.connector_or_reason()
    if reason:
        pytest.skip(reason)
    return spark


@pytest.fixture
def ctrl_c_heeded() -> Iterator[None]:
    """Let child processes handle SIGINT. A process that a script starts in the background inherits
    SIGINT as ignored, and passes that on to its children."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def zookeeper(tmp_path: Path, jars: str) -> Iterator[ApacheZooKeeper]:
    """Return a ZooKeeper server for this test only."""
    server = ApacheZooKeeper(tmp_path / "zookeeper")
    try:
        server.start()
        yield server
    finally:
        server.close()


@pytest.fixture
def network() -> Iterator[namespaces.Network]:
    """Return network namespaces for this test only, whose packets can be dropped."""
    reason = namespaces.reason_to_skip()
    if reason is not None:
        pytest.skip(reason)
    with namespaces.Network() as made:
        yield made


def or_skip(get: Callable[[], T]) -> T:
    """Return the result of `get()`. Skip the test if a third-party program or registry is not
    available.
    """
    try:
        return get()
    except (
        maven.MavenUnavailable,
        npm.NpmUnavailable,
        golang.GoUnavailable,
        KcatUnavailable,
    ) as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def kcat_program() -> str:
    return or_skip(kcat)
