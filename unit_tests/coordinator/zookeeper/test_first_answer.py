"""Tests of the wait for ZooKeeper's first answer: when it ends, its error messages and its log
lines."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Iterator

import pytest

from pybroker.coordinator.zookeeper import first_answer
from pybroker.coordinator.zookeeper.connect_string import parse_connect_string
from pybroker.coordinator.zookeeper.first_answer import TOOL_REFUSALS_MAX, FirstAnswer
from pybroker.coordinator.zookeeper.handshake import Granted, NoServer, SessionKey, open_and_close
from pybroker.errors import StartupError
from unit_tests.patience import PATIENCE_S

GRANTED = Granted(SessionKey(1, bytes(16)), 4000)
REFUSED = NoServer(["connection refused by zk:2181"], refused=True)
SILENT = NoServer(["no answer from zk:2181 within 2 s"], refused=False)
SENTENCE = (
    "ZooKeeper cannot be reached: connection refused by zk:2181; check the address and that the"
    " server runs"
)


class Servers:
    """Servers that answer each attempt with the next of `answers`, and repeat the last answer."""

    def __init__(self, *answers: Granted | NoServer) -> None:
        self._answers = list(answers)
        self.attempts = 0

    async def __call__(self, *_: object, **__: object) -> Granted:
        answer = self._answers[min(self.attempts, len(self._answers) - 1)]
        self.attempts += 1
        if isinstance(answer, NoServer):
            raise answer
        return answer


@pytest.fixture
def closed_port() -> Iterator[int]:
    """Return a port that refuses connections."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


def waiting(
    monkeypatch: pytest.MonkeyPatch, refusals_max: int | None, *answers: Granted | NoServer
) -> tuple[Servers, FirstAnswer]:
    servers = Servers(*answers)
    monkeypatch.setattr(first_answer, "open_and_close", servers)
    monkeypatch.setattr(first_answer, "_RETRY_S", 0.0)
    return servers, FirstAnswer(parse_connect_string("zk:2181"), refusals_max=refusals_max)


async def test_a_tool_ends_its_wait_after_a_few_refusals(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    servers, first = waiting(monkeypatch, TOOL_REFUSALS_MAX, REFUSED)
    with pytest.raises(StartupError) as failed:
        await first.granted_ms(4000, 30.0)
    assert str(failed.value) == SENTENCE
    assert servers.attempts == TOOL_REFUSALS_MAX
    assert caplog.messages == []


async def test_a_tool_uses_a_server_that_returns_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [REFUSED] * (TOOL_REFUSALS_MAX - 1)
    _, first = waiting(monkeypatch, TOOL_REFUSALS_MAX, *answers, SILENT, *answers, GRANTED)
    assert await first.granted_ms(4000, 30.0) == 4000


async def test_a_broker_logs_at_once_why_it_waits(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    servers, first = waiting(monkeypatch, None, *[REFUSED] * 5, SILENT, SILENT, GRANTED)
    caplog.set_level(logging.INFO)
    assert await first.granted_ms(4000, 18.0) == 4000
    assert servers.attempts == 8
    assert caplog.messages == [
        "zookeeper not reached timeout_s=18 reason=connection refused by zk:2181",
        "zookeeper not reached timeout_s=18 reason=no answer from zk:2181 within 2 s",
    ]
    assert first.complaint(18.0) == (
        "ZooKeeper at zk:2181 does not answer within 18 s: no answer from zk:2181 within 2 s; check"
        " that the server runs, and the address in zookeeper.connect (tools: --zookeeper)"
    )


async def test_the_reason_of_each_server_is_given(closed_port: int) -> None:
    hosts = [("127.0.0.1", closed_port), ("localhost", closed_port), ("no-such.invalid", 1)]
    with pytest.raises(NoServer) as failed:
        await open_and_close(hosts, timeout_ms=1000, timeout_s=PATIENCE_S)
    assert failed.value.refused
    assert str(failed.value) == (
        f"connection refused by 127.0.0.1:{closed_port};"
        f" connection refused by localhost:{closed_port}; no address is known for no-such.invalid"
    )


async def test_an_answer_of_another_service_does_not_count_as_a_refusal(closed_port: int) -> None:
    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.close()

    other = await asyncio.start_server(respond, "127.0.0.1", 0)
    port = other.sockets[0].getsockname()[1]
    hosts = [("127.0.0.1", closed_port), ("127.0.0.1", port)]
    with pytest.raises(NoServer, match=f"127.0.0.1:{port} does not answer with Zoo") as failed:
        await open_and_close(hosts, timeout_ms=1000, timeout_s=PATIENCE_S)
    assert not failed.value.refused
    other.close()
