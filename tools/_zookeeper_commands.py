"""The commands of the ZooKeeper shell, with the arguments, effects and output of ZooKeeper 3.8. A
session is any object with kazoo's methods."""

from __future__ import annotations

import getopt
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import click
import kazoo.exceptions  # type: ignore[import-untyped]
import kazoo.security  # type: ignore[import-untyped]

from pybroker.errors import PybrokerError

Session = Any
"""A kazoo client. The type is Any, because kazoo has no type annotations."""

EXIT_BAD: Final = 1
EXIT_UNKNOWN_COMMAND: Final = 127
PERMISSIONS: Final[Mapping[str, int]] = {
    "c": kazoo.security.Permissions.CREATE,
    "d": kazoo.security.Permissions.DELETE,
    "r": kazoo.security.Permissions.READ,
    "w": kazoo.security.Permissions.WRITE,
    "a": kazoo.security.Permissions.ADMIN,
}
"""The permissions of an ACL, in the order in which the shell prints them."""

MEANINGS: Final[Mapping[type[Exception], str]] = {
    kazoo.exceptions.NoNodeError: "Node does not exist: {}",
    kazoo.exceptions.NodeExistsError: "Node already exists: {}",
    kazoo.exceptions.NotEmptyError: "Node not empty: {}",
    kazoo.exceptions.NoChildrenForEphemeralsError: "Ephemerals cannot have children: {}",
    kazoo.exceptions.NotReadOnlyCallError: "Not a read-only call: {}",
    kazoo.exceptions.InvalidACLError: "Acl is not valid : {}",
    kazoo.exceptions.NoAuthError: "Insufficient permission : {}",
    kazoo.exceptions.BadArgumentsError: "Arguments are not valid : {}",
    kazoo.exceptions.BadVersionError: "version No is not valid : {}",
}
_NOT_IN_PATHS: Final = re.compile("[\\x00-\\x1f\\x7f-\\x9f\\ud800-\\uf8ff\\ufff0-\U0010ffff]")
_WATCH_NAMES: Final[Mapping[str, str]] = {
    "CREATED": "NodeCreated",
    "DELETED": "NodeDeleted",
    "CHANGED": "NodeDataChanged",
    "CHILD": "NodeChildrenChanged",
}


class ShellError(PybrokerError):
    """A command of the shell failed. The message is that of ZooKeeper's shell, and `code` is the
    exit code."""

    def __init__(self, message: str, code: int = EXIT_BAD) -> None:
        super().__init__(message)
        self.code = code


def announce(kind: str, path: str) -> None:
    """Print a watch event as ZooKeeper's shell prints it."""
    words = f"WatchedEvent state:SyncConnected type:{kind} path:{path}"
    click.echo(f"\nWATCHER::\n\n{words}")


@dataclass(frozen=True, slots=True)
class Call:
    """A parsed command line. `words` excludes the command's name and options. `announce` prints the
    kind and the path of a watch event."""

    options: Mapping[str, str]
    words: Sequence[str]
    announce: Callable[[str, str], None] = announce

    @property
    def path(self) -> str:
        """The path of the node: the first word. Raises ShellError if the path is not valid."""
        check_path(self.words[0])
        return self.words[0]

    @property
    def version(self) -> int:
        """The expected version of the node: the value of -v, or else -1, which matches any version.
        Raises ShellError if the value is not an integer."""
        return _number(self.options.get("v", "-1"), "-v")


@dataclass(frozen=True, slots=True)
class Command:
    """A command of the shell. `options` has option letters in getopt's form. `least` and `most`
    limit the number of arguments after the options (None: no limit). A call with more than `most`
    arguments has ZooKeeper's deprecated form: the shell prints a notice and, unless the command is
    `delete`, sets a watch."""

    usage: str
    run: Callable[[Session, Call], None]
    options: str = ""
    least: int = 1
    most: int | None = None


def parse(
    name: str,
    command: Command,
    words: Sequence[str],
    announce: Callable[[str, str], None] = announce,
) -> Call:
    """Parse the words after a command's name. Raises ShellError with the command's usage if words
    are missing."""
    try:
        found, rest = getopt.gnu_getopt(list(words), command.options)
    except getopt.GetoptError as error:
        raise ShellError(f"Unrecognized option: -{error.opt}") from None
    options = {flag.lstrip("-"): value for flag, value in found}
    if len(rest) < command.least:
        raise ShellError(f"{name} {command.usage}")
    if command.most is not None and len(rest) > command.most:
        kind = "version" if name == "delete" else "watch"
        click.echo(
            f"'{name} path [{kind}]' has been deprecated. Please use '{name} {command.usage}'"
            " instead.",
            err=True,
        )
        if kind == "watch":
            options["w"] = ""
    return Call(options, rest, announce)


def check_path(path: str) -> None:
    """Raise ShellError, with ZooKeeper's message, if a path is not well-formed."""
    if not path:
        raise ShellError("Path length must be > 0")
    if not path.startswith("/"):
        raise ShellError("Path must start with / character")
    if path == "/":
        return
    if path.endswith("/"):
        raise ShellError("Path must not end with / character")
    fault = ""
    position = 0
    for part in path[1:].split("/"):
        position += 1
        if part == "":
            fault = f"empty node name specified @{position}"
        elif part in (".", ".."):
            fault = f"relative paths not allowed @{position + len(part) - 1}"
        elif bad := _NOT_IN_PATHS.search(part):
            fault = f"invalid character @{position + bad.start()}"
        if fault:
            raise ShellError(f'Invalid path string "{path}" caused by {fault}')
        position += len(part)


def meaning_of(error: Exception, path: str) -> str:
    """Return the message of ZooKeeper's shell for an exception of kazoo."""
    text = MEANINGS.get(type(error))
    if text is not None:
        return text.format(path)
    name = type(error).__name__.removesuffix("Error").removesuffix("Exception")
    return f"KeeperErrorCode = {name} for {path}"


def format_stat(stat: Any) -> str:
    """Return the metadata of a ZooKeeper node as eleven lines."""
    owner = stat.ephemeralOwner & (1 << 64) - 1
    return "\n".join(
        [
            f"cZxid = {stat.czxid:#x}",
            f"ctime = {_date(stat.ctime)}",
            f"mZxid = {stat.mzxid:#x}",
            f"mtime = {_date(stat.mtime)}",
            f"pZxid = {stat.pzxid:#x}",
            f"cversion = {stat.cversion}",
            f"dataVersion = {stat.version}",
            f"aclVersion = {stat.aversion}",
            f"ephemeralOwner = {owner:#x}",
            f"dataLength = {stat.dataLength}",
            f"numChildren = {stat.numChildren}",
        ]
    )


def parse_acls(text: str) -> list[Any]:
    """Return the ACLs in a text `scheme:id:perms,...`. A malformed ACL is reported on standard
    error and skipped."""
    found = []
    for word in text.split(","):
        scheme, first, rest = word.partition(":")
        identity, last, letters = rest.rpartition(":")
        if not (first and last):
            click.echo(f"{word} does not have the form scheme:id:perm", err=True)
            continue
        for letter in letters:
            if letter not in PERMISSIONS:
                click.echo(f"Unknown perm type: {letter}", err=True)
        bits = sum(PERMISSIONS[letter] for letter in set(letters) & set(PERMISSIONS))
        found.append(kazoo.security.ACL(bits, kazoo.security.Id(scheme, identity)))
    return found


def _date(milliseconds: int) -> str:
    """Return a time in the format of Java's Date."""
    return time.strftime("%a %b %d %H:%M:%S %Z %Y", time.localtime(milliseconds // 1000))


def _number(text: str, what: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ShellError(f"{what} argument must be an int value") from None


def _watcher(call: Call) -> Callable[[Any], None] | None:
    if "w" not in call.options:
        return None
    return lambda event: call.announce(_WATCH_NAMES.get(event.type, event.type), event.path)


def _subtree(
    session: Session, path: str, watch: Callable[[Any], None] | None = None
) -> Iterator[str]:
    """Yield a node and its descendants in ZooKeeper's order: all children of the node by name, then
    all descendants of the first child, and so on. Skip a descendant that is deleted meanwhile.
    `watch`: a child watch for every node."""
    yield path
    waiting = [path]
    while waiting:
        node = waiting.pop()
        try:
            names = sorted(session.get_children(node, watch=watch))
        except kazoo.exceptions.NoNodeError:
            if node == path:
                raise
            continue
        children = [f"{node.rstrip('/')}/{name}" for name in names]
        yield from children
        waiting += reversed(children)


# Commands


def ls(session: Session, call: Call) -> None:
    if "R" in call.options:
        if session.exists(call.path) is None:
            raise kazoo.exceptions.NoNodeError
        for node in _subtree(session, call.path, _watcher(call)):
            click.echo(node)
        return
    children, stat = session.get_children(call.path, watch=_watcher(call), include_data=True)
    click.echo(f"[{', '.join(sorted(children))}]")
    if "s" in call.options:
        click.echo(format_stat(stat))


def get(session: Session, call: Call) -> None:
    content, stat = session.get(call.path, watch=_watcher(call))
    click.echo("null" if content is None else content.decode(errors="replace"))
    if "s" in call.options:
        click.echo(format_stat(stat))


def stat(session: Session, call: Call) -> None:
    found = session.exists(call.path, watch=_watcher(call))
    if found is None:
        raise kazoo.exceptions.NoNodeError
    click.echo(format_stat(found))


def set_(session: Session, call: Call) -> None:
    found = session.set(call.path, call.words[1].encode(), version=call.version)
    if "s" in call.options:
        click.echo(format_stat(found))


def create(session: Session, call: Call) -> None:
    for option, kind in (("c", "container nodes"), ("t", "nodes with a time to live")):
        if option in call.options:
            raise ShellError(f"-{option}: this shell cannot create {kind}")
    content = call.words[1].encode() if len(call.words) > 1 else None
    made = session.create(
        call.path,
        content,
        acl=parse_acls(call.words[2]) if len(call.words) > 2 else None,
        ephemeral="e" in call.options,
        sequence="s" in call.options,
    )
    click.echo(f"Created {made}", err=True)


def delete(session: Session, call: Call) -> None:
    session.delete(call.path, version=call.version)


def delete_all(session: Session, call: Call) -> None:
    _number(call.options.get("b", "1000"), "-b")
    for node in reversed(list(_subtree(session, call.path))):
        try:
            session.delete(node)
        except kazoo.exceptions.NoNodeError:
            continue


def sync(session: Session, call: Call) -> None:
    session.sync(call.path)
    click.echo("Sync is OK")


def add_auth(session: Session, call: Call) -> None:
    session.add_auth(call.words[0], call.words[1] if len(call.words) > 1 else "")


def get_acl(session: Session, call: Call) -> None:
    acls, found = session.get_acls(call.path)
    for acl in acls:
        letters = "".join(letter for letter, bit in PERMISSIONS.items() if acl.perms & bit)
        click.echo(f"'{acl.id.scheme},'{acl.id.id}\n: {letters}")
    if "s" in call.options:
        click.echo(format_stat(found))


def set_acl(session: Session, call: Call) -> None:
    acls = parse_acls(call.words[1])
    if "R" in call.options:
        for node in _subtree(session, call.path):
            session.set_acls(node, acls, version=call.version)
        return
    found = session.set_acls(call.path, acls, version=call.version)
    if "s" in call.options:
        click.echo(format_stat(found))


def count_all(session: Session, call: Call) -> None:
    click.echo(sum(1 for _ in _subtree(session, call.path)) - 1)


def config(session: Session, call: Call) -> None:
    content, found = session.get("/zookeeper/config", watch=_watcher(call))
    click.echo((content or b"").decode(errors="replace"))
    if "s" in call.options:
        click.echo(format_stat(found))


COMMANDS: Final[Mapping[str, Command]] = {
    "addauth": Command("scheme auth", add_auth),
    "config": Command("[-w] [-s]", config, "ws", least=0),
    "create": Command("[-s] [-e] path [data] [acl]", create, "sect:"),
    "delete": Command("[-v version] path", delete, "v:", most=1),
    "deleteall": Command("path [-b batch size]", delete_all, "b:"),
    "get": Command("[-s] [-w] path", get, "sw", most=1),
    "getAcl": Command("[-s] path", get_acl, "s"),
    "getAllChildrenNumber": Command("path", count_all),
    "ls": Command("[-s] [-w] [-R] path", ls, "swR", most=1),
    "set": Command("[-s] [-v version] path data", set_, "sv:", least=2),
    "setAcl": Command("[-s] [-v version] [-R] path acl", set_acl, "sv:R", least=2),
    "stat": Command("[-w] path", stat, "w", most=1),
    "sync": Command("path", sync),
}
"""The commands that are sent to a ZooKeeper server, by name."""
