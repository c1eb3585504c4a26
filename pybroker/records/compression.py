"""The four compression codecs for the records in a batch. Decompression limits its output at each
step, because the input may come from an attacker. The framing is that of Kafka's Java clients:

- gzip: RFC 1952, one or more members.
- snappy: an xerial stream: a header of 16 bytes, then blocks of at most 32 KiB uncompressed, each
  after its compressed length (i32). Decompression also accepts a single raw block, as some clients
  send.
- lz4: the frame format with independent blocks, because Java rejects linked blocks.
- zstd: RFC 8878, one or more frames.
"""

from __future__ import annotations

import enum
import struct
import zlib
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from mmap import mmap
from types import MappingProxyType
from typing import Final, Protocol

import lz4.frame  # type: ignore[import-untyped]
import snappy  # type: ignore[import-untyped]
import zstandard

from pybroker.errors import BrokerError, CorruptionError, ErrorCode
from pybroker.ports import Buffer

FRAMES_MAX: Final = 64
"""The maximum number of concatenated gzip members or frames in one batch. Producers write one; the
limit keeps the time for decompression linear in the size of the batch."""

_GZIP_WBITS: Final = 31
_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_BYTES_MAX: Final = 32 * 1024
_SNAPPY_RATIO_MAX: Final = 22
"""The maximum ratio of decompressed to compressed bytes: an element of the snappy format expands 3
bytes to at most 64."""
_STEP_BYTES_MAX: Final = 1024 * 1024
"""The maximum size of the result of one step."""
_COMPRESS_STEP_BYTES: Final = 64 * 1024
"""The maximum number of bytes that one step compresses: a multiple of the size of snappy's
blocks."""
_GZIP_STEP_BYTES: Final = 64 * 1024
_LZ4_STEP_BYTES_MIN: Final = 64 * 1024
_LZ4_INPUT_BYTES: Final = 256 * 1024
_ZSTD_BLOCK_HEADER_BYTES: Final = 3
_ZSTD_STEP_BLOCKS: Final = 8
_ZSTD_RLE: Final = 1
_ZSTD_CHECKSUM_BYTES: Final = 4
_LZ4_FAST_LEVEL: Final = 9
"""Kafka's default level of lz4. It means the fast compressor, as in Kafka. Other levels mean the
compressor that is slower and has a higher ratio."""
_LZ4_LEVEL_MAX: Final = 12
"""The highest level of lz4 itself. Kafka's higher levels mean this one."""
_INT32: Final = struct.Struct(">i")


class Codec(enum.IntEnum):
    """A compression codec, with its number in the attributes of a batch."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


def compress(codec: Codec, data: Buffer, level: int | None = None) -> bytes:
    """Return `data` compressed with the codec. `level` is a value of Kafka's option
    compression.CODEC.level (KIP-390); None means the default. Codecs without levels ignore it."""
    return _COMPRESSORS[codec](data, _LEVELS.get(codec, 0) if level is None else level)


def compress_steps(codec: Codec, data: Buffer) -> Generator[int, None, bytes]:
    """Compress with the default level, in steps of a few milliseconds. Yield the number of bytes
    that each step has read. Codec.NONE has no steps."""
    if codec == Codec.NONE:
        return bytes(data)
    if len(data) <= _COMPRESS_STEP_BYTES:
        compressed = compress(codec, data)
        yield len(data)
        return compressed
    view = memoryview(data)
    compressor = _STEP_COMPRESSORS[codec](len(data))
    pieces: list[bytes] = []
    for start in range(0, len(view), _COMPRESS_STEP_BYTES):
        step = view[start : start + _COMPRESS_STEP_BYTES]
        pieces.append(compressor.compress(step))
        yield len(step)
    pieces.append(compressor.flush())
    return b"".join(pieces)


def decompress(codec: int, data: Buffer, limit_bytes: int) -> bytes:
    """Return the decompressed `data`. `codec` is the number of a `Codec`. Memory use is at most a
    small multiple of the sum of `limit_bytes` and the input size.

    Raises CorruptionError for damaged data; BrokerError(MESSAGE_TOO_LARGE) for a result above
    `limit_bytes`; BrokerError(UNSUPPORTED_COMPRESSION_TYPE) for an unknown codec.
    """
    known = _known(codec)
    output = _Output(known, limit_bytes)
    for _ in _DECOMPRESSORS[known](memoryview(data), output):
        pass
    return output.joined()


def decompress_steps(codec: int, data: Buffer, limit_bytes: int) -> Generator[int, None, Buffer]:
    """Decompress as `decompress` does, in steps of a few milliseconds. Yield the number of bytes
    that a step has decompressed or copied. Raises the errors of `decompress`."""
    known = _known(codec)
    output = _Output(known, limit_bytes)
    pieces: deque[bytes] = deque()
    for _ in _DECOMPRESSORS[known](memoryview(data), output):
        if pieces:
            yield len(pieces[-1])
        pieces.append(output.joined())
        output.clear()
    size = limit_bytes - output.room
    if size <= _STEP_BYTES_MAX:
        return b"".join(pieces)
    # One call that joins all pieces takes long if they are many MB. The system clears the pages of
    # a mapping when they are used, so that creating it takes no time.
    found = mmap(-1, size)
    while pieces:
        piece = pieces.popleft()
        found.write(piece)
        yield len(piece)
    return memoryview(found)


def _known(codec: int) -> Codec:
    try:
        return Codec(codec)
    except ValueError as error:
        raise BrokerError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
            f"compression codec {codec} is unknown, expected 0 to {max(Codec)}",
        ) from error


class _Output:
    """The decompressed bytes of a batch so far. Invariant: their number is at most
    `limit_bytes`."""

    def __init__(self, codec: Codec, limit_bytes: int) -> None:
        self._codec = codec
        self._limit_bytes = limit_bytes
        self._pieces: list[Buffer] = []
        self.room = limit_bytes

    def add(self, piece: Buffer) -> None:
        self.expect(len(piece))
        self.room -= len(piece)
        self._pieces.append(piece)

    def expect(self, length: int) -> None:
        """Raise BrokerError(MESSAGE_TOO_LARGE) if `length` more bytes exceed the limit."""
        if length > self.room:
            raise BrokerError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"{self._codec.name.lower()} data expands to more than {self._limit_bytes} bytes",
            )

    def clear(self) -> None:
        """Discard the bytes so far. They still count towards the limit."""
        self._pieces.clear()

    def joined(self) -> bytes:
        return bytes(self._pieces[0]) if len(self._pieces) == 1 else b"".join(self._pieces)

    def damaged(self, what: str) -> CorruptionError:
        return CorruptionError(f"{self._codec.name.lower()} data: {what}")

    def frame(self, index: int) -> None:
        """Raise CorruptionError if the data has more than FRAMES_MAX frames. `index` is the number
        of the present frame, counted from 0."""
        if index >= FRAMES_MAX:
            raise self.damaged(f"the data has more than {FRAMES_MAX} concatenated frames")


def _copy(data: memoryview, output: _Output) -> Iterator[None]:
    output.add(data)
    yield


def _gunzip(data: memoryview, output: _Output) -> Iterator[None]:
    position = 0
    index = 0
    while index == 0 or position < len(data):
        output.frame(index)
        member = zlib.decompressobj(wbits=_GZIP_WBITS)
        while not member.eof:
            rest = member.unconsumed_tail
            if not rest:
                rest = bytes(data[position : position + _GZIP_STEP_BYTES])
                position += len(rest)
            # A result of one byte more than the limit makes `output.add` raise MESSAGE_TOO_LARGE.
            step = min(_STEP_BYTES_MAX, output.room + 1)
            try:
                piece = member.decompress(rest, step)
            except zlib.error as error:
                raise output.damaged(str(error)) from error
            output.add(piece)
            yield
            if not rest and not piece and not member.eof:
                raise output.damaged(f"gzip member {index} is cut off")
        position -= len(member.unused_data)
        index += 1


def _keep(data: Buffer, level: int) -> bytes:
    return bytes(data)


def _compress_gzip(data: Buffer, level: int) -> bytes:
    member = zlib.compressobj(level, wbits=_GZIP_WBITS)
    return member.compress(data) + member.flush()


def _compress_snappy(data: Buffer, level: int) -> bytes:
    return _XERIAL_HEADER + _xerial_blocks(data)


def _xerial_blocks(data: Buffer) -> bytes:
    view = memoryview(data)
    pieces: list[bytes] = []
    for start in range(0, len(view), _XERIAL_BLOCK_BYTES_MAX):
        block: bytes = snappy.compress(view[start : start + _XERIAL_BLOCK_BYTES_MAX])
        pieces += (_INT32.pack(len(block)), block)
    return b"".join(pieces)


def _unsnap(data: memoryview, output: _Output) -> Iterator[None]:
    if bytes(data[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:
        _unsnap_block(data, output)
        yield
        return
    position = 0
    while position < len(data):
        # Concatenated streams repeat the header.
        if bytes(data[position : position + len(_XERIAL_MAGIC)]) == _XERIAL_MAGIC:
            position += len(_XERIAL_HEADER)
            if position > len(data):
                raise output.damaged("the xerial header is cut off")
            continue
        if len(data) - position < _INT32.size:
            raise output.damaged(f"the block length at position {position} is cut off")
        (length,) = _INT32.unpack_from(data, position)
        position += _INT32.size
        if not 0 < length <= len(data) - position:
            raise output.damaged(
                f"the block at position {position} has length {length},"
                f" expected 1 to {len(data) - position}"
            )
        _unsnap_block(data[position : position + length], output)
        position += length
        yield


def _unsnap_block(block: memoryview, output: _Output) -> None:
    declared = 0
    for index, byte in enumerate(block[:5]):
        declared |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            break
    else:
        raise output.damaged(
            "the varint with the decompressed length of a block is cut off or has more than 5 bytes"
        )
    if declared > _SNAPPY_RATIO_MAX * len(block):
        raise output.damaged(
            f"a block of {len(block)} bytes declares {declared} decompressed bytes, expected at"
            f" most {_SNAPPY_RATIO_MAX * len(block)}"
        )
    output.expect(declared)
    try:
        output.add(snappy.decompress(block))
    except snappy.UncompressError as error:
        raise output.damaged(str(error.__cause__ or error)) from error


def _compress_lz4(data: Buffer, level: int) -> bytes:
    compressed: bytes = lz4.frame.compress(
        data,
        compression_level=0 if level == _LZ4_FAST_LEVEL else min(level, _LZ4_LEVEL_MAX),
        block_linked=False,
        store_size=False,
    )
    return compressed


def _unlz4(data: memoryview, output: _Output) -> Iterator[None]:
    step = max(_LZ4_STEP_BYTES_MIN, min(_STEP_BYTES_MAX, 4 * len(data)))
    position = 0
    index = 0
    while index == 0 or position < len(data):
        output.frame(index)
        frame = lz4.frame.LZ4FrameDecompressor()
        while not frame.eof:
            # The library copies the input that it does not use yet.
            rest = data[position : position + _LZ4_INPUT_BYTES] if frame.needs_input else b""
            position += len(rest)
            try:
                piece = frame.decompress(rest, min(step, output.room + 1))
            except RuntimeError as error:
                raise output.damaged(str(error)) from error
            if not rest and not piece and not frame.eof:
                raise output.damaged(f"frame {index} is cut off")
            output.add(piece)
            yield
        position -= len(frame.unused_data or b"")
        index += 1


def _compress_zstd(data: Buffer, level: int) -> bytes:
    return zstandard.ZstdCompressor(level).compress(data)


def _unzstd(data: memoryview, output: _Output) -> Iterator[None]:
    position = 0
    index = 0
    while index == 0 or position < len(data):
        output.frame(index)
        frame = zstandard.ZstdDecompressor().decompressobj()
        try:
            for end in _zstd_steps(data, position):
                output.add(frame.decompress(data[position:end]))
                position = end
                yield
        except zstandard.ZstdError as error:
            raise output.damaged(str(error)) from error
        if not frame.eof:
            raise output.damaged(f"frame {index} is cut off")
        index += 1


def _zstd_steps(data: memoryview, position: int) -> Iterator[int]:
    """Yield the positions that split the zstd frame at `position` into parts of a few blocks. The
    last position is the end of the frame, or of the data if the frame is cut off."""
    parameters = zstandard.get_frame_parameters(data[position:])
    position += zstandard.frame_header_size(data[position:])
    blocks = 0
    is_last = False
    while not is_last and len(data) - position >= _ZSTD_BLOCK_HEADER_BYTES:
        header = int.from_bytes(data[position : position + _ZSTD_BLOCK_HEADER_BYTES], "little")
        is_last, kind, length = bool(header & 1), (header >> 1) & 3, header >> 3
        position += _ZSTD_BLOCK_HEADER_BYTES + (1 if kind == _ZSTD_RLE else length)
        blocks += 1
        if not is_last and blocks % _ZSTD_STEP_BLOCKS == 0:
            yield min(position, len(data))
    if is_last and parameters.has_checksum:
        position += _ZSTD_CHECKSUM_BYTES
    yield min(position, len(data)) if is_last else len(data)


_LEVELS: Final[Mapping[Codec, int]] = MappingProxyType(
    {Codec.GZIP: -1, Codec.LZ4: _LZ4_FAST_LEVEL, Codec.ZSTD: 3}
)
"""The default levels, which are the defaults of the options compression.CODEC.level."""
_COMPRESSORS: Final[Mapping[Codec, Callable[[Buffer, int], bytes]]] = MappingProxyType(
    {
        Codec.NONE: _keep,
        Codec.GZIP: _compress_gzip,
        Codec.SNAPPY: _compress_snappy,
        Codec.LZ4: _compress_lz4,
        Codec.ZSTD: _compress_zstd,
    }
)


class _StepCompressor(Protocol):
    def compress(self, data: Buffer, /) -> bytes: ...

    def flush(self) -> bytes: ...


class _SnappySteps:
    def __init__(self) -> None:
        self._head = _XERIAL_HEADER

    def compress(self, data: Buffer, /) -> bytes:
        head, self._head = self._head, b""
        return head + _xerial_blocks(data)

    def flush(self) -> bytes:
        return b""


class _Lz4Steps:
    def __init__(self) -> None:
        self._frame = lz4.frame.LZ4FrameCompressor(block_linked=False)
        self._head: bytes = self._frame.begin()

    def compress(self, data: Buffer, /) -> bytes:
        head, self._head = self._head, b""
        return head + bytes(self._frame.compress(data))

    def flush(self) -> bytes:
        return bytes(self._frame.flush())


_STEP_COMPRESSORS: Final[Mapping[Codec, Callable[[int], _StepCompressor]]] = MappingProxyType(
    {
        Codec.GZIP: lambda _: zlib.compressobj(_LEVELS[Codec.GZIP], wbits=_GZIP_WBITS),
        Codec.SNAPPY: lambda _: _SnappySteps(),
        Codec.LZ4: lambda _: _Lz4Steps(),
        Codec.ZSTD: lambda size: zstandard.ZstdCompressor(_LEVELS[Codec.ZSTD]).compressobj(size),
    }
)
"""Codec -> function that returns a compressor for data of the given size in bytes."""
_DECOMPRESSORS: Final[Mapping[Codec, Callable[[memoryview, _Output], Iterator[None]]]] = (
    MappingProxyType(
        {
            Codec.NONE: _copy,
            Codec.GZIP: _gunzip,
            Codec.SNAPPY: _unsnap,
            Codec.LZ4: _unlz4,
            Codec.ZSTD: _unzstd,
        }
    )
)
