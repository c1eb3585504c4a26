"""Counts and times requests by API, around the dispatcher.

Timing a request costs as much as handling some requests. So of the Produce and Fetch requests with
an immediate answer only one in `_SAMPLE` is timed, and stands for all of them. All other requests
are timed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol

from pybroker.handlers.dispatch import Answer
from pybroker.metrics import RequestMeter
from pybroker.ports import Clock
from pybroker.wire.api import ApiKey

_SAMPLE: Final = 16
_MASK: Final = _SAMPLE - 1
_FREQUENT: Final = max(ApiKey.PRODUCE, ApiKey.FETCH)


class Asking(Protocol):
    """The peer that sends a request."""

    @property
    def listener(self) -> str: ...

    @property
    def host(self) -> str: ...


Answering = Callable[[memoryview, str, str], Answer | Awaitable[Answer]]


class Metering:
    """Passes requests on to `answering`, counts and times them. A request that closes the
    connection is not counted, since its API key may be garbage."""

    def __init__(self, answering: Answering, meters: Sequence[RequestMeter], clock: Clock) -> None:
        """`meters` has one meter for each value of the low byte of the API key."""
        self.answering = answering
        """The handler of requests. It may be replaced at any time."""
        self._meters = meters
        self._clock = clock

    def answer(self, frame: memoryview, peer: Asking) -> Answer | Awaitable[Answer]:
        """Return the answer of `answering`. Raise the errors of the dispatcher; the awaitable
        raises the same."""
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
            return self._later(meter, answer, self._clock.monotonic())
        began = self._clock.monotonic()
        answer = self.answering(frame, peer.listener, peer.host)
        meter.count += 1
        if answer is None or isinstance(answer, list):
            meter.times.add(self._clock.monotonic() - began, _SAMPLE if key <= _FREQUENT else 1)
            return answer
        return self._later(meter, answer, began)

    async def _later(self, meter: RequestMeter, answer: Awaitable[Answer], began: float) -> Answer:
        """Time a request that waits. Each of them is timed, since the cost of timing is small
        beside that of waiting."""
        try:
            return await answer
        finally:
            meter.times.add(self._clock.monotonic() - began)
