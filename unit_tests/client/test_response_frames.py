"""Tests of splitting received bytes into the frames of responses."""

from __future__ import annotations

import random
import struct

import pytest

from pybroker.client import response_frames
from pybroker.client.response_frames import ResponseFrames
from pybroker.errors import MalformedInput


class Receiving:
    """Frames that record the checked lengths and the delivered frames."""

    def __init__(self, longest: int = 1_000) -> None:
        self.checked: list[int] = []
        self.delivered: list[memoryview] = []
        self._longest = longest
        self.frames = ResponseFrames(self._check, self.delivered.append)

    def _check(self, length: int) -> None:
        self.checked.append(length)
        if length > self._longest:
            raise MalformedInput(f"{length}")


def framed(*bodies: bytes) -> bytes:
    return b"".join(struct.pack(">i", len(body)) + body for body in bodies)


@pytest.mark.parametrize("large", [response_frames.LARGE_BYTES, 100])
@pytest.mark.parametrize("seed", range(30))
def test_pieces_of_any_length_give_the_same_frames(
    seed: int, large: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(response_frames, "LARGE_BYTES", large)
    rng = random.Random(seed)
    bodies = [rng.randbytes(rng.choice([0, 1, 3, 4, 5, 300])) for _ in range(rng.randint(1, 12))]
    stream, receiving = framed(*bodies), Receiving()
    longest = rng.choice([1, 4, 50, 2_000])
    while stream:
        length = rng.randint(1, longest)
        room = receiving.frames.room()
        if room is None or rng.random() < 0.5:
            receiving.frames.feed(stream[:length])
        else:
            length = min(length, len(room), len(stream))
            room[:length] = stream[:length]
            receiving.frames.filled(length)
        stream = stream[length:]
    assert [bytes(frame) for frame in receiving.delivered] == bodies
    assert receiving.checked == [len(body) for body in bodies]
    assert not receiving.frames.is_partial


def test_a_length_is_checked_before_its_frame_has_arrived() -> None:
    receiving = Receiving(longest=10)
    receiving.frames.feed(framed(b"first") + struct.pack(">i", 11)[:3])
    assert receiving.checked == [5]
    with pytest.raises(MalformedInput):
        receiving.frames.feed(struct.pack(">i", 11)[3:])
    assert [bytes(frame) for frame in receiving.delivered] == [b"first"]


def test_a_frame_that_begins_is_partial_until_its_last_byte() -> None:
    receiving, stream = Receiving(), framed(b"whole")
    for number in range(1, len(stream)):
        receiving.frames.feed(stream[number - 1 : number])
        assert receiving.frames.is_partial and not receiving.delivered
    receiving.frames.feed(stream[-1:])
    assert not receiving.frames.is_partial


def test_a_frame_that_is_one_piece_is_not_copied() -> None:
    receiving, piece = Receiving(), framed(b"alone")
    receiving.frames.feed(piece)
    assert receiving.delivered[0].obj is piece


def test_a_frame_keeps_no_other_frame_of_its_piece_in_memory() -> None:
    receiving, piece = Receiving(), framed(b"first", b"second")
    receiving.frames.feed(piece)
    assert [len(memoryview(frame.obj)) for frame in receiving.delivered] == [5, 6]
