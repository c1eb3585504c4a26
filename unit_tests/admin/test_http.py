"""Tests of the HTTP server: the status codes of valid and invalid requests, and the limits of
connections."""

from __future__ import annotations

import asyncio
import importlib
import json
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from unittest.mock import Mock

import pytest

from pybroker.admin import http
from pybroker.admin.http import CONNECTIONS_MAX, HttpServer
from pybroker.admin.loop_watch import LoopWatch
from pybroker.admin.service import OPTION, AdminService, bind_http
from pybroker.admin.view import BrokerView, Phase
from pybroker.config.broker_config import BrokerConfig
from pybroker.errors import ConfigError, StartupError
from pybroker.testing.sockets import free_ports
from unit_tests.admin.vocabulary import Shown
from unit_tests.patience import PATIENCE_S, in_time


@dataclass(frozen=True)
class Reply:
    """A received HTTP response."""

    status: int
    head: str
    body: str


@dataclass(frozen=True)
class Site:
    """A running HTTP server and its port."""

    port: int

    async def send(self, request: bytes) -> Reply | None:
        """Return the response to the bytes, or None if the server closes the connection without a
        response."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(request)
            raw = await in_time(reader.read())
        except ConnectionResetError:
            return None
        finally:
            writer.close()
        if not raw:
            return None
        head, _, body = raw.decode().partition("\r\n\r\n")
        return Reply(int(head.split()[1]), head, body)

    async def ask(self, path: str, method: str = "GET", more: str = "") -> Reply:
        reply = await self.send(f"{method} {path} HTTP/1.1\r\nHost: x\r\n{more}\r\n".encode())
        assert reply is not None
        return reply


def listener() -> socket.socket:
    bound = socket.create_server(("127.0.0.1", 0))
    bound.setblocking(False)
    return bound


@asynccontextmanager
async def serving(view: BrokerView) -> AsyncIterator[Site]:
    watch = LoopWatch(lambda: ())
    watch.start()
    server = HttpServer(view, watch)
    bound = listener()
    await server.open(bound)
    try:
        yield Site(bound.getsockname()[1])
    finally:
        watch.stop()
        await server.close()
        await server.close()


@pytest.fixture
async def site(shown: Shown) -> AsyncIterator[Site]:
    shown.knows()
    async with serving(shown.view) as started:
        yield started


@pytest.mark.parametrize(
    ("path", "word"),
    [
        ("/", "/readyz"),
        ("/healthz", "ok"),
        ("/readyz", '"ready": true'),
        ("/metrics", "kafka_brokers 1"),
        ("/config", '"log.dirs"'),
        ("/controller/journal", '"is_controller"'),
    ],
)
async def test_each_page_responds_to_get_and_head(site: Site, path: str, word: str) -> None:
    got, head = await site.ask(path), await site.ask(path, "HEAD")
    assert (got.status, head.status) == (200, 200)
    assert word in got.body and not head.body
    assert "Connection: close" in got.head and "Cache-Control: no-store" in got.head


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        ("GET /no-such HTTP/1.1", 404),
        ("GET /../../etc/passwd HTTP/1.1", 404),
        ("POST /metrics HTTP/1.1", 405),
        ("DELETE /config HTTP/1.1", 405),
        ("PRI * HTTP/2.0", 400),
        ("nonsense", 400),
        ("GET /" + "x" * 10_000 + " HTTP/1.1", 400),
    ],
)
async def test_invalid_requests_get_an_error_status(
    site: Site, request_line: str, status: int
) -> None:
    reply = await site.send(f"{request_line}\r\nHost: x\r\n\r\n".encode())
    assert reply is not None and reply.status == status
    assert "Traceback" not in reply.body
    assert (await site.ask("/healthz")).status == 200


async def test_header_that_is_too_large_is_rejected(site: Site) -> None:
    reply = await site.ask("/healthz", more=f"X-Large: {'x' * 20_000}\r\n")
    assert reply.status == 400


async def test_malformed_requests_log_no_stack_trace(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        await site.send(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 tls\r\n\r\n")
        await site.send(b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: many\r\n\r\n")
    assert not caplog.records


async def test_connections_above_the_limit_get_503(site: Site) -> None:
    held = [await asyncio.open_connection("127.0.0.1", site.port) for _ in range(CONNECTIONS_MAX)]
    async with asyncio.timeout(PATIENCE_S):
        reply = await site.send(b"")
    assert reply is not None and reply.status == 503
    for _, writer in held:
        writer.close()
        await writer.wait_closed()
    async with asyncio.timeout(PATIENCE_S):
        while (await site.ask("/healthz")).status != 200:
            pass


async def test_a_slow_connection_is_closed(shown: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "CONNECTION_S_MAX", 0.05)
    monkeypatch.setattr(http, "_REAPER_INTERVAL_S", 0.02)
    async with serving(shown.view) as site, asyncio.timeout(PATIENCE_S):
        assert await site.send(b"GET /healthz HTTP/1.1\r\nHos") is None


async def test_readyz_returns_503_and_the_failed_condition(shown: Shown, site: Site) -> None:
    shown.view.phase = Phase.STOPPING
    reply = await site.ask("/readyz")
    assert reply.status == 503
    assert json.loads(reply.body)["conditions"]["started"] == {
        "ok": False,
        "reason": "the broker is stopping",
    }
    assert (await site.ask("/healthz")).status == 200


async def test_config_page_shows_the_source_of_each_option(shown: Shown) -> None:
    shown.view.config = BrokerConfig.parse({"num.partitions": "7"})
    async with serving(shown.view) as site:
        document = json.loads((await site.ask("/config")).body)
    found = {each["name"]: each for each in document["options"]}
    assert found["num.partitions"]["value"] == "7"
    assert found["num.partitions"]["source"] == "given at the start"
    assert found["log.dir"]["source"] == "default"


async def test_journal_page_passes_the_query_parameters(shown: Shown) -> None:
    async with serving(shown.view) as site:
        asked = await site.ask("/controller/journal?partition=orders-0&limit=7")
        usual = await site.ask("/controller/journal")
        refused = await site.ask("/controller/journal?limit=-1")
        shown.view.rooms = None
        early = await site.ask("/controller/journal")
    document = json.loads(asked.body)
    assert document["entries"] == [{"partition": "orders-0", "limit": 7}]
    assert document["is_controller"] is shown.controller.is_active
    assert json.loads(usual.body)["entries"] == [{"partition": None, "limit": 100}]
    assert (refused.status, early.status) == (400, 503)


# the listener in the life of a broker


def config(listener: str | None) -> BrokerConfig:
    return BrokerConfig.parse({} if listener is None else {OPTION: listener})


@pytest.mark.parametrize("text", ["8090", "host", "127.0.0.1:x", "127.0.0.1:70000", "a b:1"])
def test_invalid_http_address_is_rejected(text: str) -> None:
    with pytest.raises(ConfigError, match=OPTION):
        config(text)


@pytest.mark.parametrize(
    ("text", "address"),
    [("", None), ("h:1", ("h", 1)), (":0", ("", 0)), ("[::1]:80", ("::1", 80))],
)
def test_http_addresses_are_parsed(text: str, address: tuple[str, int] | None) -> None:
    assert config(text).http_address == address


def test_empty_address_disables_http() -> None:
    assert bind_http(config("")) is None


def test_configured_port_in_use_prevents_the_start() -> None:
    with listener() as taken:
        port = taken.getsockname()[1]
        with pytest.raises(StartupError) as refused:
            bind_http(config(f"127.0.0.1:{port}"))
    message = str(refused.value)
    assert message.startswith(f"{OPTION}=127.0.0.1:{port} ") and "\n" not in message


def test_default_port_in_use_logs_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with listener() as taken:
        host, port = taken.getsockname()
        monkeypatch.setattr(BrokerConfig, "http_address", (host, port))
        assert bind_http(config(None)) is None
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert OPTION in caplog.text


def test_address_of_another_machine_prevents_the_start() -> None:
    with pytest.raises(StartupError, match=OPTION):
        bind_http(config("192.0.2.1:8090"))


async def test_connection_before_the_broker_serves_gets_a_response() -> None:
    bound = bind_http(config(f"127.0.0.1:{free_ports(1)[0]}"))
    assert bound is not None
    assert bound.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY), "connections inherit it"
    site = Site(bound.getsockname()[1])
    early = asyncio.ensure_future(site.ask("/healthz"))
    service = AdminService(BrokerView(BrokerConfig()), bound)
    service.start()
    service.broker_serves()
    assert (await early).status == 200
    assert service.view.phase is Phase.RUNNING
    await service.close()
    await service.close()
    with pytest.raises(ConnectionRefusedError):
        await site.ask("/healthz")


async def test_failed_import_of_the_http_server_is_logged_and_does_not_stop_the_broker(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", fail)
    service = AdminService(BrokerView(BrokerConfig()), listener())
    service.start()
    service.broker_serves()
    (task,) = (each for each in asyncio.all_tasks() if each.get_name() == "http")
    await in_time(task)
    assert "http server failed" in caplog.text
    await service.close()


def test_any_transport_can_send_503() -> None:
    """A transport of uvloop is not a subclass of asyncio.Transport."""
    wire = Mock(spec=["write", "close"])
    http._Busy().connection_made(wire)
    assert b"503" in wire.write.call_args.args[0]
    wire.close.assert_called_once_with()
