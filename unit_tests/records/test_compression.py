"""Tests of compression: each framing that clients write is decompressed, and an attacker's input
cannot exhaust memory."""

from __future__ import annotations

import gzip
import random
import struct
import tracemalloc
import zlib
from collections.abc import Callable, Generator
from typing import TypeVar

import lz4.frame  # type: ignore[import-untyped]
import pytest
import snappy  # type: ignore[import-untyped]
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from pybroker.errors import BrokerError, CorruptionError, ErrorCode
from pybroker.records.compression import (
    FRAMES_MAX,
    Codec,
    compress,
    compress_steps,
    decompress,
    decompress_steps,
)
from pybroker.storage.log_config import LogConfig
from unit_tests.records.vocabulary import LIMIT, refusal

MIB = 1024 * 1024
TEXT = b"a line of text that repeats; " * 5000
NOISE = random.Random(7).randbytes(200_000)
MIXED = TEXT + NOISE + TEXT
CONTENTS = {
    "empty": b"",
    "one byte": b"x",
    "text": TEXT,
    "noise": NOISE,
    "mixed": MIXED,
    "zeros": bytes(3 * MIB),
}
COMPRESSED = [codec for codec in Codec if codec is not Codec.NONE]
XERIAL_HEADER = b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01"


def xerial(*blocks: bytes) -> bytes:
    return XERIAL_HEADER + b"".join(struct.pack(">i", len(block)) + block for block in blocks)


def raw_snappy(data: bytes) -> bytes:
    compressed: bytes = snappy.compress(data)
    return compressed


def streamed_zstd(data: bytes, **options: int | bool) -> bytes:
    """Return `data` compressed as the Java client does: without the content size in the frame."""
    stream = zstandard.ZstdCompressor(**options).compressobj()  # type: ignore[arg-type]
    return stream.compress(data) + stream.flush()


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("content", CONTENTS)
def test_compressed_data_is_decompressed_unchanged(codec: Codec, content: str) -> None:
    data = CONTENTS[content]
    assert decompress(codec, compress(codec, data), len(data)) == data
    view = memoryview(bytearray(b"-" + compress(codec, memoryview(data)) + b"-"))[1:-1]
    assert decompress(codec, view, LIMIT) == data


@pytest.mark.parametrize("codec", COMPRESSED)
@pytest.mark.parametrize("content", CONTENTS)
def test_steps_give_the_same_data(codec: Codec, content: str) -> None:
    data = CONTENTS[content]
    sizes, compressed = taken(compress_steps(codec, data))
    assert sum(sizes) == len(data)
    assert max(sizes) <= 64 * 1024
    sizes, decompressed = taken(decompress_steps(codec, compressed, len(data)))
    assert bytes(decompressed) == data
    assert sum(sizes) <= 2 * len(data), "a byte counts when it is decompressed and when copied"
    assert max(sizes, default=0) <= MIB


@pytest.mark.parametrize("size", [65_535, 65_536, 65_537, 131_072])
def test_steps_that_end_with_the_data(size: int) -> None:
    for codec in COMPRESSED:
        _, compressed = taken(compress_steps(codec, MIXED[:size]))
        assert decompress(codec, compressed, size) == MIXED[:size]


def test_lz4_in_steps_has_independent_blocks_without_content_size() -> None:
    _, compressed = taken(compress_steps(Codec.LZ4, TEXT))
    frame = lz4.frame.get_frame_info(compressed)
    assert (frame["block_linked"], frame["content_size"]) == (False, 0)


T = TypeVar("T")


def taken(steps: Generator[int, None, T]) -> tuple[list[int], T]:
    """Return what the generator yields, and its result."""
    sizes: list[int] = []
    while True:
        try:
            sizes.append(next(steps))
        except StopIteration as end:
            return sizes, end.value


FRAMINGS: dict[str, tuple[Codec, Callable[[bytes], bytes]]] = {
    "gzip of level 9": (Codec.GZIP, lambda data: gzip.compress(data, 9)),
    "gzip in two members": (
        Codec.GZIP,
        lambda data: gzip.compress(data[:999]) + gzip.compress(data[999:]),
    ),
    "snappy as one raw block": (Codec.SNAPPY, raw_snappy),
    "snappy in xerial blocks": (
        Codec.SNAPPY,
        lambda data: xerial(raw_snappy(data[:999]), raw_snappy(data[999:])),
    ),
    "snappy in two xerial streams": (
        Codec.SNAPPY,
        lambda data: xerial(raw_snappy(data[:999])) + xerial(raw_snappy(data[999:])),
    ),
    "lz4 with linked blocks": (Codec.LZ4, lambda data: lz4.frame.compress(data, block_linked=True)),
    "lz4 with large blocks and checksums": (
        Codec.LZ4,
        lambda data: lz4.frame.compress(
            data,
            block_size=lz4.frame.BLOCKSIZE_MAX4MB,
            content_checksum=True,
            block_checksum=True,
        ),
    ),
    "lz4 in two frames": (
        Codec.LZ4,
        lambda data: lz4.frame.compress(data[:999]) + lz4.frame.compress(data[999:]),
    ),
    "zstd with its size": (Codec.ZSTD, lambda data: zstandard.ZstdCompressor().compress(data)),
    "zstd as a stream": (Codec.ZSTD, streamed_zstd),
    "zstd with a checksum": (Codec.ZSTD, lambda data: streamed_zstd(data, write_checksum=True)),
    "zstd of level 19": (Codec.ZSTD, lambda data: streamed_zstd(data, level=19)),
    "zstd in two frames": (
        Codec.ZSTD,
        lambda data: streamed_zstd(data[:999]) + streamed_zstd(data[999:]),
    ),
}


@pytest.mark.parametrize("framing", FRAMINGS)
def test_every_framing_is_decompressed(framing: str) -> None:
    codec, write = FRAMINGS[framing]
    assert decompress(codec, write(MIXED), len(MIXED)) == MIXED


@pytest.mark.parametrize("framing", FRAMINGS)
def test_every_framing_that_is_cut_off_is_corrupt(framing: str) -> None:
    codec, write = FRAMINGS[framing]
    data = write(TEXT)
    whole_before = {len(write(TEXT[:999])), len(data) - len(write(TEXT[999:]))}
    for length in {0, 1, 5, 17, len(data) // 2, len(data) - 5, len(data) - 1}:
        # Data that is cut at the end of a frame is valid. The check compares lengths, because gzip
        # writes the current time.
        if length in whole_before:
            continue
        with pytest.raises(CorruptionError):
            decompress(codec, data[:length], LIMIT)


PROSE = b" ".join(random.Random(8).choices([b"%x" % (n * n) for n in range(900)], k=20_000))


@pytest.mark.parametrize(
    ("codec", "low", "high"),
    [
        (Codec.GZIP, 1, 9),
        (Codec.LZ4, 9, 12),  # 9 means the fast compressor, as in Kafka
        (Codec.LZ4, 3, 17),
        (Codec.ZSTD, -100, 3),
        (Codec.ZSTD, 3, 19),
    ],
)
def test_higher_level_makes_smaller_data(codec: Codec, low: int, high: int) -> None:
    sizes = []
    for level in (low, high):
        data = compress(codec, PROSE, level)
        assert decompress(codec, data, len(PROSE)) == PROSE
        sizes.append(len(data))
    assert sizes[1] < sizes[0]


@pytest.mark.parametrize(("codec", "level"), [(Codec.GZIP, -1), (Codec.LZ4, 9), (Codec.ZSTD, 3)])
def test_default_levels_are_those_of_the_options(codec: Codec, level: int) -> None:
    assert compress(codec, PROSE, level) == compress(codec, PROSE)
    assert LogConfig().level_of(codec) == level


@pytest.mark.parametrize(
    ("codec", "level"),
    [
        *((Codec.GZIP, level) for level in range(1, 10)),
        *((Codec.LZ4, level) for level in range(1, 18)),
        *((Codec.ZSTD, level) for level in (-131_072, 1, 22)),
    ],
)
def test_every_level_can_be_decompressed(codec: Codec, level: int) -> None:
    assert decompress(codec, compress(codec, TEXT, level), len(TEXT)) == TEXT


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.SNAPPY])
def test_codecs_without_levels_ignore_the_level(codec: Codec) -> None:
    assert compress(codec, TEXT, 7) == compress(codec, TEXT)
    assert LogConfig().level_of(codec) is None


def test_snappy_is_written_as_xerial_in_blocks_of_32_kib() -> None:
    data = compress(Codec.SNAPPY, NOISE)
    assert data.startswith(XERIAL_HEADER)
    (length,) = struct.unpack_from(">i", data, 16)
    assert snappy.decompress(data[20 : 20 + length]) == NOISE[: 32 * 1024]


def test_lz4_is_written_in_independent_blocks_without_content_size() -> None:
    descriptor = compress(Codec.LZ4, MIXED)[4]
    assert descriptor & 0x20, "Java refuses linked blocks"
    assert not descriptor & 0x08


@pytest.mark.parametrize("codec", Codec)
def test_one_byte_over_the_limit_is_rejected(codec: Codec) -> None:
    code, text = refusal(decompress, codec, compress(codec, MIXED), len(MIXED) - 1)
    assert code is ErrorCode.MESSAGE_TOO_LARGE
    assert f"{codec.name.lower()} data expands to more than {len(MIXED) - 1} bytes" in text


def zstd_rle_bomb(blocks: int) -> bytes:
    """Return a zstd frame without content size and checksum. Each four bytes of the frame
    decompress to 128 KiB of zeros."""
    block = struct.pack("<I", (128 * 1024) << 3 | 1 << 1)[:3] + b"\0"
    last = struct.pack("<I", 1 << 3 | 1 << 1 | 1)[:3] + b"\0"
    return b"\x28\xb5\x2f\xfd\x00\x60" + block * blocks + last


BOMBS = {
    "gzip": (Codec.GZIP, gzip.compress(bytes(256 * MIB), 9)),
    "snappy blocks": (Codec.SNAPPY, xerial(*[raw_snappy(bytes(MIB))] * 256)),
    "lz4": (Codec.LZ4, lz4.frame.compress(bytes(256 * MIB), store_size=True)),
    "zstd": (Codec.ZSTD, zstandard.ZstdCompressor().compress(bytes(256 * MIB))),
    "zstd of run lengths": (Codec.ZSTD, zstd_rle_bomb(200_000)),
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_decompression_bomb_reaches_the_limit_with_little_memory(bomb: str) -> None:
    codec, data = BOMBS[bomb]
    tracemalloc.start()
    try:
        code, _ = refusal(decompress, codec, data, 4 * MIB)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert code is ErrorCode.MESSAGE_TOO_LARGE
    assert peak < 16 * MIB + 2 * len(data)


def lying_zstd(size: int) -> bytes:
    """Return a frame whose header declares `size` bytes of content, but which has one byte."""
    return b"\x28\xb5\x2f\xfd\xe0" + struct.pack("<Q", size) + b"\x09\x00\x00x"


LIES = {
    "snappy": (Codec.SNAPPY, b"\xff\xff\xff\xff\x07" + raw_snappy(b"x" * 20)),
    "xerial": (Codec.SNAPPY, xerial(b"\xff\xff\xff\xff\x07" + b"\0" * 20)),
    "lz4": (
        Codec.LZ4,
        b"\x04\x22\x4d\x18\x68\x40" + struct.pack("<Q", 2**40) + b"\x00" + b"\0" * 9,
    ),
    "zstd": (Codec.ZSTD, lying_zstd(2**40)),
}


@pytest.mark.parametrize("lie", LIES)
def test_declared_size_does_not_allocate_memory(lie: str) -> None:
    codec, data = LIES[lie]
    tracemalloc.start()
    try:
        refusal(decompress, codec, data, 2**31)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 * MIB


@pytest.mark.parametrize("lie", ["snappy", "xerial"])
def test_snappy_block_with_an_impossible_declared_size_is_rejected(lie: str) -> None:
    code, text = refusal(decompress, *LIES[lie], 2**31)
    assert code is None
    assert "declares 2147483647 decompressed bytes" in text


GZIP = gzip.compress(TEXT)
DAMAGED = {
    "gzip: nothing": (Codec.GZIP, b""),
    "gzip: another format": (Codec.GZIP, zlib.compress(TEXT)),
    "gzip: wrong checksum": (Codec.GZIP, GZIP[:-8] + b"\0\0\0\0" + GZIP[-4:]),
    "gzip: rest behind the member": (Codec.GZIP, GZIP + b"rest"),
    "gzip: too many members": (Codec.GZIP, gzip.compress(b"") * (FRAMES_MAX + 1)),
    "snappy: nothing": (Codec.SNAPPY, b""),
    "snappy: length without end": (Codec.SNAPPY, b"\xff\xff\xff\xff\xff\xff"),
    "snappy: copy from before the start": (Codec.SNAPPY, b"\x04\x01\x09\x00\x00"),
    "snappy: less than declared": (Codec.SNAPPY, b"\x08\x00x"),
    "xerial: header cut off": (Codec.SNAPPY, XERIAL_HEADER[:10]),
    "xerial: length cut off": (Codec.SNAPPY, XERIAL_HEADER + b"\0\0"),
    "xerial: negative length": (Codec.SNAPPY, XERIAL_HEADER + b"\xff\xff\xff\xf0" + b"x" * 20),
    "xerial: empty block": (Codec.SNAPPY, xerial(b"")),
    "xerial: length beyond the end": (Codec.SNAPPY, XERIAL_HEADER + b"\0\0\0\x50abc"),
    "xerial: damaged block": (Codec.SNAPPY, xerial(raw_snappy(TEXT)[:-3])),
    "lz4: nothing": (Codec.LZ4, b""),
    "lz4: another format": (Codec.LZ4, GZIP),
    "lz4: rest behind the frame": (Codec.LZ4, lz4.frame.compress(TEXT) + b"rest"),
    "lz4: too many frames": (Codec.LZ4, lz4.frame.compress(b"") * (FRAMES_MAX + 1)),
    "zstd: nothing": (Codec.ZSTD, b""),
    "zstd: another format": (Codec.ZSTD, GZIP),
    "zstd: rest behind the frame": (Codec.ZSTD, streamed_zstd(TEXT) + b"rest"),
    "zstd: too many frames": (Codec.ZSTD, streamed_zstd(b"x") * (FRAMES_MAX + 1)),
    "zstd: reserved block type": (Codec.ZSTD, b"\x28\xb5\x2f\xfd\x00\x60\x0f\x00\x00x"),
    "zstd: wrong checksum": (
        Codec.ZSTD,
        streamed_zstd(TEXT, write_checksum=True)[:-4] + b"\0\0\0\0",
    ),
    "zstd: no last block": (Codec.ZSTD, zstd_rle_bomb(0)[:-4]),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_damaged_compressed_data_is_rejected(case: str) -> None:
    codec, data = DAMAGED[case]
    with pytest.raises(CorruptionError, match=f"{codec.name.lower()} data: "):
        decompress(codec, data, LIMIT)


@pytest.mark.parametrize("codec", [5, 6, 7, -1])
def test_an_unknown_codec_is_refused(codec: int) -> None:
    code, text = refusal(decompress, codec, b"data", LIMIT)
    assert code is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert f"codec {codec}" in text


@st.composite
def damaged(draw: st.DrawFn) -> tuple[Codec, bytes]:
    """Generate random bytes, and compressed text with a few changed bytes, which passes the first
    checks."""
    codec = draw(st.sampled_from(COMPRESSED))
    if draw(st.booleans()):
        return codec, draw(st.binary(max_size=60))
    data = bytearray(compress(codec, TEXT[: draw(st.integers(0, 3000))]))
    for _ in range(draw(st.integers(1, 4))):
        data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    return codec, bytes(data)


@given(case=damaged())
@settings(max_examples=500, deadline=None)
def test_decompression_of_any_bytes_raises_only_project_errors(case: tuple[Codec, bytes]) -> None:
    codec, data = case
    try:
        assert len(decompress(codec, data, 10_000)) <= 10_000
    except (CorruptionError, BrokerError):
        pass
