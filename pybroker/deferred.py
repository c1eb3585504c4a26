"""A result that is set later, such as the response to a waiting request. Nearly every produced
record needs a Deferred, so setting the result is cheap: it needs neither a task nor an iteration of
the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import Any, Generic, TypeVar, cast

T = TypeVar("T")
U = TypeVar("U")


def _nothing() -> None:
    """The `on_cancel` of a Deferred whose result is set."""


class Deferred(Generic[T]):
    """A result that is set later. `set_result` calls the callbacks at once; a callback added later
    is never called. So a function that returns a Deferred must not call `set_result` before it
    returns."""

    __slots__ = (
        "_callbacks",
        "_error",
        "_is_cancelled",
        "_is_done",
        "_on_cancel",
        "_result",
        "_steps",
        "is_applied",
    )

    def __init__(self, on_cancel: Callable[[], object], *, is_applied: bool = False) -> None:
        """`on_cancel` is called by `cancel`, to stop the wait."""
        self.is_applied = is_applied
        """Whether the request has already taken effect, and only its response has to wait. The
        caller may then free the request's frame."""
        self._on_cancel = on_cancel
        self._steps: list[Callable[[Any], Any]] = []
        self._callbacks: list[Callable[[Deferred[T]], object]] = []
        self._result: Any = None
        self._error: BaseException | None = None
        self._is_done = self._is_cancelled = False

    def done(self) -> bool:
        return self._is_done

    def cancelled(self) -> bool:
        return self._is_cancelled

    def exception(self) -> BaseException | None:
        return self._error

    def result(self) -> T:
        """Return the result. If an exception was set instead, raise it."""
        if self._error is not None:
            raise self._error
        return cast("T", self._result)

    def then(self, step: Callable[[T], U]) -> Deferred[U]:
        """Replace the result, when it is set, by `step(result)`, or by the exception that `step`
        raises. Return this object."""
        self._steps.append(step)
        return cast("Deferred[U]", self)

    def add_done_callback(self, callback: Callable[[Deferred[T]], object]) -> None:
        """Call `callback` with this object when the result is set or the wait is cancelled."""
        self._callbacks.append(callback)

    def set_result(self, result: object) -> None:
        """Pass `result` through the steps of `then`, in order. Set the result of the last step, or
        the exception of a step. Do nothing after `cancel`."""
        if self._is_done:
            return
        try:
            for step in self._steps:
                result = step(result)
        except Exception as error:
            self._error = error
        else:
            self._result = result
        self._finish()

    def set_exception(self, error: BaseException) -> None:
        """Set an exception instead of a result. Do nothing after `cancel`."""
        if not self._is_done:
            self._error = error
            self._finish()

    def cancel(self) -> None:
        """Stop the wait, and make `result` raise CancelledError. Do nothing if the result is
        set."""
        if not self._is_done:
            self._error = asyncio.CancelledError()
            self._is_cancelled = True
            on_cancel = self._on_cancel
            self._finish()
            on_cancel()

    def _finish(self) -> None:
        self._is_done = True
        callbacks = self._callbacks
        # Most callbacks refer to this object. Without these references Python frees a request's
        # objects at once, and not in a garbage collection, which would delay all requests.
        self._callbacks, self._steps, self._on_cancel = [], [], _nothing
        for callback in callbacks:
            callback(self)

    def __await__(self) -> Generator[Any, None, T]:
        if not self._is_done:
            come = asyncio.get_running_loop().create_future()
            self.add_done_callback(lambda _: None if come.done() else come.set_result(None))
            try:
                yield from come
            except asyncio.CancelledError:
                self.cancel()
                raise
        return self.result()
