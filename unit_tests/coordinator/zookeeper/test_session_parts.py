"""Tests of the parts of a session: the connect string, the stored keys, the size of requests."""

from __future__ import annotations

import asyncio
import logging
import stat
from pathlib import Path

import pytest

from pybroker.clock import ManualClock
from pybroker.coordinator.zookeeper.connect_string import ConnectString, parse_connect_string
from pybroker.coordinator.zookeeper.handshake import SessionKey
from pybroker.coordinator.zookeeper.limits import REQUEST_BYTES_MAX, check_request_size
from pybroker.coordinator.zookeeper.link import Answer, Link, LinkState
from pybroker.coordinator.zookeeper.session import KazooCoord
from pybroker.coordinator.zookeeper.session_store import FileSessionStore
from pybroker.errors import RequestTooLarge, StartupError
from pybroker.ports import CreateOp, DeleteOp, SetOp
from unit_tests.idle_loop import idle

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
def test_connect_string_is_parsed(
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
    assert "session file ignored" in caplog.text


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


async def test_the_answer_of_an_earlier_connection_does_not_confirm_the_watches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A busy event loop may handle the answer together with the next loss and reconnect of the
    connection. If the connection is then lost again, all changes since the first loss must still
    fire watches."""
    asked: list[tuple[int, Answer]] = []

    def rewatch(link: Link, zxid: int, *paths: list[str]) -> Answer:
        asked.append((zxid, asyncio.get_running_loop().create_future()))
        return asked[-1][1]

    monkeypatch.setattr(Link, "start", lambda link: None)
    monkeypatch.setattr(Link, "session_key", lambda link: KEYS[0])
    monkeypatch.setattr(Link, "rewatch", rewatch)
    coord = KazooCoord("nowhere:2181", clock=ManualClock())
    coord._open_link()
    link = coord._link
    assert link is not None
    coord._state_changed(link, LinkState.CONNECTED, 0)
    for zxid in (5, 7):
        coord._state_changed(link, LinkState.SUSPENDED, zxid)
        coord._state_changed(link, LinkState.CONNECTED, zxid)
        if zxid == 5:
            asked[0][1].set_result(None)
    await idle()
    coord._state_changed(link, LinkState.SUSPENDED, 9)
    coord._state_changed(link, LinkState.CONNECTED, 9)
    assert [zxid for zxid, _ in asked] == [5, 5, 5]
    asked[2][1].set_result(None)
    await idle()
    coord._state_changed(link, LinkState.SUSPENDED, 11)
    coord._state_changed(link, LinkState.CONNECTED, 11)
    assert asked[3][0] == 11
    await coord.close()
