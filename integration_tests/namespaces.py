"""Machines of a test as network namespaces: each machine has its own address on a bridge, and
packets between two machines can be dropped silently, in one direction or both.

This module needs root, `ip` and `iptables`. The test run itself is at the bridge and reaches every
machine. Namespaces outlive processes, so the namespaces of earlier, killed runs are removed first;
the names contain the pid of their test run.
"""

from __future__ import annotations

import functools
import itertools
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Final

import psutil

from pybroker.testing.place import Place
from unit_tests.patience import PATIENCE_S

_PREFIX: Final = "pyb"
_NETWORKS: Final = itertools.count()
_NODES_MAX: Final = 200


class NamespacesUnavailable(Exception):
    """The error for a machine that does not allow network namespaces. The message is the reason."""


@functools.cache
def reason_to_skip() -> str | None:
    """Return why namespaces cannot be used on this machine; None if they can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    for program, package in (("ip", "iproute2"), ("iptables", "iptables")):
        if shutil.which(program) is None:
            return f"{program} is missing: apt-get install {package}"
    try:
        with Network() as network:
            network.cut(network.add().host, network.add().host)
    except NamespacesUnavailable as error:
        return f"network namespaces are not allowed here: {error}"
    return None


class Network:
    """A bridge and the namespaces on it, between creation and `close`."""

    def __init__(self) -> None:
        _remove_leftovers()
        self._name = f"{_PREFIX}{os.getpid()}-{next(_NETWORKS)}"
        self._subnet = _free_subnet()
        self._namespaces: dict[str, str] = {}
        """Address of a machine -> its namespace."""
        self.host = f"{self._subnet}.1"
        """The address of the test run on the bridge."""
        try:
            _run("ip", "link", "add", self._name, "type", "bridge")
            _run("ip", "address", "add", f"{self.host}/24", "dev", self._name)
            _run("ip", "link", "set", self._name, "up")
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Network:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def add(self) -> Place:
        """Add a machine and return its address."""
        number = len(self._namespaces) + 2
        assert number <= _NODES_MAX, "too many machines for one bridge"
        namespace, inside = f"{self._name}-{number}", f"v{number}"
        address = f"{self._subnet}.{number}"
        _run("ip", "netns", "add", namespace)
        self._namespaces[address] = namespace
        _run("ip", "link", "add", namespace, "type", "veth", "peer", inside, "netns", namespace)
        _run("ip", "link", "set", namespace, "master", self._name, "up")
        within = ("ip", "-n", namespace)
        _run(*within, "link", "set", "lo", "up")
        _run(*within, "address", "add", f"{address}/24", "dev", inside)
        _run(*within, "link", "set", inside, "up")
        return Place(address, ("ip", "netns", "exec", namespace))

    def drop(self, sender: str, receiver: str) -> None:
        """Drop packets from one address to another; the other direction still passes."""
        rules: tuple[tuple[str, str, str], ...]
        if receiver in self._namespaces:
            rules = ((receiver, "INPUT", "-s"),)
            other = sender
        else:
            rules = ((sender, "OUTPUT", "-d"),)  # nothing is dropped in our own namespace
            other = receiver
        for place, chain, side in rules:
            self._iptables(place, "-A", chain, side, other, "-j", "DROP")

    def cut(self, one: str, other: str) -> None:
        """Drop packets between these two addresses."""
        self.drop(one, other)
        self.drop(other, one)

    def isolate(self, address: str, others: Sequence[str] | None = None) -> None:
        """Cut a machine off from `others`, or from all other machines. The test still reaches the
        machine.
        """
        for other in others if others is not None else self._namespaces:
            if other != address:
                self.cut(address, other)

    def heal(self) -> None:
        """Stop dropping packets."""
        for address in self._namespaces:
            self._iptables(address, "-F")

    def close(self) -> None:
        """Remove the bridge and all namespaces; processes in them lose their network.
        Idempotent.
        """
        for namespace in self._namespaces.values():
            _run("ip", "link", "delete", namespace, may_fail=True)
            _run("ip", "netns", "delete", namespace, may_fail=True)
        self._namespaces.clear()
        _run("ip", "link", "delete", self._name, may_fail=True)

    def _iptables(self, address: str, *words: str) -> None:
        namespace = self._namespaces[address]
        _run("ip", "netns", "exec", namespace, "iptables", "-w", *words)


def _run(*words: str, may_fail: bool = False) -> str:
    try:
        done = subprocess.run(
            words,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NamespacesUnavailable(f"{' '.join(words)}: {error}") from error
    if done.returncode != 0 and not may_fail:
        raise NamespacesUnavailable(f"{' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


def _free_subnet() -> str:
    """Return the first three numbers of a /24 network without an address of this machine."""
    used = _run("ip", "-4", "route", "show", "table", "all") + _run("ip", "-4", "address")
    for number in range(os.getpid() % 200, os.getpid() % 200 + 250):
        subnet = f"10.{217 + number // 250}.{number % 250}"
        if f"{subnet}." not in used:
            return subnet
    raise NamespacesUnavailable("no free network 10.217.x.0")


def _remove_leftovers() -> None:
    """Remove the namespaces and bridges of test runs that have ended."""
    folder = Path("/run/netns")
    for path in folder.glob(f"{_PREFIX}*") if folder.exists() else ():
        if _is_left_over(path.name):
            _run("ip", "netns", "delete", path.name, may_fail=True)
    for path in Path("/sys/class/net").glob(f"{_PREFIX}*"):
        if _is_left_over(path.name):
            _run("ip", "link", "delete", path.name, may_fail=True)


def _is_left_over(name: str) -> bool:
    number = name.removeprefix(_PREFIX).partition("-")[0]
    return number.isdigit() and not psutil.pid_exists(int(number))
