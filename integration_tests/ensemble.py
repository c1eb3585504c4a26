"""A real ZooKeeper ensemble of three members for tests, from the jars of the embedded server.

Tests kill, pause and restart single members. The command `srvr` returns a member's role; a member
without a quorum answers that it does not serve.
"""

from __future__ import annotations

import contextlib
import signal
import socket
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Final

from integration_tests.process import ChildProcess
from pybroker.host.java import server_command
from pybroker.testing.place import Place
from pybroker.testing.sockets import free_ports
from unit_tests.patience import ATTEMPT_S, wait_until

TICK_S: Final = 0.5
_SERVER: Final = f"""\
standaloneEnabled=false
tickTime={TICK_S * 1000:.0f}
initLimit=20
minSessionTimeout=1000
maxSessionTimeout=60000
maxClientCnxns=0
admin.enableServer=false
4lw.commands.whitelist=srvr
"""
_LOGGING: Final = """\
status=error
appender.console.type=Console
appender.console.name=console
appender.console.layout.type=PatternLayout
appender.console.layout.pattern=[%d] %p %m (%c{1})%n%ex
rootLogger.level=info
rootLogger.appenderRef.console.ref=console
"""


@dataclass
class Member:
    """One server of the ensemble, running or not."""

    number: int
    folder: Path
    place: Place
    client_port: int
    quorum_port: int
    election_port: int
    process: ChildProcess | None = None
    earlier_output: list[str] = field(default_factory=list)

    @property
    def address(self) -> str:
        return f"{self.place.host}:{self.client_port}"

    @property
    def server_line(self) -> str:
        ports = f"{self.quorum_port}:{self.election_port}"
        return (
            f"server.{self.number}={self.place.host}:{ports};{self.place.host}:{self.client_port}"
        )

    def mode(self) -> str:
        """Return `leader` or `follower`; empty if the member does not serve."""
        with contextlib.suppress(OSError):
            address = (self.place.host, self.client_port)
            with socket.create_connection(address, timeout=ATTEMPT_S) as connection:
                connection.sendall(b"srvr")
                answer = b""
                while part := connection.recv(4096):
                    answer += part
            for line in answer.decode(errors="replace").splitlines():
                if line.startswith("Mode: "):
                    return line.removeprefix("Mode: ")
        return ""


class Ensemble:
    """An ensemble of three members, numbered from 1, with data in `folder`, between `start` and
    `close`.

    `places` runs members on other addresses than 127.0.0.1. A member detects after `sync_limit`
    ticks that it has lost contact with the ensemble.
    """

    def __init__(
        self, folder: Path, *, places: Mapping[int, Place] | None = None, sync_limit: int = 4
    ) -> None:
        self.members: dict[int, Member] = {}
        self.unlisted: set[int] = set()
        """The members that `connect` leaves out."""
        self._sync_limit = sync_limit
        ports = iter(free_ports(9))
        for number in (1, 2, 3):
            place = (places or {}).get(number, Place())
            self.members[number] = Member(
                number, folder / str(number), place, next(ports), next(ports), next(ports)
            )

    def __enter__(self) -> Ensemble:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def connect(self) -> str:
        """Return the value of zookeeper.connect."""
        return ",".join(
            member.address for n, member in self.members.items() if n not in self.unlisted
        )

    @property
    def running(self) -> list[int]:
        return [n for n, each in self.members.items() if each.process and each.process.running]

    def log_text(self, number: int) -> str:
        """Return the output of all runs of a member."""
        member = self.members[number]
        return "\n".join([*member.earlier_output, member.process.output if member.process else ""])

    def start(self) -> None:
        """Start the members that do not run, and wait until all members serve."""
        for number in self.members.keys() - set(self.running):
            self._launch(self.members[number])
        self.wait_for_quorum(self.members.keys())

    def restart(self, number: int) -> None:
        """Start a killed member. Return when it serves in the quorum, or when its process runs if a
        quorum needs further members.
        """
        self._launch(self.members[number])
        if len(self.running) > len(self.members) // 2:
            self.wait_for_quorum([number])

    def kill(self, number: int) -> None:
        """Send SIGKILL to a member."""
        member = self.members[number]
        assert member.process is not None, f"member {number} does not run"
        member.process.kill9()
        member.earlier_output.append(member.process.output)
        member.process = None

    def pause(self, number: int) -> None:
        """Send SIGSTOP to a member, which stays connected and sends nothing."""
        self._process(number).signal(signal.SIGSTOP)

    def resume(self, number: int) -> None:
        self._process(number).signal(signal.SIGCONT)

    def leader(self, among: Collection[int] | None = None) -> int:
        """Wait until exactly one running member (or one in `among`) leads. Return its number. A
        paused or isolated member may still report that it leads.
        """
        found: list[int] = []

        def leads() -> bool:
            asked = self.running if among is None else among
            found[:] = [n for n in asked if self.members[n].mode() == "leader"]
            return len(found) == 1

        wait_until(leads, what="one member of the ensemble leads")
        return found[0]

    def followers(self) -> list[int]:
        """Return the running members that do not lead."""
        leader = self.leader()
        return [number for number in self.running if number != leader]

    def lose_quorum(self) -> list[int]:
        """Kill all members but one, and wait until the last member has stopped serving. Return the
        numbers of the killed members.
        """
        last, *others = sorted(self.running)
        for number in others:
            self.kill(number)
        wait_until(lambda: not self.members[last].mode(), what="the last member stops serving")
        return others

    def wait_for_quorum(self, numbers: Collection[int] | None = None) -> None:
        """Wait until these members (by default all running members) serve."""
        asked = self.running if numbers is None else numbers
        wait_until(
            lambda: all(self.members[number].mode() for number in asked),
            what=f"members {sorted(asked)} of the ensemble serve",
        )

    def close(self) -> None:
        """Kill all members. Idempotent."""
        for member in self.members.values():
            if member.process is not None:
                member.process.close()

    def _process(self, number: int) -> ChildProcess:
        process = self.members[number].process
        assert process is not None, f"member {number} does not run"
        return process

    def _launch(self, member: Member) -> None:
        data = member.folder / "data"
        data.mkdir(parents=True, exist_ok=True)
        (data / "myid").write_text(f"{member.number}\n")
        servers = "\n".join(each.server_line for each in self.members.values())
        config = member.folder / "zoo.cfg"
        config.write_text(f"{_SERVER}syncLimit={self._sync_limit}\ndataDir={data}\n{servers}\n")
        logging = member.folder / "log4j2.properties"
        logging.write_text(_LOGGING)
        member.process = ChildProcess([*member.place.prefix, *server_command(config, logging)])
