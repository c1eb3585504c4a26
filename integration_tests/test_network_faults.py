"""Tests of the helpers of the fault tests: an ensemble that loses members and quorum, and
namespaces whose packets are dropped.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from integration_tests.apache import session_at
from integration_tests.ensemble import Ensemble
from integration_tests.namespaces import Network
from integration_tests.process import ChildProcess
from pybroker.testing.place import Place
from unit_tests.patience import wait_until

pytestmark = pytest.mark.ours

_LISTEN: Final = """
import socket, sys
socket_of_ours = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
socket_of_ours.bind((sys.argv[1], 7777))
print("listens", flush=True)
while True:
    data, sender = socket_of_ours.recvfrom(100)
    print("heard", data.decode(), flush=True)
"""
_SEND: Final = """
import socket, sys
socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(sys.argv[2].encode(), (sys.argv[1], 7777))
"""


@pytest.fixture
def ensemble(tmp_path: Path) -> Iterator[Ensemble]:
    with Ensemble(tmp_path) as running:
        yield running


def test_an_ensemble_survives_its_leader_which_rejoins(ensemble: Ensemble) -> None:
    assert sorted(ensemble.running) == [1, 2, 3]
    with session_at(ensemble.connect) as session:
        session.create("/kept", b"kept")
    old = ensemble.leader()
    ensemble.kill(old)
    new = ensemble.leader()
    assert new != old
    ensemble.restart(old)
    wait_until(lambda: ensemble.members[old].mode() == "follower", what="the old leader follows")
    with session_at(ensemble.members[old].address) as session:
        session.sync("/")
        assert session.get("/kept")[0] == b"kept"


def test_without_a_quorum_no_member_serves(ensemble: Ensemble) -> None:
    lost = ensemble.lose_quorum()
    (last,) = ensemble.running
    assert ensemble.members[last].mode() == ""
    ensemble.restart(lost[0])
    wait_until(
        lambda: {ensemble.members[n].mode() for n in (last, lost[0])} == {"leader", "follower"},
        what="two members form a quorum",
    )


def test_a_paused_leader_is_replaced(ensemble: Ensemble) -> None:
    old = ensemble.leader()
    ensemble.pause(old)
    others = [number for number in ensemble.running if number != old]
    new = ensemble.leader(others)
    ensemble.resume(old)
    wait_until(lambda: ensemble.members[old].mode() == "follower", what="the old leader follows")
    assert ensemble.leader() == new


@pytest.fixture
def listeners(network: Network) -> Iterator[dict[Place, ChildProcess]]:
    """Start two machines that print the datagrams that they receive."""
    places = [network.add(), network.add()]
    processes = {
        place: ChildProcess([*place.prefix, sys.executable, "-c", _LISTEN, place.host])
        for place in places
    }
    for process in processes.values():
        process.wait_for_line("listens")
    yield processes
    for process in processes.values():
        process.close()


def says(sender: Place, receiver: Place, word: str) -> None:
    """Send one datagram."""
    done = ChildProcess([*sender.prefix, sys.executable, "-c", _SEND, receiver.host, word])
    assert done.wait() == 0, f"{shlex.join(done.command)}: {done.output}"


def test_dropped_packets_of_one_direction(
    network: Network, listeners: dict[Place, ChildProcess]
) -> None:
    (one, one_heard), (other, other_heard) = listeners.items()
    network.drop(one.host, other.host)
    says(one, other, "lost")
    says(other, one, "through")
    one_heard.wait_for_line("heard through")
    network.heal()
    says(one, other, "healed")
    other_heard.wait_for_line("heard healed")
    assert "lost" not in other_heard.output


def test_the_test_reaches_an_isolated_machine(
    network: Network, listeners: dict[Place, ChildProcess]
) -> None:
    (one, one_heard), (other, other_heard) = listeners.items()
    network.isolate(one.host)
    says(one, other, "lost")
    says(other, one, "lost")
    says(Place(), one, "from the test")
    one_heard.wait_for_line("heard from the test")
    network.heal()
    says(one, other, "healed")
    other_heard.wait_for_line("heard healed")
    assert "lost" not in one_heard.output + other_heard.output


def test_an_ensemble_in_network_namespaces(network: Network, tmp_path: Path) -> None:
    places = {number: network.add() for number in (1, 2, 3)}
    with Ensemble(tmp_path, places=places) as ensemble:
        old = ensemble.leader()
        network.isolate(places[old].host)
        others = [number for number in places if number != old]
        new = ensemble.leader(others)
        network.heal()
        wait_until(
            lambda: ensemble.members[old].mode() == "follower", what="the old leader follows"
        )
        assert ensemble.leader() == new
