"""The command `pybroker zookeeper-shell`, equivalent to Kafka's zookeeper-shell: it runs one
command, or commands from a terminal or a pipe."""

from __future__ import annotations

import logging
import re
import readline  # noqa: F401  # importing readline gives `input` line editing and a history
import socket
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import click
import kazoo.client  # type: ignore[import-untyped]
import kazoo.exceptions  # type: ignore[import-untyped]
import kazoo.handlers.threading  # type: ignore[import-untyped]

from pybroker import __version__
from pybroker.coordinator.zookeeper.connect_string import parse_connect_string
from pybroker.tools._cli import EXIT_FAILED, Failure, Tool
from pybroker.tools._zookeeper_commands import (
    COMMANDS,
    EXIT_UNKNOWN_COMMAND,
    Session,
    ShellError,
    announce,
    meaning_of,
    parse,
)

TIMEOUT_MS: Final = 30_000
HISTORY_SHOWN: Final = 10
OWN_COMMANDS: Final = {
    "close": "",
    "connect": "host:port",
    "help": "",
    "history": "",
    "printwatches": "on|off",
    "quit": "",
    "redo": "cmdno",
    "version": "",
}
"""Commands that the shell runs without a ZooKeeper server: name -> usage."""

_WORD: Final = re.compile(r"\s*([^\"']\S*|\"[^\"]*\"|'[^']*')\s*")
_TRY_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Args:
    """The parsed command line. An empty `command` means that the shell reads commands from standard
    input."""

    server: str
    timeout_ms: int
    read_only: bool
    command: tuple[str, ...]


@click.command(
    "zookeeper-shell",
    cls=Tool,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="HOST:PORT[/CHROOT] [COMMAND]")
def command(words: tuple[str, ...]) -> int:
    """Read and change the nodes of a ZooKeeper ensemble.

    With COMMAND (ls, get, stat, set, create, delete, deleteall, sync, getAcl, setAcl, ...) the
    shell runs this command and ends. Without COMMAND it reads commands from the terminal or a pipe;
    `help` lists them.

    -timeout MS (default 30000) and -r (read only) may follow HOST:PORT.

    \b
    Example: pybroker zookeeper-shell 127.0.0.1:2181 ls /brokers/ids
    """
    args = parse_args(words)
    click.echo(f"Connecting to {args.server}")
    shell = Shell(args)
    try:
        if args.command:
            return shell.perform(list(args.command))
        return shell.run_standard_input()
    finally:
        shell.close()


def parse_args(words: Sequence[str]) -> Args:
    """Parse the command line. Raises click.UsageError."""
    rest = list(words)
    if rest[:1] == ["-server"]:
        del rest[0]
    if not rest or rest[0].startswith("-"):
        raise click.UsageError("the address of ZooKeeper is missing: give HOST:PORT[/CHROOT]")
    server, timeout_ms, read_only = rest.pop(0), TIMEOUT_MS, False
    while rest and rest[0].startswith("-"):
        option = rest.pop(0)
        if option == "-r":
            read_only = True
        elif option == "-timeout" and rest and rest[0].isdecimal() and int(rest[0]) > 0:
            timeout_ms = int(rest.pop(0))
        elif option == "-timeout":
            raise click.UsageError("-timeout needs a number of ms above 0")
        elif option == "-zk-tls-config-file":
            raise click.UsageError(
                "-zk-tls-config-file is not supported: the shell has no TLS; leave it out"
            )
        else:
            raise click.UsageError(f"No such option: {option}")
    return Args(server, timeout_ms, read_only, tuple(rest))


class TimedSession:
    """A session with kazoo's methods. Each call fails after `limit_s` seconds. Without this limit,
    a call of kazoo would wait forever after a loss of the connection."""

    def __init__(self, client: Session, limit_s: float) -> None:
        self.client = client
        self._limit_s = limit_s

    def __getattr__(self, name: str) -> Callable[..., Any]:
        begin = getattr(self.client, f"{name}_async")
        return lambda *given, **named: begin(*given, **named).get(timeout=self._limit_s)


class Shell:
    """The session and the command history of the shell. The shell owns the session's threads;
    `close()` ends them."""

    def __init__(self, args: Args) -> None:
        self._args = args
        self._server = args.server
        self._session: TimedSession | None = None
        self._history: list[str] = []
        self._print_watches = True
        self._closed = False

    def run_standard_input(self) -> int:
        """Run the commands from standard input. Stop at the end of the input, or at `quit`. Return
        the exit code of the last command."""
        on_terminal = sys.stdin.isatty()
        click.echo("Welcome to ZooKeeper!")
        click.echo(f"JLine support is {'enabled' if on_terminal else 'disabled'}")
        self._connect()
        code = 0
        for line in self._lines(on_terminal):
            words = split_words(line)
            if not words:
                continue
            self._history.append(line)
            if words[0] == "quit":
                break
            code = self.perform(words)
        return code

    def perform(self, words: list[str]) -> int:
        """Run one command and return the exit code. A failure is printed on standard error."""
        path = words[-1]
        try:
            name = words[0]
            if name in COMMANDS:
                call = parse(name, COMMANDS[name], words[1:], self.announce)
                path = call.words[0] if call.words else ""
                if self._session is None and not self._closed:
                    self._connect()
                if self._session is None:
                    click.echo("Not connected")
                    return 0
                COMMANDS[name].run(self._session, call)
                return 0
            return self._own(name, words[1:])
        except ShellError as error:
            click.echo(str(error), err=True)
            return error.code
        except kazoo.exceptions.KazooException as error:
            click.echo(meaning_of(error, path), err=True)
            return EXIT_FAILED
        except kazoo.handlers.threading.KazooTimeoutError:
            limit_s = self._args.timeout_ms / 1_000
            click.echo(
                f"ZooKeeper at {self._server} did not answer the request for {path}"
                f" within {limit_s:g} s",
                err=True,
            )
            return EXIT_FAILED

    def _own(self, name: str, words: list[str]) -> int:
        if name == "quit":
            return 0
        if name == "history":
            last = len(self._history) - 1
            for number in range(max(0, last - HISTORY_SHOWN), last + 1):
                click.echo(f"{number} - {self._history[number]}")
        elif name == "redo":
            return self._redo(words)
        elif name == "printwatches":
            if words:
                self._print_watches = words[0] == "on"
            else:
                click.echo(f"printwatches is {'on' if self._print_watches else 'off'}")
        elif name == "version":
            click.echo(f"ZooKeeper CLI version: pybroker {__version__}")
        elif name == "help":
            click.echo(usage())
        elif name == "close":
            self.close()
        elif name == "connect":
            self.close()
            self._server = words[0] if words else self._server
            self._connect()
        else:
            click.echo(usage(), err=True)
            raise ShellError(f"Command not found: {name}", EXIT_UNKNOWN_COMMAND)
        return 0

    def _redo(self, words: list[str]) -> int:
        number = int(words[0]) if words and words[0].isdecimal() else -1
        if not 0 <= number < len(self._history) - 1:
            raise ShellError("Command index out of range")
        again = split_words(self._history[number])
        if again[0] == "redo":
            raise ShellError("No redoing redos")
        self._history[-1] = self._history[number]
        self.perform(again)
        return 0  # 0 even if the command failed, as in ZooKeeper's shell

    def _lines(self, on_terminal: bool) -> Iterator[str]:
        if not on_terminal:
            yield from (line.rstrip("\n") for line in sys.stdin)
            return
        while True:
            state = "CLOSED" if self._session is None else "CONNECTED"
            try:
                yield input(f"[zk: {self._server}({state}) {len(self._history)}] ")
            except EOFError:
                click.echo()
                return

    def _connect(self) -> None:
        """Open a session. Raises Failure if no server answers within the timeout."""
        parsed = parse_connect_string(self._server)
        self._closed = False
        limit_s = self._args.timeout_ms / 1_000
        self._check_reachable(parsed.hosts, limit_s)
        session = kazoo.client.KazooClient(
            self._server, timeout=limit_s, read_only=self._args.read_only, logger=_quiet()
        )
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # kazoo warns if the chroot is missing
                session.start(timeout=limit_s)
            timed = TimedSession(session, limit_s)
            if parsed.chroot and timed.exists("/") is None:
                click.echo(
                    f"ZooKeeper at {parsed.servers} has no node {parsed.chroot}; check the chroot"
                    " at the end of the address",
                    err=True,
                )
        except kazoo.handlers.threading.KazooTimeoutError:
            session.close()
            raise Failure(
                f"the process at {self._server} accepts connections, but did not answer within"
                f" {limit_s:g} s: check that it is a ZooKeeper server"
            ) from None
        self._session = timed
        self.announce("None", "null")

    def _check_reachable(self, hosts: Sequence[tuple[str, int]], limit_s: float) -> None:
        """Raise Failure if no server accepts a connection within `limit_s` seconds."""
        reasons = []
        for address in hosts:
            try:
                socket.create_connection(address, timeout=min(limit_s, _TRY_S)).close()
                return
            except OSError as error:
                reasons.append(f"{address[0]}:{address[1]}: {error.strerror or error}")
        raise Failure(
            f"no ZooKeeper server could be reached ({'; '.join(reasons)}); check the address"
            " and that the server runs"
        )

    def announce(self, kind: str, path: str) -> None:
        """Print a watch event, unless printwatches is off."""
        if self._print_watches:
            announce(kind, path)

    def close(self) -> None:
        """Close the session, if one is open."""
        self._closed = True
        if self._session is not None:
            client, self._session = self._session.client, None
            client.stop()
            client.close()


def split_words(line: str) -> list[str]:
    """Return the words of a command line. Spaces inside quotes do not separate words."""
    found = _WORD.findall(line.strip())
    return [
        word[1:-1] if len(word) > 1 and word[0] == word[-1] and word[0] in "\"'" else word
        for word in found
    ]


def usage() -> str:
    """Return the list of all commands, as Kafka's shell prints it."""
    rows = {name: row.usage for name, row in COMMANDS.items()} | OWN_COMMANDS
    lines = [f"\t{name} {rows[name]}" for name in sorted(rows)]
    return "\n".join(["ZooKeeper -server host:port cmd args", *lines])


def _quiet() -> logging.Logger:
    """Return a logger that drops kazoo's messages."""
    logger = logging.getLogger(f"{__name__}.kazoo")
    if not logging.getLogger().isEnabledFor(logging.DEBUG):
        logger.setLevel(logging.CRITICAL)
    return logger
