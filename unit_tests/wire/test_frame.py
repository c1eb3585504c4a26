"""The size in front of each frame, and the limits on it."""

from __future__ import annotations

import pytest

from pybroker.errors import MalformedInput
from pybroker.wire.frame import REQUEST_SIZE_MAX, frame_size, framed, size_prefix


def test_sizes_are_signed_32_bit_numbers() -> None:
    assert size_prefix(258) == b"\0\0\1\2"
    assert frame_size(b"\0\0\1\2") == 258
    assert frame_size(memoryview(b"\0\0\0\0 and more")) == 0


SIZES = {
    "negative": ("ffffffff", 100),
    "above the limit": ("00000065", 100),
    "above the default limit": (f"{REQUEST_SIZE_MAX + 1:08x}", REQUEST_SIZE_MAX),
    "text of another protocol": (b"GET ".hex(), REQUEST_SIZE_MAX),
    "cut off": ("000000", 100),
}


@pytest.mark.parametrize("row", SIZES.values(), ids=SIZES)
def test_impossible_sizes(row: tuple[str, int]) -> None:
    text, limit = row
    with pytest.raises(MalformedInput):
        frame_size(bytes.fromhex(text), limit)


def test_the_limit_itself_is_allowed() -> None:
    assert frame_size(bytes.fromhex("00000064"), 100) == 100


def test_frames_count_bytes_not_items() -> None:
    wide = memoryview(bytes(16)).cast("q")
    parts = framed([b"head", wide])
    assert parts[0] == size_prefix(20)
    assert parts[2] is wide


def test_frames_that_cannot_be_sent() -> None:
    for size in (-1, 2**31):
        with pytest.raises(ValueError, match="cannot be sent"):
            size_prefix(size)
