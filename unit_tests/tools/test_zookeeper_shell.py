"""Tests of `zookeeper-shell`: the parsing of its lines. The integration tests compare its commands
with ZooKeeper's own shell."""

from __future__ import annotations

import socket
from types import SimpleNamespace
from typing import Any

import click
import kazoo.exceptions  # type: ignore[import-untyped]
import pytest

from pybroker.__main__ import main
from pybroker.tools._zookeeper_commands import (
    COMMANDS,
    ShellError,
    check_path,
    format_stat,
    meaning_of,
    parse,
    parse_acls,
)
from pybroker.tools.zookeeper_shell import Args, parse_args, split_words, usage

STAT = SimpleNamespace(
    czxid=4,
    ctime=1_795_244_709_042,
    mzxid=5,
    mtime=1_795_244_709_042,
    pzxid=6,
    cversion=1,
    version=2,
    aversion=0,
    ephemeralOwner=-2,
    dataLength=7,
    numChildren=0,
)


class Session:
    """A tree of nodes with the methods of kazoo that walking and deleting the tree need."""

    def __init__(self, *paths: str) -> None:
        self.paths = set(paths)

    def exists(self, path: str) -> object:
        return path if path in self.paths else None

    def get_children(self, path: str, watch: object = None) -> list[str]:
        if path not in self.paths:
            raise kazoo.exceptions.NoNodeError
        start = path.rstrip("/") + "/"
        return [
            p.removeprefix(start)
            for p in self.paths
            if p != "/" and p.startswith(start) and "/" not in p.removeprefix(start)
        ]

    def delete(self, path: str, version: int = -1) -> None:
        if any(other.startswith(path + "/") for other in self.paths):
            raise kazoo.exceptions.NotEmptyError
        self.paths.remove(path)


def perform(session: Session, *words: str) -> None:
    name, *rest = words
    COMMANDS[name].run(session, parse(name, COMMANDS[name], rest))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("ls /", ["ls", "/"]),
        ("  set /a   'b c'  ", ["set", "/a", "b c"]),
        ('create /a "x"', ["create", "/a", "x"]),
        ("set /a ''", ["set", "/a", ""]),
        ("set /a it's", ["set", "/a", "it's"]),
        ("", []),
        ("   ", []),
    ],
)
def test_a_line_is_split_into_words(line: str, words: list[str]) -> None:
    assert split_words(line) == words


@pytest.mark.parametrize(
    ("words", "args"),
    [
        (["h:1"], Args("h:1", 30_000, False, ())),
        (["-server", "h:1", "ls", "-R", "/"], Args("h:1", 30_000, False, ("ls", "-R", "/"))),
        (["h:1/c", "-timeout", "5", "-r", "quit"], Args("h:1/c", 5, True, ("quit",))),
    ],
)
def test_command_lines_are_parsed(words: list[str], args: Args) -> None:
    assert parse_args(words) == args


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ([], "is missing"),
        (["-timeout", "5"], "is missing"),
        (["h:1", "-timeout"], "number of ms"),
        (["h:1", "-timeout", "0"], "number of ms"),
        (["h:1", "-zk-tls-config-file", "f"], "the shell has no TLS"),
        (["h:1", "-x"], "No such option: -x"),
    ],
)
def test_malformed_command_lines_are_refused(words: list[str], complaint: str) -> None:
    with pytest.raises(click.UsageError, match=complaint):
        parse_args(words)


@pytest.mark.parametrize(
    ("path", "fault"),
    [
        ("", "Path length must be > 0"),
        ("a", "Path must start with / character"),
        ("/a/", "Path must not end with / character"),
        ("/a//b", 'Invalid path string "/a//b" caused by empty node name specified @3'),
        ("/a/./b", 'Invalid path string "/a/./b" caused by relative paths not allowed @3'),
        ("/a/..", 'Invalid path string "/a/.." caused by relative paths not allowed @4'),
        ("/a\x01", 'Invalid path string "/a\x01" caused by invalid character @2'),
    ],
)
def test_malformed_paths_are_refused(path: str, fault: str) -> None:
    with pytest.raises(ShellError) as caught:
        check_path(path)
    assert str(caught.value) == fault
    for good in ("/", "/a", "/a/b.c", "/..a", "/é"):
        check_path(good)


@pytest.mark.parametrize(
    ("name", "words", "message"),
    [
        ("ls", [], "ls [-s] [-w] [-R] path"),
        ("set", ["/a"], "set [-s] [-v version] path data"),
        ("ls", ["-z", "/"], "Unrecognized option: -z"),
    ],
)
def test_malformed_commands_are_refused(name: str, words: list[str], message: str) -> None:
    with pytest.raises(ShellError) as caught:
        parse(name, COMMANDS[name], words)
    assert str(caught.value) == message


def test_options_may_be_combined_and_follow_arguments() -> None:
    call = parse("ls", COMMANDS["ls"], ["/a", "-sw"])
    assert (set(call.options), call.path) == ({"s", "w"}, "/a")
    assert parse("set", COMMANDS["set"], ["-v", "7", "/a", "x"]).version == 7
    with pytest.raises(ShellError, match="-v argument must be an int value"):
        _ = parse("set", COMMANDS["set"], ["-v", "x", "/a", "x"]).version


def test_deprecated_form_of_a_watch_is_accepted(capsys: pytest.CaptureFixture[str]) -> None:
    assert "w" in parse("get", COMMANDS["get"], ["/a", "true"]).options
    assert "'get path [watch]' has been deprecated." in capsys.readouterr().err
    assert parse("delete", COMMANDS["delete"], ["/a", "3"]).version == -1


def test_stat_prints_eleven_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = format_stat(STAT).splitlines()
    assert len(lines) == 11
    assert lines[0] == "cZxid = 0x4"
    assert lines[1].startswith("ctime = Sat Nov 21 ") and lines[1].endswith(" 2026")
    assert lines[8] == "ephemeralOwner = 0xfffffffffffffffe"


def test_errors_have_the_messages_of_zookeepers_shell() -> None:
    assert meaning_of(kazoo.exceptions.NoNodeError(), "/a") == "Node does not exist: /a"
    assert meaning_of(kazoo.exceptions.BadVersionError(), "/a") == "version No is not valid : /a"
    assert meaning_of(kazoo.exceptions.ConnectionLoss(), "/a") == (
        "KeeperErrorCode = ConnectionLoss for /a"
    )


def test_permissions_are_parsed(capsys: pytest.CaptureFixture[str]) -> None:
    (acl,) = parse_acls("digest:user:hash=:rwx,bad")
    assert (acl.perms, acl.id.scheme, acl.id.id) == (3, "digest", "user:hash=")
    assert capsys.readouterr().err.splitlines() == [
        "Unknown perm type: x",
        "bad does not have the form scheme:id:perm",
    ]


def test_deleteall_deletes_nodes_in_zookeepers_order(capsys: pytest.CaptureFixture[str]) -> None:
    session = Session("/", "/a", "/a/y", "/a/x", "/a/x/2", "/a/x/2/3", "/a/x/1", "/b")
    perform(session, "ls", "-R", "/a")
    walked = ["/a", "/a/x", "/a/y", "/a/x/1", "/a/x/2", "/a/x/2/3"]
    assert capsys.readouterr().out.splitlines() == walked
    perform(session, "getAllChildrenNumber", "/a")
    assert capsys.readouterr().out == "5\n"
    perform(session, "deleteall", "/a")
    assert session.paths == {"/", "/b"}
    with pytest.raises(kazoo.exceptions.NoNodeError):
        perform(session, "ls", "-R", "/a")


@pytest.mark.parametrize("option", ["-c", "-t 5"])
def test_unsupported_node_kinds_are_refused(option: str) -> None:
    with pytest.raises(ShellError, match="this shell cannot create"):
        perform(Session("/"), "create", *option.split(), "/a")


def test_help_lists_the_commands() -> None:
    lines = usage().splitlines()
    assert "\tls [-s] [-w] [-R] path" in lines
    assert "\tquit " in lines


def test_server_that_is_not_zookeeper_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address: Any = server.getsockname()
        words = [f"127.0.0.1:{address[1]}", "-timeout", "200", "ls", "/"]
        assert main(["zookeeper-shell", *words]) == 1
    assert "accepts connections, but did not answer within" in capsys.readouterr().err


def test_unreachable_address_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["zookeeper-shell", "127.0.0.1:1", "ls", "/"]) == 1
    assert "no ZooKeeper server could be reached (127.0.0.1:1: Connection refused)" in (
        capsys.readouterr().err
    )
    assert main(["zookeeper-shell", "127.0.0.1:port", "ls", "/"]) == 1
