"""Group members as processes, and a client that requests their committed offsets. A test starts,
stops, pauses and kills members, and waits for their assignments and progress.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from integration_tests import maven, npm
from integration_tests.members.settings import MemberSettings
from integration_tests.process import ChildProcess
from pybroker.client import Admin, TopicPartition
from pybroker.client.errors import ClientError
from pybroker.coordinator.runtime.partitioning import partition_of
from pybroker.testing.history.ops import OpsLog
from unit_tests.patience import wait_until

Place = tuple[str, int]
ASK_S: Final = 0.2
ASK_TIMEOUT_MS: Final = 3_000
_HERE: Final = Path(__file__).parent.parent
_HOLDS: Final = "holds "


class Member:
    """One process of a member."""

    def __init__(self, settings: MemberSettings, command: Sequence[str]) -> None:
        self.settings = settings
        environment = {**os.environ, "KAFKAJS_NO_PARTITIONER_WARNING": "1"}
        if settings.library == "kafkajs":
            environment["NODE_PATH"] = str(npm.node_modules(npm.KAFKAJS))
        self.process = ChildProcess(command, environment=environment, interactive=True)

    @property
    def held(self) -> tuple[int, frozenset[Place]]:
        """Return the last reported generation and partitions; -1 and no partitions before the first
        report.
        """
        said = [each for each in self.process.output.splitlines() if each.startswith(_HOLDS)]
        if not said:
            return -1, frozenset()
        _, generation, *places = said[-1].split()
        found = (place.rsplit("/", 1) for place in places)
        return int(generation), frozenset((topic, int(number)) for topic, number in found)

    def leave(self) -> None:
        """Leave the group cleanly, with a last commit."""
        self.process.ask("stop", "^left$")
        assert self.process.wait() == 0, self.process.output

    def kill(self) -> None:
        self.process.kill9()

    def freeze(self) -> None:
        self.process.signal(signal.SIGSTOP)

    def wake(self) -> None:
        self.process.signal(signal.SIGCONT)


class Members:
    """The members of a run, of one or several groups that read the same topics, and the client that
    requests committed offsets. Their logs are in `folder`. `close`, or the end of the `with`
    statement, kills all processes.
    """

    def __init__(
        self,
        bootstrap: str,
        folder: Path,
        topics: Mapping[str, int],
        *,
        offsets_partitions: int,
    ) -> None:
        self.bootstrap = bootstrap
        self.folder = folder
        self.topics = dict(topics)
        self.places = frozenset((topic, p) for topic, count in topics.items() for p in range(count))
        self._offsets_partitions = offsets_partitions
        self._log = OpsLog(folder, "members")
        self._members: list[Member] = []
        self._lives: Counter[str] = Counter()
        self._asker = _Asker(bootstrap, self.places, self._log)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None:
            for member in self._members:
                tail = "\n".join(member.process.output.splitlines()[-15:])
                error.add_note(f"member {member.settings.client}:\n{tail}")
        self.close()

    def join(
        self,
        library: str,
        name: str,
        *,
        group: str,
        strategy: str = "range",
        static: bool = False,
        session_ms: int = 4_000,
        bootstrap: str | None = None,
    ) -> Member:
        """Start a member process, which joins the group later. `name` may be reused, and is the
        instance id of a static member. `bootstrap` overrides the address for this member. Raises
        the error of a library that is missing on this machine (see `conftest.or_skip`).
        """
        self._lives[name] += 1
        settings = MemberSettings(
            library=library,
            client=f"{group}-{name}-{self._lives[name]}",
            group=group,
            bootstrap=bootstrap or self.bootstrap,
            topics=tuple(self.topics),
            folder=str(self.folder),
            strategy=strategy,
            instance=name if static else "",
            session_ms=session_ms,
        )
        if group not in self._asker.groups:
            number = partition_of(group, self._offsets_partitions)
            self._log.write(
                "members", "group", "info",
                group=group, topics=list(self.topics), partition=number,
            )  # fmt: skip
            self._asker.groups = (*self._asker.groups, group)
        member = Member(settings, command(settings))
        self._members.append(member)
        return member

    def wait_until_shared(self, *members: Member, idle: int = 0) -> int:
        """Wait until each partition is assigned to exactly one of these members of their group, and
        `idle` of them have no partition. Return the latest generation.
        """
        found: list[int] = []

        def shared() -> bool:
            held = [member.held for member in members]
            everything = [place for _, places in held for place in places]
            found[:] = [generation for generation, _ in held]
            return (
                len(everything) == len(self.places)
                and set(everything) == self.places
                and sum(not places for _, places in held) == idle
            )

        names = " ".join(member.settings.client for member in members)
        wait_until(shared, what=f"{names} share all partitions")
        return max(found)

    def committed(self, group: str) -> Mapping[Place, int]:
        """Return the last known committed offsets of the group; 0 for partitions without a
        committed offset.
        """
        return {place: self._asker.known.get((group, place), 0) for place in self.places}

    def wait_for_commits(self, group: str, count: int = 40) -> None:
        """Wait until the group has committed `count` more records, with some in each partition."""
        before = self.committed(group)

        def further() -> bool:
            gained = [at - before[place] for place, at in self.committed(group).items()]
            return min(gained) > 0 and sum(gained) >= count

        wait_until(further, what=f"group {group} commits more than {before}")

    def wait_until_all_is_committed(self, ends: Mapping[Place, int]) -> None:
        for group in self._asker.groups:
            wait_until(
                functools.partial(self._has_come, group, ends),
                what=f"group {group} commits {ends}; now {self.committed(group)}",
            )

    def _has_come(self, group: str, ends: Mapping[Place, int]) -> bool:
        return self.committed(group) == ends

    def note_calm(self) -> None:
        """Record that every acknowledged record must be processed by now. Availability is not
        checked, because its time limit is longer than the run.
        """
        self._log.write("members", "calm", "ok", limit=10**12)

    def leave_all(self, members: Collection[Member]) -> None:
        """Let all members leave concurrently, as in a shutdown."""
        threads = [threading.Thread(target=member.leave) for member in members]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def close(self) -> None:
        self._asker.close()
        for member in self._members:
            member.process.close()
        self._log.close()


class _Asker:
    """A thread that requests the committed offsets of `groups` repeatedly, and records the
    answers.
    """

    def __init__(self, bootstrap: str, places: Collection[Place], log: OpsLog) -> None:
        self.groups: tuple[str, ...] = ()
        self.known: dict[tuple[str, Place], int] = {}
        self._bootstrap = bootstrap
        self._places = places
        self._log = log
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._ask()), daemon=True)
        self._thread.start()

    async def _ask(self) -> None:
        async with Admin(
            self._bootstrap, request_timeout_ms=ASK_TIMEOUT_MS, reconnect_backoff_max_ms=500
        ) as admin:
            while not self._stop.is_set():
                for group in self.groups:
                    await self._ask_for(admin, group)
                await asyncio.sleep(ASK_S)

    async def _ask_for(self, admin: Admin, group: str) -> None:
        asked = time.monotonic_ns()
        wanted = {group: [TopicPartition(*place) for place in self._places]}
        try:
            answers = await admin.committed_offsets(wanted, timeout_ms=ASK_TIMEOUT_MS)
            offsets = answers[group].check().offsets
        except ClientError as error:
            self._log.write("offsets-asker", "committed", "info", group=group, err=repr(error))
            return
        for topic, number in self._places:
            found = offsets.get(TopicPartition(topic, number))
            offset = -1 if found is None else found.offset
            self._log.write(
                "offsets-asker", "committed", "ok",
                group=group, tp=[topic, number], off=offset, asked=asked,
            )  # fmt: skip
            self.known[group, (topic, number)] = max(offset, 0)

    def close(self) -> None:
        self._stop.set()
        self._thread.join()


def command(settings: MemberSettings) -> list[str]:
    """Return the command line of a member's process.

    Raises MavenUnavailable or NpmUnavailable.
    """
    told = settings.encode()
    if settings.library == "java":
        return [
            maven.java(),
            *("-Xmx128m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto"),
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
            *("-cp", f"{_java_classes()}{os.pathsep}{maven.class_path()}", "GroupMember", told),
        ]
    if settings.library == "kafkajs":
        npm.node_modules(npm.KAFKAJS)
        return [npm.node(), str(_HERE / "node" / "member.js"), told]
    return [sys.executable, "-m", "integration_tests.members.python_members", told]


@functools.cache
def _java_classes() -> Path:
    """Return the folder of the Java class GroupMember, compiled once for many processes."""
    compiler = shutil.which("javac")
    if compiler is None:
        raise maven.MavenUnavailable("no Java compiler (install openjdk-17-jdk-headless)")
    source = _HERE / "java" / "GroupMember.java"
    name = hashlib.sha256(maven.class_path().encode() + source.read_bytes()).hexdigest()[:16]
    folder = maven.cache_dir() / "classes" / name
    if not folder.is_dir():
        made = folder.with_name(f"{folder.name}-{os.getpid()}")
        subprocess.run(
            [compiler, "-d", str(made), "-cp", maven.class_path(), str(source)], check=True
        )
        shutil.move(made, folder)
    return folder
