"""Tests of the queue of transactional ids by the time at which they are due."""

from __future__ import annotations

import random

from pybroker.due_queue import DueQueue


def test_keys_come_in_the_order_of_their_times() -> None:
    queue = DueQueue[str]()
    for key, due in (("b", 5), ("a", 3), ("c", 9)):
        queue.put(key, due)
    assert list(queue.take_due(2)) == []
    assert list(queue.take_due(5)) == ["a", "b"]
    assert list(queue.take_due(5)) == []
    assert list(queue.take_due(100)) == ["c"]


def test_key_is_in_the_queue_once_at_its_earliest_time() -> None:
    queue = DueQueue[str]()
    for due in (5, 8, 3, 4):
        queue.put("a", due)
    assert len(queue) == 1
    assert list(queue.take_due(3)) == ["a"]
    assert list(queue.take_due(10)) == []


def test_key_can_be_put_in_again_while_the_due_keys_are_taken() -> None:
    queue = DueQueue[str]()
    queue.put("a", 1)
    queue.put("b", 2)
    taken = []
    for key in queue.take_due(10):
        taken.append(key)
        if len(taken) == 1:
            queue.put("a", 11)
    assert taken == ["a", "b"]
    assert list(queue.take_due(11)) == ["a"]


def test_queue_agrees_with_a_sorted_list() -> None:
    rng = random.Random(7)
    queue = DueQueue[str]()
    model: dict[str, int] = {}
    for now in range(1_000):
        key, due = f"k{rng.randrange(20)}", now + rng.randrange(30)
        queue.put(key, due)
        model[key] = min(due, model.get(key, due))
        expected = sorted((due, key) for key, due in model.items() if due <= now)
        assert list(queue.take_due(now)) == [key for _, key in expected]
        model = {key: due for key, due in model.items() if due > now}
        assert len(queue) == len(model)
