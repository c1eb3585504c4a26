"""Counts all requests of each API, and measures their times. Of the Produce and Fetch requests that
are answered at once, only one in `_SAMPLE` is measured."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol

from pybroker.deferred import Deferred
from pybroker.handlers.dispatch import Answer
from pybroker.metrics import RequestMeter
from pybroker.ports import Clock
from pybroker.wire.api import ApiKey

_SAMPLE: Final = 16
_MASK: Final = _SAMPLE - 1
_FREQUENT: Final = max(ApiKey.PRODUCE, ApiKey.FETCH)


class Asking(Protocol):
    """The origin of a request: the listener that received the request, and the client's host."""

    @property
    def listener(self) -> str: ...

    @property
    def host(self) -> str: ...


Answering = Callable[[memoryview, str, str], Answer | Awaitable[Answer]]


class Metering:
    """Passes requests on to `answering`, and counts and measures them. A request that gets no
    response because its connection is closed is not counted."""

    def __init__(self, answering: Answering, meters: Sequence[RequestMeter], clock: Clock) -> None:
        """`meters` has 256 meters; the index is the low byte of the API key."""
        self.answering = answering
        """The function that answers requests. Its arguments are the frame, the listener and the
        peer's host. The owner may replace it at any time."""
        self._meters = meters
        self._clock = clock

    def answer(self, frame: memoryview, peer: Asking) -> Answer | Awaitable[Answer]:
        """Pass a request on to `answering`, and count the request. Return the response, or an
        awaitable of the response. Errors of `answering` are raised here or by the awaitable."""
        try:
            key = frame[1]
        except IndexError:
            key = 0  # too short for a request: the dispatcher rejects it
        meter = self._meters[key]
        if key <= _FREQUENT and meter.count & _MASK:
            answer = self.answering(frame, peer.listener, peer.host)
            meter.count += 1
            if answer is None or isinstance(answer, list):
                return answer
            return self._measured(meter, answer, self._clock.monotonic())
        began = self._clock.monotonic()
        answer = self.answering(frame, peer.listener, peer.host)
        meter.count += 1
        if answer is None or isinstance(answer, list):
            meter.times.add(self._clock.monotonic() - began, _SAMPLE if key <= _FREQUENT else 1)
            return answer
        return self._measured(meter, answer, began)

    def _measured(
        self, meter: RequestMeter, answer: Awaitable[Answer], began: float
    ) -> Awaitable[Answer]:
        """Measure the time from `began` (monotonic s) to the response. A Deferred is measured by a
        callback, any other awaitable by a coroutine."""
        if not isinstance(answer, Deferred):
            return self._later(meter, answer, began)
        answer.add_done_callback(lambda _: meter.times.add(self._clock.monotonic() - began))
        return answer

    async def _later(self, meter: RequestMeter, answer: Awaitable[Answer], began: float) -> Answer:
        """Await the response and measure the time since `began` (monotonic s)."""
        try:
            return await answer
        finally:
            meter.times.add(self._clock.monotonic() - began)
