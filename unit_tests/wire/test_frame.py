"""Tests of the size prefix of frames, and of its limits."""

from __future__ import annotations

import pytest

from pybroker.errors import MalformedInput
from pybroker.wire.frame import REQUEST_SIZE_MAX, frame_size, framed, size_prefix


def test_frame_size_is_a_signed_32_bit_integer() -> None:
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
def test_invalid_frame_sizes_are_rejected(row: tuple[str, int]) -> None:
    text, limit = row
    with pytest.raises(MalformedInput):
        frame_size(bytes.fromhex(text), limit)


def test_frame_of_maximum_size_is_accepted() -> None:
    assert frame_size(bytes.fromhex("00000064"), 100) == 100


def test_frame_size_counts_bytes_not_items() -> None:
    wide = memoryview(bytes(16)).cast("q")
    parts = framed([b"head", wide])
    assert parts[0] == size_prefix(20)
    assert parts[2] is wide


def test_size_prefix_of_an_invalid_size_is_rejected() -> None:
    for size in (-1, 2**31):
        with pytest.raises(ValueError, match="frame size is"):
            size_prefix(size)
