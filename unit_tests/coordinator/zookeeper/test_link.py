"""Answers and watches reach the event loop in the order in which kazoo's thread gets them."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from kazoo.protocol.states import EventType, KeeperState, WatchedEvent  # type: ignore[import-untyped]

from pybroker.coordinator.zookeeper.connect_string import ConnectString
from pybroker.coordinator.zookeeper.link import Link

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
