"""The small parts of a session: the connect string, the kept keys, the size of requests."""

from __future__ import annotations

import logging
import stat
from pathlib import Path

import pytest

from pybroker.coordinator.zookeeper.connect_string import ConnectString, parse_connect_string
from pybroker.coordinator.zookeeper.handshake import SessionKey
from pybroker.coordinator.zookeeper.limits import REQUEST_BYTES_MAX, check_request_size
from pybroker.coordinator.zookeeper.session_store import FileSessionStore
from pybroker.errors import RequestTooLarge, StartupError
from pybroker.ports import CreateOp, DeleteOp, SetOp

KEYS = [SessionKey(-5, bytes(range(16))), SessionKey(2**62, bytes(16))]


@pytest.mark.parametrize(
    ("text", "hosts", "chroot"),
    [
        ("h1", (("h1", 2181),), ""),
        ("h1:1,h2:2", (("h1", 1), ("h2", 2)), ""),
        ("h1:1, h2:2/kafka/one/", (("h1", 1), ("h2", 2)), "/kafka/one"),
        ("[::1]:2182/", (("::1", 2182),), ""),
        ("[::1]", (("::1", 2181),), ""),
    ],
)
def test_connect_string_is_taken_apart(
    text: str, hosts: tuple[tuple[str, int], ...], chroot: str
) -> None:
    assert parse_connect_string(text) == ConnectString(hosts, chroot)


@pytest.mark.parametrize(
    ("text", "culprit"),
    [
        ("", "''"),
        ("h1:1,", "''"),
        (":2181", "':2181'"),
        ("h1:x", "'h1:x'"),
        ("h1:70000", "'h1:70000'"),
        ("h1:1:2", "'h1:1:2'"),
        ("h 1:1", "'h 1:1'"),
        ("[::1:2181", r"'\[::1:2181'"),
        ("h1:1/a//b", "'/a//b'"),
        ("h1:1/../b", r"'/\.\./b'"),
    ],
)
def test_wrong_connect_string_names_the_wrong_part(text: str, culprit: str) -> None:
    with pytest.raises(StartupError, match=culprit):
        parse_connect_string(text)


def test_servers_are_written_as_they_are_read() -> None:
    connect = parse_connect_string("h1:1,[::1]:2/x")
    assert parse_connect_string(connect.servers).hosts == connect.hosts


def test_keys_are_kept_for_their_owner_only(tmp_path: Path) -> None:
    store = FileSessionStore(str(tmp_path))
    assert store.load() == []
    store.save(KEYS)
    store.save(KEYS)
    assert FileSessionStore(str(tmp_path)).load() == KEYS
    (file,) = tmp_path.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "garbage",
    [
        b"",
        b"\xff\x00",
        b"[]",
        b'{"sessions":5}',
        b'{"sessions":[{"id":"x","password":""}]}',
        b'{"sessions":[{"id":1,"password":"zz"}]}',
    ],
)
def test_garbled_keys_are_ignored_with_a_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, garbage: bytes
) -> None:
    (tmp_path / "zookeeper.session").write_bytes(garbage)
    with caplog.at_level(logging.WARNING):
        assert FileSessionStore(str(tmp_path)).load() == []
    assert "is ignored" in caplog.text


def test_keys_of_impossible_size_are_dropped(tmp_path: Path) -> None:
    items = f'{{"id":{2**70},"password":"{"00" * 16}"}},{{"id":1,"password":"00"}}'
    (tmp_path / "zookeeper.session").write_text(f'{{"sessions":[{items}]}}')
    assert FileSessionStore(str(tmp_path)).load() == []


def test_only_the_latest_keys_are_kept(tmp_path: Path) -> None:
    store = FileSessionStore(str(tmp_path))
    store.save([SessionKey(number, bytes(16)) for number in range(20)])
    assert [key.id for key in store.load()] == list(range(12, 20))


def test_requests_are_measured_as_a_whole() -> None:
    half = bytes(REQUEST_BYTES_MAX // 2)
    check_request_size([SetOp("/a", half), DeleteOp("/b")])
    with pytest.raises(RequestTooLarge, match="2 operation"):
        check_request_size([SetOp("/a", half), CreateOp("/b", half)])
