"""The HTTP server of a broker: its pages, and the limits of connections. Only this module imports
aiohttp, which is slow to import."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import Iterator
from typing import Final, cast

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from pybroker.admin.config_page import config_page
from pybroker.admin.exposition import MetricsPage, meters
from pybroker.admin.loop_watch import LoopWatch
from pybroker.admin.readiness import conditions
from pybroker.admin.view import BrokerView
from pybroker.metrics import TimeMeter
from pybroker.metrics_text import CONTENT_TYPE

log = logging.getLogger(__name__)

CONNECTIONS_MAX: Final = 32
"""The maximum number of connections. The server answers an additional connection with status
503."""
CONNECTION_S_MAX: Final = 20.0
"""The maximum time (s) from the accepted connection to the end of the response. After this time the
server closes the connection."""
LINE_BYTES_MAX: Final = 4_096
"""The maximum size of the request line. All headers together may have twice this size."""
JOURNAL_LIMIT: Final = 100
"""The number of controller decisions that the page `/controller/journal` shows by default."""
_BACKLOG: Final = 64
_REAPER_INTERVAL_S: Final = 1.0
_BUSY: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain\r\nContent-Length: 21\r\n"
    b"Connection: close\r\n\r\ntoo many connections\n"
)
_INDEX: Final = """pybroker

/healthz  200 if the process runs and its event loop answers
/readyz   200 if the broker is started and all its replicas are in sync, otherwise 503 with reasons
/metrics  all metrics in Prometheus' text format
/config   the current options with their sources
/controller/journal  the decisions of this broker as controller; ?partition=topic-0&limit=100
"""


class HttpServer:
    """The HTTP server of a broker. It answers requests from `open` to `close`."""

    def __init__(self, view: BrokerView, watch: LoopWatch) -> None:
        self._view = view
        self._metrics = MetricsPage(view, watch)
        self._one_page = asyncio.Lock()
        self._server: asyncio.Server | None = None
        self._reaper: asyncio.TimerHandle | None = None
        self._seen: dict[web.RequestHandler, float] = {}
        app = web.Application(client_max_size=1024)
        app.add_routes(
            [
                web.get("/", self._index),
                web.get("/healthz", self._healthz),
                web.get("/readyz", self._readyz),
                web.get("/metrics", self._metrics_page),
                web.get("/config", self._config),
                web.get("/controller/journal", self._journal),
            ]
        )
        app.on_response_prepare.append(_set_closing_headers)
        self._runner = web.AppRunner(
            app,
            handle_signals=False,
            access_log=None,
            logger=_request_log(),
            max_line_size=LINE_BYTES_MAX,
            max_field_size=2 * LINE_BYTES_MAX,
            lingering_time=0,
            shutdown_timeout=1.0,
        )

    async def open(self, listening: socket.socket) -> None:
        """Accept connections on `listening`, a bound socket."""
        await self._runner.setup()
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._connection, sock=listening, backlog=_BACKLOG)
        self._reap()

    async def close(self) -> None:
        """Close the server and its connections. Idempotent."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
        if self._reaper is not None:
            self._reaper.cancel()
        await self._runner.cleanup()

    def _connection(self) -> asyncio.Protocol:
        """Return the protocol of a new connection. If CONNECTIONS_MAX connections are open already,
        the protocol answers 503."""
        factory = self._runner.server
        if factory is None or len(factory.connections) >= CONNECTIONS_MAX:
            return _Busy()
        return factory()

    def _reap(self) -> None:
        """Close each connection that has been open longer than CONNECTION_S_MAX, and schedule the
        next call."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        factory = self._runner.server
        open_now = [] if factory is None else factory.connections
        self._seen = {protocol: self._seen.get(protocol, now) for protocol in open_now}
        for protocol, since in self._seen.items():
            if now - since > CONNECTION_S_MAX and protocol.transport is not None:
                protocol.transport.abort()
        self._reaper = loop.call_later(_REAPER_INTERVAL_S, self._reap)

    # pages

    async def _index(self, _: web.Request) -> web.Response:
        return web.Response(text=_INDEX)

    async def _healthz(self, _: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readyz(self, _: web.Request) -> web.Response:
        found = await conditions(self._view)
        ready = all(each.holds for each in found)
        body = {
            "ready": ready,
            "conditions": {
                each.name: {"ok": True} if each.holds else {"ok": False, "reason": each.fault}
                for each in found
            },
        }
        return web.json_response(body, status=200 if ready else 503, dumps=_dumps)

    async def _metrics_page(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": CONTENT_TYPE})
        await response.prepare(request)
        if request.method != "HEAD":
            # The server renders one page at a time: two at the same time would delay each other.
            async with self._one_page:
                async for chunk in self._metrics.chunks():
                    await response.write(chunk)
        await response.write_eof()
        return response

    async def _config(self, _: web.Request) -> web.Response:
        return web.json_response(config_page(self._view), dumps=_dumps)

    async def _journal(self, request: web.Request) -> web.Response:
        rooms = self._view.rooms
        if rooms is None:
            return web.Response(status=503, text="the broker is starting\n")
        text = request.query.get("limit", str(JOURNAL_LIMIT))
        if not (text.isascii() and text.isdigit() and len(text) < 10):
            return web.Response(
                status=400, text="limit is not a number: expected 0 to 999999999 entries\n"
            )
        body = {
            "broker": rooms.broker_id,
            "is_controller": rooms.controller.is_active,
            "controller": rooms.controller.controller_id,
            "entries": await rooms.journal(request.query.get("partition"), int(text)),
        }
        return web.json_response(body, dumps=_dumps)


def _dumps(value: object) -> str:
    return json.dumps(value, indent=1) + "\n"


async def _set_closing_headers(_: web.Request, response: web.StreamResponse) -> None:
    """Set the response headers that close the connection and forbid caching."""
    response.force_close()
    response.headers["Connection"] = "close"
    response.headers["Cache-Control"] = "no-store"
    response.headers["X-Content-Type-Options"] = "nosniff"


class _Busy(asyncio.Protocol):
    """The protocol of a connection above the limit: sends status 503 and closes the connection."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A transport of uvloop has the methods of asyncio.Transport, but is not a subclass.
        wire = cast("asyncio.Transport", transport)
        wire.write(_BUSY)
        wire.close()


def _request_log() -> logging.Logger:
    """Return the logger for the errors of requests. The logger drops errors that a client causes:
    malformed requests and broken connections."""
    requests = logging.getLogger(f"{__name__}.requests")
    if not requests.filters:
        requests.addFilter(_is_our_fault)
    return requests


def _is_our_fault(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, HttpProcessingError | ConnectionError)


async def serve(view: BrokerView, listening: socket.socket) -> None:
    """Serve the pages on `listening`, a bound socket, until the task is cancelled."""

    def shown() -> Iterator[tuple[str, TimeMeter]]:
        return meters(view.rooms) if view.rooms is not None else iter(())

    watch = LoopWatch(shown)
    server = HttpServer(view, watch)
    watch.start()
    try:
        await server.open(listening)
        await asyncio.get_running_loop().create_future()
    finally:
        watch.stop()
        await server.close()
