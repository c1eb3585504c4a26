"""`pybroker start --brokers N`: one process, the supervisor, runs N brokers and their common
ZooKeeper. Each broker has a process group of its own, so that Ctrl-C reaches only the
supervisor."""

from __future__ import annotations

import asyncio
import logging
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import IO, Final

from pybroker.applog.output import LogOptions, start_logging
from pybroker.background import cancel_and_wait
from pybroker.config.broker_config import BrokerConfig
from pybroker.errors import StartupError
from pybroker.host.child_process import ended, pybroker_command, pybroker_environment, tied_to_us
from pybroker.host.embedded_zookeeper import EmbeddedZooKeeper
from pybroker.host.process import READY_VARIABLE, ReadySocket, send_ready
from pybroker.host.several_brokers import (
    BrokerPlan,
    check_directories,
    check_ports,
    check_zookeeper,
    idle_directories,
    without_taken_http,
    zookeeper_directory,
)
from pybroker.host.supervision import (
    STOP_MAX_S,
    AllServe,
    Effect,
    Finish,
    Kill,
    Launch,
    LaunchLater,
    Supervision,
    Terminate,
)

log = logging.getLogger(__name__)

COMPLAINT: Final = b"pybroker start: "
"""A broker that cannot start prints a line that begins with this text and gives the reason."""
_READ_BYTES: Final = 65_536
_LINE_BYTES_MAX: Final = 1_048_576
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_NOT_LAUNCHED: Final = -1


@dataclass(slots=True)
class _Child:
    plan: BrokerPlan
    ready: ReadySocket
    process: subprocess.Popen[bytes] | None = None
    timer: asyncio.TimerHandle | None = None
    watch: asyncio.Task[None] | None = None
    complaint: str = ""


def run_brokers(config: BrokerConfig, plans: Sequence[BrokerPlan], words: Sequence[str]) -> None:
    """Run the brokers until SIGTERM or SIGINT. Every broker's command line begins with `words`.
    Raise StartupError if a broker cannot start, or does not stop in time."""
    as_json = config.pybroker_log_format == "json"
    start_logging(
        LogOptions(as_json=as_json, level=config.pybroker_log_level, levels=config.log_levels)
    )
    check_directories(config, len(plans))
    check_zookeeper(config, len(plans))
    check_ports(config, len(plans))
    for directory in idle_directories(config, len(plans)):
        text = "directory has data of a broker that this command does not start directory=%s"
        log.warning(text, directory)
    plans = [without_taken_http(config, plan) for plan in plans]
    output = BrokerOutput(sys.stdout.buffer, as_json=as_json)
    asyncio.run(Supervisor(config, plans, words, output).run())


class BrokerOutput:
    """Writes the output of several brokers into one stream, each line with its broker's number."""

    def __init__(self, stream: IO[bytes], *, as_json: bool) -> None:
        self._stream = stream
        self._as_json = as_json

    def write(self, broker: int, lines: Sequence[bytes]) -> None:
        """Write the lines of a broker. Errors of the stream are ignored."""
        try:
            self._stream.write(b"".join(self._marked(broker, line) for line in lines))
            self._stream.flush()
        except (OSError, ValueError):
            pass

    def _marked(self, broker: int, line: bytes) -> bytes:
        if self._as_json and line.startswith(b"{"):
            return b'{"broker": %d, %s\n' % (broker, line[1:])
        return b"broker-%d | %s\n" % (broker, line)


class Supervisor:
    """Starts the processes of all brokers, watches them, and stops them."""

    def __init__(
        self,
        config: BrokerConfig,
        plans: Sequence[BrokerPlan],
        words: Sequence[str],
        output: BrokerOutput,
    ) -> None:
        self._config = config
        self._words = words
        self._output = output
        self._supervision = Supervision(len(plans))
        self._children = [_Child(plan, ReadySocket()) for plan in plans]
        self._zookeeper_words: list[str] = []
        self._finished = asyncio.Event()
        self._exit_code = 0

    async def run(self) -> None:
        """Start all brokers, and return when all have ended. Raise StartupError if a broker could
        not start, or did not stop in time."""
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self._stop, number)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        async with AsyncExitStack() as stack:
            for broker, child in enumerate(self._children):
                stack.callback(child.ready.close)
                loop.add_reader(child.ready, self._heard_ready, broker)
                stack.callback(loop.remove_reader, child.ready)
            embedded = await self._launch_zookeeper(stack)
            stack.push_async_callback(self._end_at_once)
            if not self._supervision.stopping:
                self._do(self._supervision.begin())
            if embedded is not None:
                await self._await_zookeeper(embedded)
            await self._finished.wait()
        log.info("shut down")
        self._complain()

    # ZooKeeper

    async def _launch_zookeeper(self, stack: AsyncExitStack) -> EmbeddedZooKeeper | None:
        if self._config.zookeeper_connect is not None:
            return None
        embedded = EmbeddedZooKeeper(
            str(zookeeper_directory(self._config)),
            port=self._config.pybroker_embedded_zookeeper_port,
            may_move=self._config.embedded_zookeeper_may_move,
        )
        stack.push_async_callback(embedded.stop)
        await embedded.launch()
        self._zookeeper_words = ["--zookeeper", embedded.connect]
        log.info("zookeeper %s (embedded)", embedded.connect)
        return embedded

    async def _await_zookeeper(self, embedded: EmbeddedZooKeeper) -> None:
        """Wait until the embedded ZooKeeper answers, or until the supervisor has to end. Raise
        StartupError if ZooKeeper does not answer in time."""
        serving = asyncio.create_task(embedded.wait_until_serving())
        finished = asyncio.create_task(self._finished.wait())
        try:
            await asyncio.wait([serving, finished], return_when=asyncio.FIRST_COMPLETED)
            if serving.done():
                serving.result()
        finally:
            await cancel_and_wait(serving, finished)

    # carrying out decisions

    def _do(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            match effect:
                case Launch(broker):
                    self._launch(broker)
                case LaunchLater(broker, pause_s):
                    log.warning("restarting broker=%d pause_s=%g", broker, pause_s)
                    self._later(broker, pause_s, partial(self._supervision.due, broker))
                case Terminate(broker):
                    log.info("stopping broker=%d", broker)
                    self._signal(broker, signal.SIGTERM)
                    self._later(broker, STOP_MAX_S, partial(self._supervision.overdue, broker))
                case Kill(broker):
                    log.error("killing a broker that did not stop broker=%d", broker)
                    self._signal(broker, signal.SIGKILL)
                case AllServe():
                    log.info("all %d brokers started", len(self._children))
                    send_ready()
                case Finish(exit_code):
                    self._exit_code = exit_code
                    self._finished.set()

    def _launch(self, broker: int) -> None:
        child = self._children[broker]
        words = [*self._words, *self._zookeeper_words]
        for name, value in child.plan.properties.items():
            words += ["--override", f"{name}={value}"]
        try:
            child.process = subprocess.Popen(
                tied_to_us(pybroker_command("start", *words)),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={**pybroker_environment(), READY_VARIABLE: child.ready.address},
                start_new_session=True,
            )
        except OSError as error:
            log.error("process not launched, trying again broker=%d error=%r", broker, error)
            self._later(broker, 0.0, partial(self._supervision.ended, broker, _NOT_LAUNCHED, 0.0))
        else:
            log.info("launched broker=%d pid=%d", broker, child.process.pid)
            watching = self._watch(broker, child.process)
            child.watch = asyncio.create_task(watching, name=f"broker-{broker}")

    async def _watch(self, broker: int, process: subprocess.Popen[bytes]) -> None:
        """Forward the output of a broker's process until the process ends, and report the end to
        `supervision.py`."""
        await self._forward(broker, process)
        exit_code = await ended(process)
        if not self._supervision.stopping:
            level = logging.ERROR if exit_code else logging.INFO  # 0: it got a signal
            log.log(level, "ended broker=%d pid=%d exit_code=%d", broker, process.pid, exit_code)
        timer = self._children[broker].timer
        if timer is not None:
            timer.cancel()
        now_s = asyncio.get_running_loop().time()
        self._do(self._supervision.ended(broker, exit_code, now_s))

    async def _forward(self, broker: int, process: subprocess.Popen[bytes]) -> None:
        """Forward a broker's output line by line, until the broker closes it."""
        reader = asyncio.StreamReader()
        assert process.stdout is not None
        await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), process.stdout
        )
        rest = b""
        while data := await reader.read(_READ_BYTES):
            *lines, rest = (rest + data).split(b"\n")
            if len(rest) > _LINE_BYTES_MAX:
                lines, rest = [*lines, rest], b""
            self._passed_on(broker, lines)
        if rest:
            self._passed_on(broker, [rest])

    def _passed_on(self, broker: int, lines: Sequence[bytes]) -> None:
        self._output.write(broker, lines)
        for line in lines:
            if line.startswith(COMPLAINT):
                text = line.removeprefix(COMPLAINT).decode(errors="backslashreplace")
                self._children[broker].complaint = text

    def _later(self, broker: int, seconds: float, event: Callable[[], list[Effect]]) -> None:
        child = self._children[broker]
        if child.timer is not None:
            child.timer.cancel()
        loop = asyncio.get_running_loop()
        child.timer = loop.call_later(seconds, lambda: self._do(event()))

    def _signal(self, broker: int, number: signal.Signals) -> None:
        process = self._children[broker].process
        if process is not None:
            process.send_signal(number)

    def _heard_ready(self, broker: int) -> None:
        if self._children[broker].ready.received_ready():
            now_s = asyncio.get_running_loop().time()
            self._do(self._supervision.served(broker, now_s))

    def _stop(self, number: signal.Signals) -> None:
        log.info("shutting down all brokers reason=%s", number.name)
        self._do(self._supervision.stop())

    async def _end_at_once(self) -> None:
        """Kill the brokers' processes that still run, and wait until they have ended."""
        for child in self._children:
            if child.timer is not None:
                child.timer.cancel()
            if child.process is not None and child.process.poll() is None:
                child.process.kill()
                await ended(child.process)
            if child.watch is not None:
                await cancel_and_wait(child.watch)

    def _complain(self) -> None:
        if self._exit_code == 0:
            return
        complaints = [
            f"broker {number}: {child.complaint}"
            for number, child in enumerate(self._children)
            if child.complaint
        ]
        raise StartupError(
            "; ".join(complaints)
            or "a broker could not start or did not stop in time; see its log lines"
        )
