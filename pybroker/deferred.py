"""The result of a request that waits. Nearly every produced record makes requests wait, so their
results come without a task, and without turns of the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import Any, Generic, TypeVar, cast

T = TypeVar("T")
U = TypeVar("U")


class Deferred(Generic[T]):
    """A result that comes later. Unlike an asyncio.Future it calls its callbacks at once, while the
    result is set. So only a callback of the event loop sets it, and it has no result yet when its
    maker returns it."""

    __slots__ = (
        "_callbacks",
        "_error",
        "_is_cancelled",
        "_is_done",
        "_on_cancel",
        "_result",
        "_steps",
    )

    def __init__(self, on_cancel: Callable[[], object]) -> None:
        """`on_cancel` is called by `cancel`, to stop the wait."""
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
        """Return the result. Raises the exception that came instead of it."""
        if self._error is not None:
            raise self._error
        return cast("T", self._result)

    def then(self, step: Callable[[T], U]) -> Deferred[U]:
        """Let the result be what `step` makes of it, or the exception that `step` raises. Return
        this object."""
        self._steps.append(step)
        return cast("Deferred[U]", self)

    def add_done_callback(self, callback: Callable[[Deferred[T]], object]) -> None:
        """Call `callback` with this object when it has its result or is cancelled."""
        self._callbacks.append(callback)

    def set_result(self, result: object) -> None:
        """Set the result, to which the steps are then applied. Does nothing after a `cancel`."""
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
        """Set an exception instead of a result. Does nothing after a `cancel`."""
        if not self._is_done:
            self._error = error
            self._finish()

    def cancel(self) -> None:
        """Stop the wait. Does nothing if the result has come."""
        if not self._is_done:
            self._error = asyncio.CancelledError()
            self._is_cancelled = True
            self._finish()
            self._on_cancel()

    def _finish(self) -> None:
        self._is_done = True
        for callback in self._callbacks:
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
