"""A cluster for fault tests: a run creates a topic and a workload, injects faults, and checks the
recorded operations.

    with rig.run("kill9-leader-loop") as run:
        run.wait_for_progress(50)
        with run.fault("kill9", broker):
            cluster.kill9(broker)
        ...
        history = run.finish()        # heals, waits for full ISRs, reads everything, judges

A failed run keeps its evidence (operations, logs and files of brokers, the nodes of ZooKeeper) in a
folder, which the error names.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final

from integration_tests.faults import final
from integration_tests.faults.settings import PRODUCERS, READERS, Settings
from integration_tests.faults.tormented import Tormented
from integration_tests.faults.watch import NOBODY, PartitionNow, Watch
from integration_tests.process import ChildProcess
from pybroker.client import Admin, NewTopic
from pybroker.client.errors import ClientError, ResponseError
from pybroker.errors import ErrorCode
from pybroker.testing.history import measures
from pybroker.testing.history.checker import LOSSY, RULES, check, repeated, report
from pybroker.testing.history.loader import load
from pybroker.testing.history.model import History
from pybroker.testing.history.ops import OpsLog
from unit_tests.patience import WaitFailed, wait_until

PARTITIONS: Final = 4
REPLICAS: Final = 3
_EVIDENCE: Final = "pybroker-faults-"
_STOOD_STILL: Final = "reason=event loop is stuck"
"""A pattern of error lines that a broker logs because the machine stalls."""
_ERROR: Final = re.compile(r"^\[[^]]*\] (ERROR|CRITICAL|FATAL)\b|^Traceback |^Task exception was")
_ELECTED: Final = re.compile(r"controller elected broker=(\d+) epoch=(\d+)")


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a workload: acknowledged values by producer and partition, delivered values
    by reader, and failed values by producer and error.
    """

    acked: Mapping[str, Mapping[str, int]]
    delivered: Mapping[str, int]
    failed: Mapping[str, Mapping[str, int]]


class Rig:
    """The cluster and the folder of all runs of a test module."""

    def __init__(self, cluster: Tormented, folder: Path) -> None:
        self.cluster = cluster
        self.folder = folder
        self._log_lines_seen: dict[int, int] = {}

    def run(
        self,
        name: str,
        *,
        clients: Sequence[str] = (*PRODUCERS, *READERS),
        configs: Mapping[str, str] | None = None,
        leader_only: bool = False,
        rate: int = 100,
    ) -> Run:
        """Return a run with a topic of this name, for a `with` statement."""
        self.ready()
        self._log_lines_seen = {b: len(self._lines(b)) for b in self.cluster.brokers}
        return Run(self, name, tuple(clients), dict(configs or {}), leader_only, rate)

    def ready(self) -> None:
        """Ensure that all brokers run and all links are open."""
        self.cluster.heal()
        if set(self.cluster.running()) != set(self.cluster.brokers):
            self.cluster.start_all()

    def new_lines(self, broker: int) -> list[str]:
        """Return the lines that the broker has logged since the run began."""
        return self._lines(broker)[self._log_lines_seen.get(broker, 0) :]

    def _lines(self, broker: int) -> list[str]:
        return self.cluster.log_text(broker).splitlines()


class Run:
    """One run: its own topic, clients that write and read the topic, faults, and the check of the
    history.
    """

    def __init__(
        self,
        rig: Rig,
        name: str,
        clients: tuple[str, ...],
        configs: Mapping[str, str],
        leader_only: bool,
        rate: int,
    ) -> None:
        self.rig = rig
        self.cluster = rig.cluster
        self.topic = name
        self.ops_folder = rig.folder / name
        self.log = OpsLog(self.ops_folder, "run")
        self.watch = Watch(self.cluster.zookeeper, name, PARTITIONS, self.log)
        self._settings = Settings(
            folder=str(self.ops_folder),
            bootstrap=self.cluster.bootstrap,
            topic=name,
            partitions=PARTITIONS,
            clients=clients,
            rate=rate,
            leader_only=leader_only,
        )
        self._configs = {"min.insync.replicas": "2", "segment.bytes": "65536", **configs}
        self._process: ChildProcess | None = None
        self._finished = False
        self._silent: set[frozenset[int]] = set()

    def __enter__(self) -> Run:
        try:
            self.watch.start()
            self._create_topic()
            self._process = ChildProcess(
                [
                    sys.executable,
                    "-m",
                    "integration_tests.faults.workload",
                    self._settings.encode(),
                ],
                interactive=True,
            )
            self._process.wait_for_line("workload runs")
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if error is not None:
                self.cluster.is_spoiled = True
                error.add_note(f"evidence: {self.keep_evidence()}")
        finally:
            self._close()

    # ---- events

    @contextlib.contextmanager
    def fault(self, what: str, target: object = "") -> Iterator[None]:
        """Record the beginning and the end of a fault."""
        self.log.write("nemesis", "fault", "invoke", what=what, target=str(target))
        yield
        self.log.write("nemesis", "fault", "ok", what=what, target=str(target))

    def silence(self, broker: int, others: Iterable[int]) -> None:
        """Record that the broker and these others may not receive each other's messages from now
        on. A leader among them may be replaced without knowing it, which the checker allows.
        """
        for other in others:
            if other != broker and (pair := frozenset({broker, other})) not in self._silent:
                self._silent.add(pair)
                self.log.write("nemesis", "silence", "invoke", between=sorted(pair))

    def heard(self) -> None:
        """Record that all brokers receive each other's messages again."""
        for pair in self._silent:
            self.log.write("nemesis", "silence", "ok", between=sorted(pair))
        self._silent.clear()

    def wait(self, seconds: float) -> None:
        """Let the workload run for some seconds."""
        time.sleep(seconds)

    def progress(self) -> Progress:
        line = self._workload().ask("progress", "^progress ")
        acked, delivered, failed = json.loads(line.partition(" ")[2])
        return Progress(acked, delivered, failed)

    def wait_for_progress(
        self,
        count: int = 10,
        *,
        clients: Collection[str] | None = None,
        partitions: Collection[int] = range(PARTITIONS),
    ) -> None:
        """Wait until every producer (or each of `clients`) has `count` more acknowledgements in
        each partition (or in each of `partitions`)."""
        before = self.progress().acked
        names = [name for name in before if clients is None or name in clients]

        def enough() -> bool:
            now = self.progress().acked
            return all(
                now[name].get(str(partition), 0) - before[name].get(str(partition), 0) >= count
                for name in names
                for partition in partitions
            )

        wait_until(
            enough, what=f"producers {names} get acknowledgements in partitions {[*partitions]}"
        )

    def wait_for_refusals(self, producer: str, errors: Collection[str], count: int = 10) -> None:
        """Wait until the producer has received `count` more of these errors."""

        def refused() -> int:
            told = self.progress().failed[producer]
            return sum(told.get(error, 0) for error in errors)

        enough = refused() + count
        wait_until(
            lambda: refused() >= enough, what=f"producer {producer} gets the errors {[*errors]}"
        )

    # ---- leaders and ISRs

    def leader(self, partition: int = 0, *, other_than: int = -1) -> int:
        """Wait until a broker other than `other_than` leads the partition. Return its id."""

        def led(state: PartitionNow) -> bool:
            return state.leader not in (-1, other_than)

        return self.wait_for_state(partition, led, "a leader").leader

    def controller(self, *, other_than: int = NOBODY) -> int:
        """Wait until a broker other than `other_than` is the controller. Return its id."""
        found: list[int] = []

        def held() -> bool:
            found[:] = [self.watch.controller()]
            return found[0] not in (NOBODY, other_than)

        wait_until(held, what="there is a controller")
        return found[0]

    def wait_for_state(
        self,
        partition: int,
        condition: Callable[[PartitionNow], bool],
        what: str,
    ) -> PartitionNow:
        """Wait until the partition's stored state meets the condition. Return the state."""
        found: list[PartitionNow] = []

        def met() -> bool:
            state = self.watch.all().get(partition)
            if state is None or not condition(state):
                return False
            found.append(state)
            return True

        wait_until(met, what=f"{self.topic}-{partition}: {what}")
        return found[-1]

    def wait_for_isr(self, brokers: Collection[int]) -> None:
        """Wait until exactly these brokers are in sync in every partition."""

        def are_these() -> bool:
            states = self.watch.all()
            return len(states) == PARTITIONS and all(
                set(state.isr) == set(brokers) for state in states.values()
            )

        wait_until(are_these, what=f"exactly the brokers {brokers} are in sync")

    def wait_for_full_isr(self) -> None:
        """Wait until every partition has a leader and all its replicas are in sync."""

        def full() -> bool:
            states = self.watch.all()
            return len(states) == PARTITIONS and all(
                state.leader >= 0 and len(state.isr) == REPLICAS for state in states.values()
            )

        wait_until(full, what=f"all replicas in sync, now {self.watch.all()}")

    # ---- the end

    def finish(
        self,
        *,
        lossy: bool = False,
        excused: Collection[str] = (),
        stop: bool = False,
        allowed_errors: Collection[str] = (),
    ) -> History:
        """Heal all faults, let the workload run for a moment, read all records, and check the
        history.

        With `lossy` records may have been lost, so only the rules of `checker.LOSSY` are checked,
        and the positions of readers may not exist any more. `excused` are further rules that are
        not checked. With `stop` the brokers are stopped cleanly before their files are read, so
        that their producer snapshots are compared, too. `allowed_errors` are patterns of the
        brokers' error lines that the fault explains.
        """
        self.rig.ready()
        self.wait_for_full_isr()
        self.wait_for_progress(3)
        workload = self._workload()
        workload.ask("stop-producers", "producers stopped")
        ends = final.read_all(self.cluster.bootstrap, self.topic, PARTITIONS, self.log)
        late = [] if lossy else self._late_readers(sum(ends.values()))
        workload.ask("stop", "workload stopped")
        if stop:
            for broker in self.cluster.brokers:
                assert self.cluster.stop(broker) == 0
        log_dirs = {broker: self.cluster.log_dir(broker) for broker in self.cluster.brokers}
        final.read_files(log_dirs, self.topic, ends, self.log, stopped=stop)
        self._note_controllers()
        if lossy:
            self._note_losses()
        history = load(self.ops_folder)
        print(f"{self.topic}: {measures.summary(history)}, {repeated(history)} twice")
        rules = [name for name in RULES if name not in excused and (name in LOSSY or not lossy)]
        violations = check(history, rules)
        assert not violations, report(violations)
        assert not late, f"the readers {late} did not read to the end"
        assert history.polls and history.finals, "no record was read, so the run proves nothing"
        self._judge_logs(allowed_errors)
        self._finished = True
        return history

    def _late_readers(self, records: int) -> list[str]:
        """Return the readers that did not get every record in time."""

        def late() -> list[str]:
            delivered = self.progress().delivered
            return [name for name, n in delivered.items() if n < records and name != "asker"]

        with contextlib.suppress(WaitFailed):
            wait_until(lambda: not late(), what="all readers read to the end")
        return late()

    def keep_evidence(self) -> Path:
        """Copy all evidence to a folder that is kept. Return the folder."""
        folder = Path(tempfile.mkdtemp(prefix=f"{_EVIDENCE}{self.topic}-"))
        shutil.copytree(self.ops_folder, folder / "ops", dirs_exist_ok=True)
        if self._process is not None:
            (folder / "workload.log").write_text(self._process.output)
        (folder / "zookeeper.txt").write_text("\n".join(self.watch.nodes()))
        for broker in self.cluster.brokers:
            (folder / f"broker-{broker}.log").write_text("\n".join(self.rig.new_lines(broker)))
            source, target = self.cluster.log_dir(broker), folder / f"broker-{broker}-files"
            target.mkdir()
            for path in source.glob(f"{self.topic}-*"):
                with contextlib.suppress(OSError, shutil.Error):
                    shutil.copytree(path, target / path.name)
        return folder

    def _judge_logs(self, allowed: Collection[str]) -> None:
        wrong = [
            f"broker {broker}: {line}"
            for broker in self.cluster.brokers
            for line in self.rig.new_lines(broker)
            if _ERROR.search(line)
            and not any(re.search(pattern, line) for pattern in (_STOOD_STILL, *allowed))
        ]
        assert not wrong, "unexplained error lines in the brokers' logs:\n" + "\n".join(wrong[:20])

    def _note_controllers(self) -> None:
        for broker in self.cluster.brokers:
            for line in self.rig.new_lines(broker):
                if found := _ELECTED.search(line):
                    self.log.write(
                        "watch", "controller", "ok",
                        epoch=int(found[2]), broker=int(found[1]),
                    )  # fmt: skip

    def _note_losses(self) -> None:
        for partition in range(PARTITIONS):
            told = self.watch.loss(partition) or {"receipts": ()}
            for receipt in told["receipts"]:
                self.log.write(
                    "watch", "loss", "ok",
                    tp=[self.topic, partition],
                    reason=receipt["reason"],
                    given_up=[[each["from"], each["to"]] for each in receipt["given_up"]],
                )  # fmt: skip

    def _create_topic(self) -> None:
        wait_until(self._asked_for_topic, what=f"{self.topic} is created")
        self.wait_for_full_isr()

    def _asked_for_topic(self) -> bool:
        topic = NewTopic(self.topic, PARTITIONS, REPLICAS, configs=self._configs)

        async def ask() -> None:
            async with Admin(self.cluster.bootstrap) as admin:
                for result in await admin.create_topics([topic], timeout_ms=10_000):
                    result.check()

        try:
            asyncio.run(ask())
        except ResponseError as error:
            # an earlier attempt without an answer may have created it
            return error.code == ErrorCode.TOPIC_ALREADY_EXISTS
        except ClientError:
            return False
        return True

    def _workload(self) -> ChildProcess:
        assert self._process is not None
        return self._process

    def _close(self) -> None:
        if self._process is not None:
            self._process.close()
        self.watch.close()
        self.log.close()
