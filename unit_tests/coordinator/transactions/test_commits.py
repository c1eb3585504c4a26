"""Tests of the waits of a transaction coordinator for the in-sync replicas."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import cast

import pytest

from pybroker.clock import ManualClock
from pybroker.coordinator.runtime.shard import ShardContext, Timer
from pybroker.coordinator.transactions.commits import Commits
from pybroker.deferred import Deferred
from pybroker.errors import BrokerError, ErrorCode


class Context:
    """A shard whose high watermark and leadership the test sets."""

    partition = 7

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.high_watermark = 0
        self.is_led = True
        self.waits: list[tuple[int, Callable[[], None]]] = []
        """The waits that have begun and not ended."""
        self.calls: list[Callable[[], None]] = []
        """The calls of `call_later` that are not cancelled."""

    def _check(self) -> None:
        if not self.is_led:
            raise BrokerError(ErrorCode.NOT_COORDINATOR, "another broker leads")

    def is_committed(self, offset: int) -> bool:
        self._check()
        return self.high_watermark >= offset

    def when_committed(self, offset: int, callback: Callable[[], None]) -> Callable[[], None]:
        self._check()
        wait = offset, callback
        self.waits.append(wait)
        return lambda: self.waits.remove(wait)

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        calls = self.calls

        class Call:
            def cancel(self) -> None:
                if callback in calls:
                    calls.remove(callback)

        self.calls.append(callback)
        return Call()

    def commit(self, offset: int) -> None:
        self.high_watermark = offset
        self.look()

    def look(self) -> None:
        for _, callback in [*self.waits]:
            callback()


@pytest.fixture
def context() -> Context:
    return Context()


@pytest.fixture
def commits(context: Context) -> Commits:
    return Commits(cast("ShardContext", context))


def test_callbacks_follow_in_the_order_of_the_records(context: Context, commits: Commits) -> None:
    done: list[str] = []

    def answered(name: str, _: Deferred[None]) -> None:
        done.append(name)

    for offset in (1, 2, 3):
        deferred = commits.add(offset, partial(done.append, f"committed {offset}"))
        assert deferred is not None
        deferred.add_done_callback(partial(answered, f"answered {offset}"))
    assert [offset for offset, _ in context.waits] == [1]
    context.commit(2)
    assert done == ["committed 1", "answered 1", "committed 2", "answered 2"]
    assert [offset for offset, _ in context.waits] == [3]
    context.commit(3)
    assert done[4:] == ["committed 3", "answered 3"] and context.waits == []
    assert commits.add(3, lambda: done.append("at once")) is None and done[6:] == ["at once"]


def test_an_answer_may_append_the_next_record(context: Context, commits: Commits) -> None:
    """The connection may handle the client's next request while it sends a response."""
    added: list[Deferred[None] | None] = []

    def answered(_: Deferred[None]) -> None:
        added.append(commits.add(2, lambda: None))

    first = commits.add(1, lambda: None)
    assert first is not None
    first.add_done_callback(answered)
    context.commit(1)
    assert [offset for offset, _ in context.waits] == [2]
    context.commit(2)
    (second,) = added
    assert second is not None and second.done() and context.waits == []


def test_a_failed_check_is_repeated(context: Context, commits: Commits) -> None:
    first = commits.add(1, lambda: None)
    assert first is not None
    context.is_led = False
    context.commit(1)
    assert not first.done() and context.waits == []
    context.is_led = True
    (again,) = context.calls
    again()
    assert first.done() and first.exception() is None and not context.waits and not context.calls


def test_a_check_that_fails_after_an_answer_leaves_no_wait(
    context: Context, commits: Commits
) -> None:
    first, second = commits.add(1, lambda: None), commits.add(2, lambda: None)
    assert first is not None and second is not None

    def answered(_: Deferred[None]) -> None:
        commits.add(3, lambda: None)
        context.is_led = False

    first.add_done_callback(answered)
    context.commit(1)
    assert context.waits == [] and len(context.calls) == 1
    commits.end()
    assert context.calls == []
    assert isinstance(second.exception(), BrokerError)


def test_the_end_fails_all_waits(context: Context, commits: Commits) -> None:
    first = commits.add(1, lambda: pytest.fail("committed after the end"))
    assert first is not None
    (late,) = [callback for _, callback in context.waits]
    commits.end()
    error = first.exception()
    assert isinstance(error, BrokerError) and error.code is ErrorCode.NOT_COORDINATOR
    context.high_watermark = 1
    late()
    assert not context.waits and not context.calls


def test_the_log_tells_of_followers_that_do_not_replicate(
    context: Context, commits: Commits, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    commits.add(1, lambda: None)
    for seconds in (29, 2, 29, 2):
        context.clock.advance(seconds)
        context.look()
    lines = [record.getMessage() for record in caplog.records]
    assert (
        lines
        == [
            "transactions not committed yet partition=7 records=1"
            " reason=the followers have not replicated the records"
        ]
        * 2
    )
