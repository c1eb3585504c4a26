"""Tests that the image, built and run by a Docker engine, does what its guide says.

The tests use a running engine, or start their own. Containers use the host's network and ports of
127.0.0.1, so that the engine needs no network. The tests remove their containers, volumes and tags;
layers stay in the cache of an engine that was running before.
"""

from __future__ import annotations

import io
import os
import re
import signal
import tarfile
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol
from urllib.request import urlopen

import pytest

from integration_tests import docker_engine
from integration_tests.broker import STARTED
from integration_tests.process import answers, free_port
from integration_tests.wire_client import (
    Connection,
    batch_of,
    create_topic,
    fetch_one,
    metadata,
    produce,
    wait_for_leader,
)
from pybroker.testing.sockets import free_ports
from pybroker.tool_list import TOOLS
from pybroker.tools.container import command_names
from unit_tests.patience import PATIENCE_S, WORK_S, wait_until

docker_client = pytest.importorskip(
    "docker.client", reason="no Docker client: pip install docker", exc_type=ImportError
)
docker_errors = pytest.importorskip("docker.errors", exc_type=ImportError)

pytestmark = [pytest.mark.ours, pytest.mark.timeout(1800)]

ROOT: Final = Path(__file__).resolve().parent.parent
DOCKERFILE_TEXT: Final = (ROOT / "docker/Dockerfile").read_text()
BASE: Final[str] = re.findall("^ARG BASE=(.+)", DOCKERFILE_TEXT, re.MULTILINE)[0]
"""The image's default base: `debian:RELEASE-slim`."""
PIP_SETTINGS: Final = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_TRUSTED_HOST", "PIP_CERT")
"""Arguments that give the builder the package index of this machine's pip."""
DATA: Final = "/var/lib/kafka/data"
ADDED_MEGABYTES_MAX: Final = 300


class Container:
    """A container of the image, with the operations that tests need."""

    def __init__(self, raw: Any) -> None:
        self.raw = raw

    @property
    def log_text(self) -> str:
        return str(self.raw.logs().decode(errors="replace"))

    @property
    def health(self) -> str:
        self.raw.reload()
        return str(self.raw.attrs["State"]["Health"]["Status"])

    def run(self, *command: str) -> tuple[int, str]:
        """Run a command in the container. Return exit code and output."""
        code, output = self.raw.exec_run(list(command))
        return int(code), output.decode(errors="replace")

    def wait(self) -> int:
        """Wait for the end of the container. Return its exit code."""
        return int(self.raw.wait(timeout=PATIENCE_S)["StatusCode"])

    def stop(self) -> int:
        """Stop the container like `docker stop`: the image's signal, then SIGKILL if the container
        does not end.
        """
        self.raw.stop(timeout=int(PATIENCE_S))
        return self.wait()

    def remove(self) -> None:
        """Kill and remove the container with its anonymous volumes. Idempotent."""
        with suppress(docker_errors.NotFound):
            self.raw.remove(force=True, v=True)

    @property
    def ended(self) -> bool:
        self.raw.reload()
        return bool(self.raw.status == "exited")

    def await_start(self) -> None:
        """Wait until the broker in the container serves."""
        wait_until(
            lambda: re.search(STARTED, self.log_text) or self.ended, what="the broker has started"
        )
        assert not self.ended, self.log_text


class Run(Protocol):
    """A function that starts a container, which is removed after the test or the module."""

    def __call__(
        self,
        *command: str,
        variables: Mapping[str, str] | None = None,
        volume: str | None = None,
        network: str = "host",
        **further: Any,
    ) -> Container: ...


@pytest.fixture(scope="module")
def engine() -> Iterator[Any]:
    """Return a client of the engine at DOCKER_HOST, of the default engine, or of an engine of the
    test run.
    """
    with ExitStack() as stack:
        try:
            client = docker_client.from_env(timeout=WORK_S)
            client.ping()
        except docker_errors.DockerException as error:
            try:
                url = stack.enter_context(docker_engine.running())
            except docker_engine.DockerUnavailable as reason:
                pytest.skip(f"no Docker engine answers ({error}), and {reason}")
            client = docker_client.DockerClient(url, timeout=WORK_S)
        stack.callback(client.close)
        yield client


@pytest.fixture(scope="module")
def base(engine: Any) -> str:
    """Return the base image: BASE, or a similar Debian if no registry provides BASE."""
    with suppress(docker_errors.ImageNotFound):
        engine.images.get(BASE)
        return BASE
    try:
        engine.images.pull(BASE)
        return BASE
    except docker_errors.APIError as error:
        try:
            release = BASE.removeprefix("debian:").removesuffix("-slim")
            packed = docker_engine.base_image(release)
        except docker_engine.DockerUnavailable as reason:
            pytest.skip(f"the base image {BASE} could not be pulled ({error}), and {reason}")
    name, tag = "pybroker-test-base", packed.stem
    try:
        engine.images.get(f"{name}:{tag}")
    except docker_errors.ImageNotFound:
        engine.api.import_image(str(packed), repository=name, tag=tag)
    return f"{name}:{tag}"


@pytest.fixture(scope="module")
def image(engine: Any, base: str) -> Iterator[str]:
    """Build the image from the sources. Return its name."""
    tag = f"pybroker-test:{uuid.uuid4().hex[:12]}"
    settings = {name: os.environ[name] for name in PIP_SETTINGS if name in os.environ}
    try:
        engine.images.build(
            path=str(ROOT), dockerfile="docker/Dockerfile", tag=tag, rm=True, forcerm=True,
            network_mode="host", buildargs={"BASE": base, **settings},
        )  # fmt: skip
    except docker_errors.BuildError as error:
        raise AssertionError("".join(step.get("stream", "") for step in error.build_log)) from error
    yield tag
    engine.images.remove(tag)


def _runner(engine: Any, image: str, stack: ExitStack) -> Run:
    def run(
        *command: str,
        variables: Mapping[str, str] | None = None,
        volume: str | None = None,
        network: str = "host",
        **further: Any,
    ) -> Container:
        raw = engine.containers.run(
            image,
            list(command) or None,
            detach=True,
            network_mode=network,
            environment=dict(variables or {}),
            volumes={volume: {"bind": DATA, "mode": "rw"}} if volume else None,
            **further,
        )
        container = Container(raw)
        stack.callback(container.remove)
        return container

    return run


@pytest.fixture
def run(engine: Any, image: str) -> Iterator[Run]:
    with ExitStack() as stack:
        yield _runner(engine, image, stack)


def broker_variables(port: int, **further: str) -> dict[str, str]:
    """Return the environment variables of a broker on 127.0.0.1 in the host's network."""
    return {
        "KAFKA_LISTENERS": f"PLAINTEXT://127.0.0.1:{port}",
        "KAFKA_PYBROKER_HTTP_LISTENER": f"127.0.0.1:{free_port()}",
        **further,
    }


class Shared(NamedTuple):
    """The container that most tests use."""

    container: Container
    port: int
    http_port: int

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"


@pytest.fixture(scope="module")
def shared(engine: Any, image: str) -> Iterator[Shared]:
    variables = broker_variables(port := free_port())
    variables["KAFKA_CREATE_TOPICS"] = "from-outside:3:1,compacted:1:1:compact"
    http_port = int(variables["KAFKA_PYBROKER_HTTP_LISTENER"].rpartition(":")[2])
    with ExitStack() as stack:
        container = _runner(engine, image, stack)(variables=variables)
        container.await_start()
        yield Shared(container, port, http_port)


def test_the_container_becomes_healthy(shared: Shared) -> None:
    wait_until(lambda: shared.container.health == "healthy", what="the container is healthy")


def test_the_container_serves_its_health_by_http(shared: Shared) -> None:
    with urlopen(f"http://127.0.0.1:{shared.http_port}/healthz", timeout=PATIENCE_S) as answer:
        assert answer.status == 200


def test_clients_outside_produce_and_consume(shared: Shared, topic: str) -> None:
    with Connection(shared.bootstrap) as connection:
        create_topic(connection, topic)
        assert produce(connection, topic, batch_of(b"hello")).base_offset == 0
        found = fetch_one(connection, topic, 0)
        assert found.records is not None and b"hello" in bytes(found.records)


def test_the_requested_topics_are_created(shared: Shared) -> None:
    with Connection(shared.bootstrap) as connection:
        for name, partitions in (("from-outside", 3), ("compacted", 1)):
            wait_for_leader(connection, name)
            assert len(metadata(connection, name).topics[0].partitions) == partitions


def test_kafkas_commands_are_on_the_path(shared: Shared) -> None:
    names = [name for tool in TOOLS for name in command_names(tool)]
    script = 'for name; do command -v "$name" >/dev/null || echo "$name"; done'
    code, missing = shared.container.run("sh", "-c", script, "sh", *names, "kafka-server-stop.sh")
    assert (code, missing) == (0, "")
    listing = ("--bootstrap-server", shared.bootstrap, "--list")
    for name in ("kafka-topics.sh", "kafka-topics"):
        code, output = shared.container.run(name, *listing)
        assert code == 0, output
        assert "from-outside" in output.splitlines()


def test_nothing_in_it_runs_as_root(shared: Shared) -> None:
    script = "id -u; cat /proc/[0-9]*/status | grep ^Uid: | cut -f2 | sort -u"
    assert shared.container.run("sh", "-c", script) == (0, "1000\n1000\n")
    assert shared.container.run("touch", "/etc/kafka/x")[0] != 0


def test_the_image_is_small_and_has_one_zookeeper(
    engine: Any, base: str, image: str, shared: Shared
) -> None:
    before, ours = (engine.images.get(name).attrs["Size"] for name in (base, image))
    assert (ours - before) / 1_000_000 < ADDED_MEGABYTES_MAX
    assert shared.container.run("sh", "-c", "find / -name 'spark-*.jar' 2>/dev/null") == (1, "")


def test_the_data_survive_the_container(engine: Any, run: Run, topic: str) -> None:
    volume = engine.volumes.create(f"pybroker-test-{uuid.uuid4().hex[:12]}")
    port = free_port()
    variables = broker_variables(port, KAFKA_BROKER_ID="7")
    try:
        first = run(variables=variables, volume=volume.name)
        first.await_start()
        with Connection(f"127.0.0.1:{port}") as connection:
            create_topic(connection, topic)
            produce(connection, topic, batch_of(b"kept"))
        assert first.stop() == 0, first.log_text
        assert "shut down" in first.log_text
        first.remove()
        second = run(variables=variables, volume=volume.name)
        second.await_start()
        with Connection(f"127.0.0.1:{port}") as connection:
            wait_for_leader(connection, topic)
            found = fetch_one(connection, topic, 0)
            assert found.records is not None and b"kept" in bytes(found.records)
        # The latter if the broker ends before the command: the end of the container ends it.
        assert second.run("kafka-server-stop.sh")[0] in (0, 128 + signal.SIGKILL)
        assert second.wait() == 0, second.log_text
        second.remove()
    finally:
        volume.remove(force=True)


def test_the_container_runs_with_any_user_id_and_a_read_only_root(run: Run) -> None:
    container = run(
        network="none",  # a network of its own, so that the usual ports are free
        user="12345:0",
        read_only=True,
        tmpfs={"/tmp": "", "/home/kafka": ""},
    )
    container.await_start()
    wait_until(lambda: container.health == "healthy", what="the container is healthy")
    code, output = container.run(
        "kafka-topics.sh", "--bootstrap-server", "localhost:9092", "--list"
    )
    assert (code, output.strip()) == (0, "")
    assert container.stop() == 0, container.log_text


def test_an_impossible_start_prints_one_line(run: Run) -> None:
    container = run(variables={"KAFKA_PROCESS_ROLES": "broker,controller"})
    assert container.wait() == 1
    (line,) = container.log_text.splitlines()
    assert line.startswith("pybroker: KAFKA_PROCESS_ROLES")


def test_a_signal_during_the_start_ends_it(run: Run) -> None:
    container = run(variables=broker_variables(free_port()))
    # The latter if it came before the program was loaded; never 137, which is SIGKILL.
    assert container.stop() in (0, 128 + signal.SIGTERM), container.log_text


def test_a_script_of_testcontainers_starts_the_broker(run: Run) -> None:
    """Testcontainers copies a script into the waiting container once the published ports are known.
    The script starts a ZooKeeper, sets the advertised listeners, and calls the start scripts of
    Confluent's image.
    """
    outside, inside, zookeeper = free_ports(3)
    script = f"""#!/bin/bash
echo 'clientPort={zookeeper}' > zookeeper.properties
echo 'clientPortAddress=127.0.0.1' >> zookeeper.properties
echo 'dataDir=/var/lib/zookeeper/data' >> zookeeper.properties
echo 'dataLogDir=/var/lib/zookeeper/log' >> zookeeper.properties
zookeeper-server-start zookeeper.properties &
export KAFKA_ZOOKEEPER_CONNECT='localhost:{zookeeper}'
export KAFKA_ADVERTISED_LISTENERS=PLAINTEXT://localhost:{outside},BROKER://localhost:{inside}
. /etc/confluent/docker/bash-config
/etc/confluent/docker/configure
/etc/confluent/docker/launch
"""
    container = run(
        "sh",
        "-c",
        "while [ ! -f /tc-start.sh ]; do sleep 0.1; done; sh /tc-start.sh",
        variables=broker_variables(
            0,
            KAFKA_LISTENERS=f"PLAINTEXT://127.0.0.1:{outside},BROKER://127.0.0.1:{inside}",
            KAFKA_LISTENER_SECURITY_PROTOCOL_MAP="BROKER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            KAFKA_INTER_BROKER_LISTENER_NAME="BROKER",
            KAFKA_BROKER_ID="1",
            KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR="1",
            KAFKA_OFFSETS_TOPIC_NUM_PARTITIONS="1",
            KAFKA_LOG_FLUSH_INTERVAL_MESSAGES="10000000",
            KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS="0",
        ),
    )
    assert container.raw.put_archive("/", archive_of("tc-start.sh", script.encode()))
    container.await_start()
    assert answers(outside)
    with Connection(f"127.0.0.1:{outside}") as connection:
        (node,) = metadata(connection).brokers
        assert (node.host, node.port) == ("localhost", outside)
    assert container.run("pybroker", "container", "--health")[0] == 0
    code, output = container.run("zookeeper-shell", f"127.0.0.1:{zookeeper}", "ls", "/brokers/ids")
    assert code == 0 and "[1]" in output


def archive_of(name: str, content: bytes) -> bytes:
    """Return a tar file with one file."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        entry = tarfile.TarInfo(name)
        entry.size = len(content)
        archive.addfile(entry, io.BytesIO(content))
    return stream.getvalue()
