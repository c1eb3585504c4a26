"""Tests that buffers are reused, but never while a view of one exists."""

from __future__ import annotations

from pybroker.storage.buffers import BUFFER_BYTES, BUFFERS_MAX, ReadBuffers


def owner(view: memoryview) -> int:
    """Return the id of the buffer of a view."""
    return id(view.obj)


def test_a_buffer_without_views_is_reused() -> None:
    buffers = ReadBuffers()
    first = owner(buffers.take(100))
    assert owner(buffers.take(BUFFER_BYTES)) == first


def test_a_slice_of_a_view_keeps_the_buffer_in_use() -> None:
    buffers = ReadBuffers()
    view = buffers.take(100)
    view[:] = b"x" * 100
    part = view[10:20]
    first = owner(view)
    del view
    other = buffers.take(100)
    assert owner(other) != first
    other[:] = b"y" * 100
    assert bytes(part) == b"x" * 10


def test_the_number_of_reused_buffers_is_limited() -> None:
    buffers = ReadBuffers()
    views = [buffers.take(10) for _ in range(2 * BUFFERS_MAX)]
    assert len({owner(view) for view in views}) == 2 * BUFFERS_MAX
    kept = {owner(view) for view in views[:BUFFERS_MAX]}
    views.clear()
    again = [buffers.take(10) for _ in range(BUFFERS_MAX)]
    assert {owner(view) for view in again} == kept


def test_a_larger_buffer_is_used_once() -> None:
    buffers = ReadBuffers()
    assert len(buffers.take(BUFFER_BYTES + 1)) == BUFFER_BYTES + 1
    assert owner(buffers.take(10)) != owner(buffers.take(BUFFER_BYTES + 1))
