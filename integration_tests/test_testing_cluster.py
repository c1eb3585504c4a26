"""Tests of `pybroker.testing.Cluster`, real brokers for users' tests."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from shutil import rmtree
from typing import Final

import psutil
import pytest

from integration_tests.apache import ApacheZooKeeper, session_at
from integration_tests.namespaces import Network
from integration_tests.process import ChildProcess, processes_using
from integration_tests.wire_client import Connection, create_topic, metadata
from pybroker.client import Admin, NewTopic, Producer
from pybroker.testing.cluster import Cluster, ClusterError
from pybroker.testing.cluster_parts import BrokerProcess
from unit_tests.patience import MOMENT_S, PATIENCE_S, wait_until

pytestmark = pytest.mark.ours

NO_ANSWER_S: Final = 0.5
LONG_SESSION: Final = {"zookeeper.session.timeout.ms": 30_000}
"""A session timeout in ms longer than a machine stalls."""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Return one cluster for the tests that leave it unchanged."""
    data = tmp_path_factory.mktemp("cluster")
    with Cluster(data=data, proxied=True, config={"replica.lag.time.max.ms": 1000}) as cluster:
        yield cluster


def known_brokers(address: str) -> set[int]:
    """Return the ids of the brokers in a broker's metadata."""
    with Connection(address) as connection:
        return {broker.node_id for broker in metadata(connection).brokers}


def assert_silent(address: str) -> None:
    """Check that the broker accepts connections but does not answer."""
    with Connection(address) as connection:
        connection.set_timeout(NO_ANSWER_S)
        with pytest.raises(OSError, match="timed out"):
            metadata(connection)


def registered(cluster: Cluster) -> set[int]:
    with session_at(cluster.zookeeper) as session:
        return {int(name) for name in session.get_children("/brokers/ids")}


def test_a_ready_cluster_has_all_brokers_in_the_metadata_of_each(tmp_path: Path) -> None:
    with Cluster(data=tmp_path, config=LONG_SESSION) as cluster:
        for broker in cluster.ids:
            assert known_brokers(cluster.address(broker)) == {1, 2, 3}


def test_a_killed_broker_restarts_with_its_data(running: Cluster) -> None:
    victim = running.controller()
    pid = running.pid(victim)
    (running.log_dir(victim) / "a-mark").write_text("kept")
    running.kill(victim)
    assert not psutil.pid_exists(pid)
    assert victim not in running.running
    assert running.controller() != victim
    running.restart(victim)
    assert known_brokers(running.address(victim)) == {1, 2, 3}
    assert (running.log_dir(victim) / "a-mark").read_text() == "kept"
    assert running.log_text(victim).count("] started") == 2


def test_terminate_stops_a_broker_cleanly(running: Cluster) -> None:
    assert running.terminate(2) == 0
    assert running.running == [1, 3]
    with pytest.raises(ClusterError, match="broker 2 does not run"):
        running.kill(2)
    running.restart(2)


def test_a_paused_broker_does_not_answer_until_it_is_resumed(running: Cluster) -> None:
    running.pause(3)
    assert_silent(running.address(3))
    running.resume(3)
    running.wait_until_ready()


def test_a_paused_broker_can_be_killed(running: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    signal_it = BrokerProcess.signal

    def signal_and_see(process: BrokerProcess, number: signal.Signals) -> None:
        signal_it(process, number)
        if number == signal.SIGKILL:
            assert process.child is not None
            process.child.wait()

    monkeypatch.setattr(BrokerProcess, "signal", signal_and_see)
    running.pause(2)
    running.kill(2)
    assert running.running == [1, 3]
    running.restart(2)


def test_a_broker_cut_from_zookeeper_loses_its_session_and_registers_again(
    running: Cluster,
) -> None:
    controller = running.controller()
    running.cut(controller, "zookeeper")
    assert running.controller(other_than=controller) != controller
    assert controller not in registered(running)
    running.heal()
    running.wait_until_ready()
    wait_until(lambda: registered(running) == {1, 2, 3}, what="all brokers are registered")


def test_clients_may_be_cut_off(running: Cluster) -> None:
    running.cut(1, "clients")
    assert_silent(running.address(1))
    assert known_brokers(running.address(2)) == {1, 2, 3}
    running.heal()
    assert known_brokers(running.address(1)) == {1, 2, 3}


@pytest.mark.parametrize("direction", ["both", "in", "out"])
def test_a_broker_cut_from_the_controller_receives_no_topics(
    running: Cluster, topic: str, direction: str
) -> None:
    controller = running.controller()
    lonely, _ = (broker for broker in running.ids if broker != controller)
    running.cut(lonely, controller, direction=direction)
    with Connection(running.address(controller)) as connection:
        create_topic(connection, topic)
        wait_until(
            lambda: not metadata(connection, topic).topics[0].error_code,
            what="the broker has received the topic",
        )
    if direction != "out":
        with Connection(running.address(lonely)) as connection:
            assert metadata(connection, topic).topics[0].error_code != 0
    running.heal()
    running.wait_until_in_sync(topic)
    assert running.leader(topic, 0) in running.ids


async def test_a_follower_cut_from_its_leader_leaves_the_isr_and_rejoins_it(
    running: Cluster, topic: str
) -> None:
    async with Admin(running.bootstrap) as admin:
        wanted = NewTopic(topic, partitions=1, replication_factor=3)
        for result in await admin.create_topics([wanted]):
            result.check()
    # A leader without the controller's command may be the broker that is cut off from the
    # controller.
    await asyncio.to_thread(running.wait_until_in_sync, topic)
    leader = await asyncio.to_thread(running.leader, topic, 0)
    follower = next(broker for broker in running.ids if broker != leader)
    await asyncio.to_thread(running.cut, follower, leader)
    async with Producer(running.bootstrap, acks="all") as producer:
        delivery = await producer.send(topic, b"kept")
        await delivery  # as soon as the isolated replica has left

    def only_the_follower_has_left() -> bool:
        stored = running.partition(topic, 0)
        assert stored is not None
        assert stored.leader == leader
        assert follower not in stored.isr
        return len(stored.isr) == 2  # the third replica may lag for a moment, too

    await asyncio.to_thread(wait_until, only_the_follower_has_left, what="two replicas are in sync")
    await asyncio.to_thread(running.heal)
    await asyncio.to_thread(running.wait_until_in_sync, topic)


def test_impossible_calls_are_refused(running: Cluster, tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="there is no broker 4"):
        running.pause(4)
    with pytest.raises(ClusterError, match="'zookeper' is no peer of a broker"):
        running.cut(1, "zookeper")
    with pytest.raises(ClusterError, match=f"within {MOMENT_S:g} s: all replicas of nowhere"):
        running.wait_until_in_sync("nowhere", seconds=MOMENT_S)
    with pytest.raises(ClusterError, match="the leader of nowhere-0 is a broker that runs"):
        running.leader("nowhere", 0, seconds=MOMENT_S)
    with pytest.raises(ClusterError, match=r"the cluster itself sets broker\.id"):
        Cluster(config={"broker.id": 5})
    cluster = Cluster(data=tmp_path)
    for use in (cluster.stop, cluster.wait_until_ready, lambda: cluster.bootstrap):
        with pytest.raises(ClusterError, match="was not started"):
            use()


def test_a_failed_start_shows_the_reason_and_leaves_no_process(tmp_path: Path) -> None:
    cluster = Cluster(1, data=tmp_path, config={"num.partitions": "none"})
    with pytest.raises(ClusterError, match=r"num\.partitions=none") as caught:
        cluster.start()
    assert str(tmp_path) in caught.value.__notes__[0]
    assert processes_using(tmp_path) == []


def test_a_proxied_cluster_starts_after_a_failed_start(tmp_path: Path) -> None:
    with Cluster(1, data=tmp_path, proxied=True) as cluster:
        port = int(cluster.address(1).rpartition(":")[2])
        cluster.stop()
        cluster.close(keep=True)
        with socket.create_server(("127.0.0.1", port)), pytest.raises(OSError, match=str(port)):
            cluster.start()
        cluster.start()
        assert known_brokers(cluster.address(1)) == {1}


def test_the_early_end_of_a_started_broker_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither `start` nor `restart` may miss that a broker's process has ended."""
    refused, launch = {"num.partitions": "none"}, BrokerProcess.launch

    def launch_and_see_it_end(
        process: BrokerProcess, zookeeper: str, environment: Mapping[str, str]
    ) -> None:
        launch(process, zookeeper, environment)
        if refused.items() <= process.properties.items():
            assert process.child is not None
            process.child.wait(PATIENCE_S)

    monkeypatch.setattr(BrokerProcess, "launch", launch_and_see_it_end)
    cluster = Cluster(1, config=refused)
    with pytest.raises(ClusterError, match=r"broker 1 ended(.|\n)*num\.partitions=none"):
        cluster.start()
    rmtree(cluster.data)
    with Cluster(1) as cluster:
        with pytest.raises(ClusterError, match=r"broker 1 ended(.|\n)*num\.partitions=none"):
            cluster.restart(1, config=refused)
        cluster.restart(1, config={"num.partitions": 1})
        assert cluster.controller() == 1


def test_the_cluster_survives_a_kill_of_its_zookeeper(tmp_path: Path) -> None:
    with Cluster(2, data=tmp_path, config=LONG_SESSION) as cluster:
        before = cluster.controller()
        cluster.kill_zookeeper()
        assert cluster.controller() == before


def test_the_cluster_uses_a_given_zookeeper_and_continues_after_a_stop(
    tmp_path: Path, zookeeper: ApacheZooKeeper
) -> None:
    connect = f"{zookeeper.connect}/a/chroot"
    with Cluster(2, data=tmp_path / "cluster", zookeeper=connect, proxied=True) as cluster:
        addresses = cluster.bootstrap
        with Connection(cluster.address(cluster.controller())) as connection:
            create_topic(connection, "kept")
        cluster.stop()
        assert cluster.running == []
        cluster.start()
        assert cluster.bootstrap == addresses
        cluster.wait_until_in_sync("kept")
    assert not (tmp_path / "cluster" / "zookeeper").exists()


def test_a_temporary_directory_is_kept_only_after_a_failure() -> None:
    with Cluster(1) as cluster:
        folder = cluster.data
        assert folder.exists()
    assert not folder.exists()
    with pytest.raises(ZeroDivisionError) as caught, Cluster(1) as cluster:
        folder = cluster.data
        raise ZeroDivisionError
    assert caught.value.__notes__ == [f"data and logs of the cluster are kept in {folder}"]
    assert "] started" in (folder / "broker-1.log").read_text()
    Cluster(1, data=folder).close()
    for path in sorted(folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    folder.rmdir()


def test_modules_of_the_user_do_not_replace_those_of_python(tmp_path: Path) -> None:
    (tmp_path / "re.py").write_text("raise SystemExit('the wrong module')\n")
    script = tmp_path / "a_script.py"
    script.write_text(
        "import re, sys\n"
        "del sys.modules['re']\n"
        "sys.path.append(sys.path.pop(0))\n"
        "from pybroker.testing import Cluster\n"
        "sys.path.insert(0, sys.path.pop())\n"
        "with Cluster(1) as cluster:\n"
        "    print(cluster.running)\n"
    )
    run = ChildProcess([sys.executable, str(script)], folder=tmp_path)
    assert (run.wait(), run.output) == (0, "[1]")


@pytest.mark.usefixtures("ctrl_c_heeded")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_all_processes_end_with_the_test_run(tmp_path: Path, number: signal.Signals) -> None:
    program = (
        "import sys, threading\n"
        "from pybroker.testing import Cluster\n"
        "with Cluster(2, data=sys.argv[1]):\n"
        "    print('ready', flush=True)\n"
        "    threading.Event().wait()\n"
    )
    run = ChildProcess([sys.executable, "-c", program, str(tmp_path)])
    run.wait_for_line("ready")
    assert len(processes_using(tmp_path)) >= 3
    run.signal(number)
    run.wait()
    wait_until(lambda: not processes_using(tmp_path), what="brokers and ZooKeeper are gone")


async def test_the_cluster_can_be_used_from_threads_of_an_event_loop(tmp_path: Path) -> None:
    """The brokers survive the thread that started them."""
    cluster = Cluster(1, data=tmp_path)

    def in_a_thread_of_its_own() -> None:
        asyncio.run(asyncio.to_thread(cluster.start))

    try:
        await asyncio.to_thread(in_a_thread_of_its_own)
        assert await asyncio.to_thread(known_brokers, cluster.bootstrap) == {1}
    finally:
        await asyncio.to_thread(cluster.close)


def test_brokers_run_in_network_namespaces(network: Network, tmp_path: Path) -> None:
    places = {broker: network.add() for broker in (1, 2)}
    server = network.add()
    zookeeper = ChildProcess(
        [*server.prefix, sys.executable, "-m", "pybroker", "zookeeper-server-start",
         str(zookeeper_config(tmp_path, server.host))]
    )  # fmt: skip
    try:
        connect = f"{server.host}:2181"
        with Cluster(2, data=tmp_path / "cluster", zookeeper=connect, places=places) as cluster:
            assert known_brokers(cluster.address(1)) == {1, 2}
            lost = cluster.controller()
            network.cut(places[lost].host, server.host)
            assert cluster.controller(other_than=lost) == 3 - lost
    finally:
        zookeeper.close()


def zookeeper_config(folder: Path, host: str) -> Path:
    path = folder / "zoo.cfg"
    path.write_text(
        f"dataDir={folder}/data\nclientPort=2181\nclientPortAddress={host}\ntickTime=500\n"
        "admin.enableServer=false\n"
    )
    return path
