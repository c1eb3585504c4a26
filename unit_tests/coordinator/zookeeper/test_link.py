"""Tests that answers and watches reach the event loop in the order in which kazoo's thread gets
them."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from kazoo.protocol.states import EventType, KeeperState, WatchedEvent  # type: ignore[import-untyped]

from pybroker.coordinator.zookeeper.connect_string import ConnectString
from pybroker.coordinator.zookeeper.link import Link
from unit_tests.idle_loop import idle

PATH = "/brokers/ids"
CHILDREN = ["1", "3"]


def test_a_watch_does_not_overtake_the_read_that_set_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """kazoo's thread receives the answer and the next event before the event loop runs again."""

    async def play() -> list[object]:
        seen: list[object] = []
        link = Link(
            ConnectString((("nowhere", 2181),), ""),
            session_timeout_ms=3000,
            on_state=lambda *_: None,
            on_event=lambda kind, path: seen.append((kind, path)),
        )

        def server(_: object, result: Any) -> None:
            def answer_and_fire() -> None:
                result.set(CHILDREN)
                link.watcher(WatchedEvent(EventType.CHILD, KeeperState.CONNECTED, PATH))

            thread = threading.Thread(target=answer_and_fire)
            thread.start()
            thread.join()

        monkeypatch.setattr(link.client, "_call", server)
        result = link.client.get_children_async(PATH, link.watcher)
        assert await link.answer_of(result, seen.append) == CHILDREN
        await asyncio.sleep(0)
        return seen

    assert asyncio.run(play()) == [CHILDREN, (EventType.CHILD, PATH)]


def test_an_answer_that_kazoo_refuses_at_once_is_an_exception() -> None:
    async def play() -> None:
        link = Link(
            ConnectString((("nowhere", 2181),), ""),
            session_timeout_ms=3000,
            on_state=lambda *_: None,
            on_event=lambda *_: None,
        )
        with pytest.raises(Exception, match="closed"):
            await link.answer_of(link.client.get_children_async(PATH))

    asyncio.run(play())


def test_many_answers_wake_the_event_loop_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def play() -> None:
        loop, wakes = asyncio.get_running_loop(), list[Any]()
        link = Link(
            ConnectString((("nowhere", 2181),), ""),
            session_timeout_ms=3000,
            on_state=lambda *_: None,
            on_event=lambda *_: None,
        )
        sent: list[Any] = []
        monkeypatch.setattr(link.client, "_call", lambda _, result: sent.append(result))
        asked = [link.answer_of(link.client.get_children_async(PATH)) for _ in range(100)]
        wake = loop.call_soon_threadsafe

        def noted(*call: Any) -> None:
            wakes.append(call)
            wake(*call)

        with monkeypatch.context() as patched:
            patched.setattr(loop, "call_soon_threadsafe", noted)
            for number, result in enumerate(sent):
                result.set([str(number)])
        assert await asyncio.gather(*asked) == [[str(number)] for number in range(100)]
        assert len(wakes) == 1

    asyncio.run(play())


async def test_a_failing_listener_does_not_delay_later_messages() -> None:
    seen: list[str] = []

    def event(kind: str, path: str) -> None:
        if kind == "CHANGED":
            raise ValueError(path)
        seen.append(path)

    failures: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda _, context: failures.append(context["exception"])
    )
    link = Link(
        ConnectString((("nowhere", 2181),), ""),
        session_timeout_ms=3000,
        on_state=lambda *_: None,
        on_event=event,
    )
    for kind, path in ((EventType.CHANGED, "/a"), (EventType.CHILD, "/b")):
        link.watcher(WatchedEvent(kind, KeeperState.CONNECTED, path))
    await idle()
    assert [str(each) for each in failures] == ["/a"]
    assert seen == ["/b"]
