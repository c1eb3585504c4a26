"""One run of the simulation: a cluster and its clients under a schedule of faults.

After the faults, the cluster must recover within a known time. Then all records are read, and the
history is checked.
"""

from __future__ import annotations

import gc
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from typing import Final

from pybroker.broker.group_coordination import GROUP_TOPIC
from pybroker.broker.transaction_coordination import TRANSACTION_TOPIC
from pybroker.coordinator.runtime.partitioning import partition_of
from pybroker.model import TopicPartition
from pybroker.testing.history.checker import LOSSY, RULES, check
from pybroker.testing.history.model import NANOSECONDS, Calm, EarlyEnd, History, Violation
from pybroker.testing.simulation.broker_log import BrokerLog, explained_by
from pybroker.testing.simulation.cluster import SimCluster
from pybroker.testing.simulation.cluster_record import ClusterRecord
from pybroker.testing.simulation.environment import Environment
from pybroker.testing.simulation.nemesis import Nemesis
from pybroker.testing.simulation.operator import repair
from pybroker.testing.simulation.replica_files import DamagedFile
from pybroker.testing.simulation.result import (
    BROKER_ERROR,
    DAMAGED,
    LIVENESS,
    RUN_FAILED,
    Result,
    wrong,
)
from pybroker.testing.simulation.run_options import (
    TRANSACTION_PARTITIONS,
    broker_config,
    workload_options,
)
from pybroker.testing.simulation.schedule import Schedule, ScheduleError
from pybroker.testing.simulation.view import is_healthy, replica, stored_states
from pybroker.testing.simulation.watching import LiveWatch, read_files
from pybroker.testing.simulation.workload import Workload
from pybroker.testing.simulation.workload.recorder import nanoseconds

TOPIC: Final = "load-0"
_STEADY_S: Final = 0.5
_START_S_MAX: Final = 60.0
_RECOVERY_S_MAX: Final = 30.0
"""The maximum time in seconds that recovery may take, in addition to session timeouts and lag
times."""
_QUIET_S_MAX: Final = 60.0
_SUPERVISION_S: Final = 1.0
_READ_S_MAX: Final = 60.0
_LOOK_S: Final = 0.1
_AFTER_FAULTS_S: Final = 0.5
_REQUEST_S_MAX: Final = 5.0
_NANOSECONDS_PER_MS: Final = 1_000_000
_CLOCK: Final = "clock"
"""The kind of fault that moves a broker's clock. In a run with it, tombstones may be removed at any
time."""
_PROGRESS: Final = 3
"""The number of values that must be acknowledged in each partition after the faults."""


class ConditionFailed(Exception):
    """The simulated cluster did not reach a state in time."""


class _ViolationFound(Exception):
    """An invariant is violated in a run with `stop_early`."""


@contextmanager
def nothing_planted(bug: str) -> Iterator[None]:
    """Return a context manager that leaves the broker's code unchanged. Raises ScheduleError if the
    schedule names a bug to put into the code (`bug` is not empty)."""
    if bug:
        raise ScheduleError(
            f"cannot put the bug {bug} into the broker's code:"
            " only python -m unit_tests.simulation can"
        )
    yield


def simulate(
    schedule: Schedule,
    *,
    keep_trace: bool = False,
    stop_early: bool = False,
    planted: Callable[[str], AbstractContextManager[None]] = nothing_planted,
) -> Result:
    """Run the schedule in this process. The same schedule always gives the same result. `planted`
    returns a context manager that puts the bug with the given name into the broker's code; "" means
    no bug.

    With `stop_early` the run ends at the first violated invariant, without a check of the history.
    The run changes logging and garbage collection of this process.
    """
    begun = time.process_time()
    environment = Environment(schedule.seed, keep_lines=keep_trace)
    log = BrokerLog(environment)
    _freeze()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        with planted(schedule.options.planted), log.listening():
            run = _Run(schedule, environment, log, stop_early=stop_early)
            try:
                with run.watch:
                    run.play()
                digest, failures = environment.digest, run.failures
            finally:
                run.cluster.close()
        violations = run.judge()
        if not run.is_cut_short:
            violations += _error_violations(log, schedule, failures)
    finally:
        if was_enabled:
            gc.enable()
    return Result(
        schedule,
        digest,
        tuple(violations),
        run.counters(),
        time.process_time() - begun,
        tuple(environment.lines or ()),
    )


@cache
def _freeze() -> None:
    """Exclude all objects that exist now from later garbage collections."""
    gc.collect()
    gc.freeze()


def _error_violations(log: BrokerLog, schedule: Schedule, failures: list[str]) -> list[Violation]:
    lines = log.unexplained(
        explained_by(
            (event.kind for event in schedule.events), is_lossy=bool(schedule.options.lossy)
        )
    )
    return [wrong(BROKER_ERROR, line) for line in [*lines, *failures]]


class _Run:
    def __init__(
        self, schedule: Schedule, environment: Environment, log: BrokerLog, *, stop_early: bool
    ) -> None:
        options = schedule.options
        self.schedule = schedule
        self.environment = environment
        self._log = log
        self.is_cut_short = False
        self._stop_early = stop_early
        self.violations: list[Violation] = []
        self.cluster = SimCluster(
            environment,
            options.brokers,
            zookeepers=options.zookeepers,
            log_dirs=options.log_dirs,
            config=broker_config(options),
        )
        self.workload = Workload(
            environment,
            self.cluster.machine,
            self.cluster.network.sockets,
            self.cluster.bootstrap,
            workload_options(options),
        )
        self.history = self.workload.history
        self.history.may_lose = bool(options.lossy)
        self.history.expires = bool(options.retention_bytes or options.retention_ms)
        if not any(event.kind == _CLOCK for event in schedule.events):
            keyed = self.history.keyed
            keyed.delete_retention = options.delete_retention_ms * _NANOSECONDS_PER_MS
        self.history.stale = int((options.session_s + _REQUEST_S_MAX) * NANOSECONDS)
        self.record = ClusterRecord(self.history, min_isr=options.min_isr)
        self.cluster.zookeeper.on_commit.append(self.record.committed)
        self.watch = LiveWatch(environment, self.cluster.brokers, self.record)
        doubt = self.watch.invariants.doubt
        groups = self.history.groups.coordinated_by.values()
        coordinators = {
            "coordinator": [TopicPartition(GROUP_TOPIC, number) for number in groups],
            "transactions": [
                TopicPartition(TRANSACTION_TOPIC, partition_of(each, TRANSACTION_PARTITIONS))
                for each in self.workload.transactional_ids
            ],
        }
        self.nemesis = Nemesis(self.cluster, schedule, TOPIC, doubt, coordinators)

    def play(self) -> None:
        try:
            self._begin()
            self.nemesis.start()
            self._pass(self._faults_s())
            self.nemesis.heal()
            self._supervise()
            self._recover()
            self._end()
        except _ViolationFound:
            self.is_cut_short = True
        except ConditionFailed as error:
            self.violations.append(wrong(LIVENESS, str(error)))
        except DamagedFile as error:
            self.violations.append(wrong(DAMAGED, str(error)))
        except Exception:
            self.violations.append(wrong(RUN_FAILED, traceback.format_exc()))

    def _faults_s(self) -> float:
        lasts_s = [event.until for event in self.schedule.events]
        return min(max(lasts_s, default=0.0), self.schedule.options.faults_s) + _AFTER_FAULTS_S

    def _begin(self) -> None:
        self.cluster.start()
        self.watch.start()
        self._until(self._is_up, _START_S_MAX, "the brokers do not start")
        self.workload.start()
        self._until(
            lambda: self.workload.is_ready, _START_S_MAX, "the topics of the load are not created"
        )
        self._pass(_STEADY_S)

    def _supervise(self) -> None:
        repair(self.cluster)
        self.environment.after(_SUPERVISION_S, self._supervise)

    def _recover(self) -> None:
        options = self.schedule.options
        limit_s = 2 * options.session_s + options.lag_s + _RECOVERY_S_MAX
        self.history.calm = Calm(nanoseconds(self.environment.now), int(limit_s * NANOSECONDS))
        self._until(self._is_up, limit_s, "not all brokers serve again")
        self._until(lambda: is_healthy(self.cluster), limit_s, "not all replicas are in sync again")
        self._until(
            self._moves_are_finished, limit_s, "moves between log directories are not finished"
        )
        if options.producers:
            self.workload.spread()
            self._until(
                self._accepts_records(), limit_s, "not every partition accepts records again"
            )
            self._until(
                self._commits_transactions(),
                limit_s,
                "not every transactional id commits transactions again",
            )

    def _accepts_records(self) -> Callable[[], bool]:
        """Return a function that tells whether every partition has acknowledged `_PROGRESS` values
        since `_accepts_records` was called."""
        workload = self.workload
        before = workload.acked.copy()
        return lambda: all(
            workload.acked[key] >= before[key] + _PROGRESS
            for key in workload.catalog.partitions()
            if key in self.record.states
        )

    def _commits_transactions(self) -> Callable[[], bool]:
        """Return a function that tells whether each transactional id has committed a transaction
        since `_commits_transactions` was called."""
        before = self.workload.transacted.copy()
        ids = self.workload.transactional_ids
        return lambda: all(self.workload.transacted[each] > before[each] for each in ids)

    def _transactions_are_over(self) -> bool:
        """Return whether no partition has an open transaction, as far as its leader knows."""
        return all(
            (leader := replica(self.cluster, state.leader, key)) is not None
            and leader.last_stable_offset() == leader.high_watermark
            for key, state in stored_states(self.cluster).items()
        )

    def _end(self) -> None:
        workload = self.workload
        workload.stop()
        self._until(lambda: workload.is_quiet, _QUIET_S_MAX, "not every client ends")
        self._until(self._groups_are_done, _QUIET_S_MAX, "not every group processes all records")
        if not self.schedule.options.lossy:
            self._until(self._transactions_are_over, _QUIET_S_MAX, "not every transaction is over")
        workload.stop_groups()
        self._until(
            lambda: workload.are_groups_quiet, _QUIET_S_MAX, "not all members leave their groups"
        )
        self._until(
            lambda: is_healthy(self.cluster), _RECOVERY_S_MAX, "not all replicas stay in sync"
        )
        workload.read_all(self.record.loaded())
        self._until(lambda: workload.is_read, _READ_S_MAX, "the final reads do not complete")
        self.watch.look()
        read_files(self.cluster.brokers.values(), self.record)
        self.watch.forget_deleted()
        harmed = self.nemesis.has_harmed
        self.violations += self.nemesis.moves.judge(self._log.errors, disks_were_harmed=harmed)

    def _groups_are_done(self) -> bool:
        """Return whether each group has processed all records of its partitions. With transactions,
        a group has to reach only the last acknowledged record: members do not process the
        transaction markers after that record."""
        states, positions = stored_states(self.cluster), self.workload.positions
        ends = self.workload.ends if self.workload.transactional_ids else None
        return all(
            (leader := replica(self.cluster, state.leader, key)) is not None
            and max(positions[group, key], leader.log.log_start_offset)
            >= (leader.high_watermark if ends is None else ends[key])
            for group, topics in self.history.groups.topics.items()
            for key, state in states.items()
            if key.topic in topics
        )

    def _moves_are_finished(self) -> bool:
        return self.nemesis.moves.are_finished

    def _is_up(self) -> bool:
        return all(broker.serves for broker in self.cluster.brokers.values())

    def _pass(self, seconds: float) -> None:
        deadline = self.environment.now + seconds
        while self.environment.now < deadline:
            self._run_to(min(self.environment.now + _LOOK_S, deadline))

    def _run_to(self, time: float) -> None:
        self.environment.run(time)
        if self._stop_early and self.watch.invariants.violations:
            raise _ViolationFound

    def _until(self, condition: Callable[[], bool], seconds: float, failure: str) -> None:
        """Run until `condition()` is true. Raises ConditionFailed with the text `failure` after
        `seconds`."""
        deadline = self.environment.now + seconds
        while not condition():
            if self.environment.now >= deadline:
                raise ConditionFailed(f"{failure} within {seconds:g} s")
            self._run_to(self.environment.now + _LOOK_S)

    # verdict

    def judge(self) -> list[Violation]:
        if self.is_cut_short:
            return [*self.watch.invariants.violations]
        self.history.early_ends += self._early_ends()
        lossy, unread = self.schedule.options.lossy, bool(self.violations)
        unread_rules = _FINAL_READ_RULES if unread else frozenset()
        # A damaged disk may have lost the only copy of a record, which no receipt can name.
        damage_rules = _NO_DATA_LOSS_RULES if self.nemesis.has_harmed else frozenset()
        rules = [
            name
            for name in RULES
            if (name in LOSSY or not lossy) and name not in unread_rules | damage_rules
        ]
        found = [*self.violations, *self.watch.invariants.violations]
        if self.nemesis.has_harmed and not lossy:
            # Brokers also report losses that are only possible. Such receipts are allowed, but no
            # record may be lost.
            self.history.may_lose = True
            found += check(self.history, [name for name in rules if name in _RECEIPT_RULES])
            rules = [name for name in rules if name not in _RECEIPT_RULES]
            self.history.losses.clear()
        return [*found, *check(self.history, rules)]

    def _early_ends(self) -> Iterator[EarlyEnd]:
        brokers = {each.machine.name: each.id for each in self.cluster.brokers.values()}
        for end in self.cluster.zookeeper.early_ends:
            if end.machine in brokers:
                heard = nanoseconds(min(end.heard_at, self.environment.now))
                yield EarlyEnd(brokers[end.machine], nanoseconds(end.at), heard)

    @property
    def failures(self) -> list[str]:
        """Return the uncaught exceptions of all processes, as text."""
        of_brokers = [
            f"{loop.name}: {failure}"
            for broker in self.cluster.brokers.values()
            for loop in broker.machine.loops
            for failure in loop.failures
        ]
        return of_brokers + self.workload.failures + self.nemesis.moves.failures

    def counters(self) -> dict[str, int]:
        history = self.history
        return {
            "acked": sum(send.outcome == "ok" for send in history.sends.values()),
            "sent": len(history.sends),
            "read": sum(len(poll.records) for poll in history.polls),
            "processed": len(history.groups.processed),
            "committed": sum(each.outcome == "ok" for each in history.groups.commits),
            "generations": len({(e.group, e.generation) for e in history.groups.holdings}),
            "transactions": sum(each.outcome == "ok" for each in history.transactions.all),
            "producer_epochs": len(history.transactions.starts),
            "keyed": sum(each.outcome == "ok" for each in history.keyed.sends),
            "compacted_away": _compacted_away(history),
            "steps": self.environment.steps,
            "virtual_ms": int(self.environment.now * 1000),
            "logs_shortened": sum(files.start > 0 for files in history.files),
            **{f"admin_{what}": count for what, count in sorted(self.workload.managed.items())},
            **{f"move_{what}": count for what, count in sorted(self.nemesis.moves.counts.items())},
            **{f"fault_{kind}": count for kind, count in sorted(self.nemesis.begun.items())},
        }


def _compacted_away(history: History) -> int:
    """Return the number of acknowledged keyed records that the read at the end of the run does not
    find."""
    finals = [read for read in history.keyed.reads if read.is_final]
    present = {each.offset for read in finals for each in read.records}
    sends = history.keyed.sends if finals else ()
    return sum(each.outcome == "ok" and each.offset not in present for each in sends)


_FINAL_READ_RULES: Final = frozenset(
    {
        "acked-present",
        "read-implies-durable",
        "replicas-identical",
        "losses-named",
        "transactions-atomic",
        "committed-reads",
        "offsets-match-output",
    }
)
"""The names of the rules that need the final reads."""
_NO_DATA_LOSS_RULES: Final = frozenset({"losses-named"})
"""The names of the rules that hold only if no disk loses data."""


_RECEIPT_RULES: Final = frozenset({"clean-elections", "admitted-losses"})
"""The names of the rules about loss receipts."""
