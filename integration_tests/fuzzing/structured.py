"""Requests generated field by field from the declarations of the messages, with errors ("lies"):
wrong lengths and counts, null in fields that are not nullable, overlong varints, repeated tags.

Without lies the requests are valid in every API and version. All bytes are a function of the given
random numbers.
"""

from __future__ import annotations

import random
import struct
from typing import Final

from integration_tests.sample_requests import NAME, TRANSACTIONAL_IDS, sample_batch
from integration_tests.wire_client import batch_of
from pybroker.records.compression import Codec
from pybroker.wire.api import Api
from pybroker.wire.headers import RequestHeader, encode_request_header
from pybroker.wire.primitives import encode_uvarint
from pybroker.wire.schema import Kind, Message, Wire, wire_fields

LENGTHS: Final = (-1, -2, 0, 1, 2, 0x7F, 0x80, 0x7FFF, 0x8000, 0x7FFFFFFF, -0x80000000, 0x00FFFFFF)
LONG_VARINTS: Final = (
    b"\x80\x00",
    b"\x80\x80\x80\x80\x00",
    b"\xff\xff\xff\xff\x0f",
    b"\xff\xff\xff\xff\x7f",
    b"\xff" * 10,
    b"\x80" * 11,
)
TEXTS: Final = (
    b"",
    b".",
    b"..",
    b"../../etc/passwd",
    b"a\0b",
    b"\xff\xfe",
    b"\xed\xa0\x80",
    "straße".encode(),
    b"x" * 249,
    b"x" * 250,
    b"x" * 3000,
    b"__consumer_offsets",
    b"-",
    b"a/b",
    b"%2e%2e",
)
NAMES: Final = (*(name.encode() for name in TRANSACTIONAL_IDS), *(NAME.encode(),) * 4)
_BITS: Final = {Kind.INT8: 8, Kind.INT16: 16, Kind.INT32: 32, Kind.INT64: 64}


class StructuredWriter:
    """A writer of one version of a message. `lie` is the probability that a length, count, tag or
    value is wrong.
    """

    def __init__(self, rng: random.Random, version: int, flexible: bool, lie: float) -> None:
        self._rng = rng
        self._version = version
        self._flexible = flexible
        self._lie = lie

    def structure(self, message_class: type[Message]) -> bytes:
        out = bytearray()
        tagged: list[Wire] = []
        for field in wire_fields(message_class):
            if not field.wire.exists_in(self._version):
                continue
            if field.wire.tag is None:
                out += self._field(field.wire)
            else:
                tagged.append(field.wire)
        if self._flexible:
            out += self._tags(tagged)
        return bytes(out)

    def _lies(self) -> bool:
        return self._rng.random() < self._lie

    def _field(self, wire: Wire) -> bytes:
        if wire.is_nullable_in(self._version) and self._rng.random() < 0.2:
            return self._length(-1, wire)
        if self._lies():
            return self._length(-1, wire)
        if not wire.is_array:
            return self._value(wire)
        count = self._rng.choice((0, 1, 1, 1, 2, 3, 17))
        return self._length(count, wire) + b"".join(self._value(wire) for _ in range(count))

    def _length(self, length: int, wire: Wire) -> bytes:
        """Write a length in the encoding of the version; nothing for a value of fixed size."""
        if self._lies():
            length = self._rng.choice(LENGTHS)
        if wire.kind.is_fixed and not wire.is_array:
            return b""
        if self._flexible:
            if self._lies():
                return self._rng.choice(LONG_VARINTS)
            return encode_uvarint((length + 1) & 0xFFFFFFFF)
        if wire.is_array or wire.kind is not Kind.STRING:
            return struct.pack(">I", length & 0xFFFFFFFF)
        return struct.pack(">H", length & 0xFFFF)

    def _value(self, wire: Wire) -> bytes:
        if wire.element is not None:
            return self.structure(wire.element)
        if wire.kind in _BITS:
            return self._number(_BITS[wire.kind])
        match wire.kind:
            case Kind.BOOLEAN:
                return b"\2" if self._lies() else self._rng.choice((b"\0", b"\1"))
            case Kind.FLOAT64:
                return self._rng.randbytes(8) if self._lies() else struct.pack(">d", 1.5)
            case Kind.UUID:
                return self._rng.choice((bytes(16), self._rng.randbytes(16)))
            case Kind.STRING:
                content = self._rng.choice(TEXTS if self._lies() else NAMES)
            case Kind.RECORDS:
                content = self._records()
            case _:
                content = self._rng.randbytes(self._rng.randrange(40))
        plain = Wire(wire.kind, "")
        return self._length(len(content), plain) + content

    def _number(self, bits: int) -> bytes:
        value = self._rng.choice((0, 0, 0, 0, 1, -1, 2))
        if self._lies():
            extreme = 1 << (bits - 1)
            value = self._rng.choice((extreme - 1, -extreme, -2, 1000, self._rng.getrandbits(bits)))
        return (value & ((1 << bits) - 1)).to_bytes(bits // 8, "big")

    def _records(self) -> bytes:
        if self._rng.random() < 0.5:
            return sample_batch(self._rng)
        values = [self._rng.randbytes(self._rng.randrange(50)) for _ in range(3)]
        codec = self._rng.choice(list(Codec))
        return batch_of(*values, timestamps=[1_700_000_000_000] * 3, codec=codec)

    def _tags(self, known: list[Wire]) -> bytes:
        """Write the section of tagged fields, which is mostly empty, else with known and unknown
        fields.
        """
        if self._rng.random() < 0.9 and not self._lies():
            return b"\0"
        fields: list[tuple[int, bytes]] = []
        for wire in known:
            if wire.tag is not None and self._rng.random() < 0.5:
                fields.append((wire.tag, self._field(wire)))
        if self._rng.random() < 0.5:
            fields.append((self._rng.choice((77, 1000, 0xFFFFFFFF)), b"unknown"))
        if fields and self._lies():
            fields.append(fields[0])
        out = bytearray(
            encode_uvarint(self._rng.choice((200, 0, 5)) if self._lies() else len(fields))
        )
        for tag, content in fields:
            size = self._rng.choice((0, 1, 0x7FFFFFFF)) if self._lies() else len(content)
            out += encode_uvarint(tag) + encode_uvarint(size) + content
        return bytes(out)


def structured_frame(api: Api, rng: random.Random) -> bytes:
    """Return a request of a random version of the API, with no, few or many lies."""
    version = rng.randint(api.min_version, api.max_version)
    lie = rng.choice((0.0, 0.02, 0.02, 0.1, 0.3))
    writer = StructuredWriter(rng, version, api.is_flexible(version), lie)
    header = RequestHeader(api.key, version, rng.randrange(1000), "fuzz")
    head = encode_request_header(header, api.request_header_version(version))
    return head + writer.structure(api.request)
