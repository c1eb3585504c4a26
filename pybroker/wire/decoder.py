"""Compiles the declaration of a message into a Python function that decodes one version of the
message.

The function raises MalformedInput or one of primitives.DECODING_ERRORS. The function checks the
element count of each array before the allocation.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable
from typing import Any, Final, Protocol, TypeVar

from pybroker.errors import MalformedInput
from pybroker.wire import primitives
from pybroker.wire.schema import (
    Kind,
    Message,
    MessageT,
    WireField,
    memoized,
    minimum_element_size,
    wire_fields,
)
from pybroker.wire.source import Source

DecodedT = TypeVar("DecodedT", bound=Message, covariant=True)


class Decoder(Protocol[DecodedT]):
    """Returns the message at the start of a buffer, and the position after the message.
    `elements_max` limits the elements of all arrays together (default:
    `primitives.REQUEST_ELEMENTS_MAX`)."""

    def __call__(self, data: memoryview, elements_max: int = ..., /) -> tuple[DecodedT, int]: ...


_NUMBERS_AS_ONE: Final = 16
_LENGTH_LETTER: Final = {Kind.STRING: "h", Kind.BYTES: "i", Kind.RECORDS: "i"}


@memoized
def decoder(message_class: type[MessageT], version: int, flexible: bool) -> Decoder[MessageT]:
    """Return a function that decodes a `message_class` in this version from the start of a buffer.
    `flexible`: the version has compact types and tagged fields."""
    compiler = _DecoderCompiler(version, flexible)
    source = compiler.source
    source.line(f"def decode(data, room={primitives.REQUEST_ELEMENTS_MAX}):")
    source.indent()
    source.line("end = len(data)")
    source.line("p = 0")
    target = compiler.structure(message_class)
    source.line(f"return {target}, p")
    compiled: Decoder[MessageT] = source.function("decode")
    return compiled


class _DecoderCompiler:
    """A writer of the source text of one decoding function. `pending` has the variables and
    `struct` formats for the next `struct` call. In the generated text, `p` is the position and `n`
    the last decoded length."""

    def __init__(self, version: int, flexible: bool) -> None:
        self.version = version
        self.flexible = flexible
        self.source = Source(
            new=object.__new__,
            Malformed=MalformedInput,
            UUID=uuid.UUID,
            unpack_from=struct.unpack_from,
            uvarint=primitives.read_uvarint,
            skip_tagged_fields=primitives.skip_tagged_fields,
            read_tag=primitives.read_tag,
        )
        self.pending: list[tuple[str, str]] = []

    def structure(self, message_class: type[Message]) -> str:
        """Append to `self.source` the statements that decode a `message_class`. Return the name of
        the variable that holds the decoded message."""
        target = self.source.variable("m")
        self.source.line(f"{target} = new({self.source.constant(message_class)})")
        tagged = []
        for field in wire_fields(message_class):
            attribute = f"{target}.{field.name}"
            if not field.wire.exists_in(self.version):
                self.set_default(attribute, field)
            elif field.wire.tag is not None:
                self.set_default(attribute, field)
                tagged.append(field)
            elif field.wire.is_array:
                self.array(attribute, field, f"{message_class.__name__}.{field.name}")
            else:
                self.value(attribute, field, f"{message_class.__name__}.{field.name}")
        self.flush()
        if self.flexible:
            self.tagged_section(target, message_class, tagged)
        return target

    def set_default(self, attribute: str, field: WireField) -> None:
        default = "[]" if field.is_fresh_list else self.source.constant(field.default)
        self.source.line(f"{attribute} = {default}")

    def value(self, attribute: str, field: WireField, name: str) -> None:
        """Generate the code that decodes `field`, which is not an array, into `attribute`. `name`
        is for error messages."""
        wire = field.wire
        if wire.kind is Kind.UUID:
            raw = self.source.variable("u")
            self.pending.append((raw, wire.kind.value))
            self.flush()
            self.source.line(f"{attribute} = UUID(bytes={raw})")
        elif wire.kind.is_fixed:
            self.pending.append((attribute, wire.kind.value))
        elif wire.element is not None:
            self.flush()
            self.source.line(f"{attribute} = {self.structure(wire.element)}")
        else:
            if wire.kind is Kind.RECORDS and self.flexible:
                self.records_length()
            else:
                self.length(_LENGTH_LETTER[wire.kind])
            self.nullable(attribute, wire.is_nullable_in(self.version), name)
            self.sized(attribute, wire.kind, name)
            self.source.dedent()

    def length(self, letter: str) -> None:
        """Generate the code that decodes a length or an element count into `n`; -1 means null.
        `letter` is the `struct` format in versions that are not flexible."""
        if self.flexible:
            self.flush()
            self.uvarint("n")
            self.source.line("n -= 1")
        else:
            self.pending.append(("n", letter))
            self.flush()

    def records_length(self) -> None:
        """Generate the statements that read the length of record batches and assign it to `n`. Only
        for flexible versions, in which the length is a varint."""
        self.flush()
        for line in (
            "n = data[p]",
            "if n < 128: p += 1",
            "elif data[p + 1] < 128:",
            "    n = n & 127 | data[p + 1] << 7",
            "    p += 2",
            "elif data[p + 2] < 128:",
            "    n = n & 127 | (data[p + 1] & 127) << 7 | data[p + 2] << 14",
            "    p += 3",
            "else: n, p = uvarint(data, p)",
            "n -= 1",
        ):
            self.source.line(line)

    def uvarint(self, target: str) -> None:
        """Generate the code that decodes an unsigned varint into the variable `target`."""
        self.source.line(f"{target} = data[p]")
        self.source.line(f"if {target} > 127: {target}, p = uvarint(data, p)")
        self.source.line("else: p += 1")

    def nullable(self, attribute: str, allowed: bool, name: str) -> None:
        """Generate the code for a negative length `n`, up to the line `else:`. The caller generates
        the `else` branch and then calls `dedent`. The length -1 means null if null is `allowed`;
        any other negative length raises MalformedInput."""
        source = self.source
        source.line("if n < 0:")
        source.indent()
        if allowed:
            complaint = f"{name}: the length is below -1 (null)"
            source.line(f"if n != -1: raise Malformed({complaint!r})")
            source.line(f"{attribute} = None")
        else:
            source.line(f"raise Malformed({f'{name} must not be null'!r})")
        source.dedent()
        source.line("else:")
        source.indent()

    def sized(self, attribute: str, kind: Kind, name: str) -> None:
        """Generate the code that sets `attribute` to a decoded value. The value's length is already
        decoded. The value is text, a copy of the bytes, or (for record batches) a slice of the
        input."""
        source = self.source
        source.line("q = p + n")
        complaint = f"{name}: the length exceeds the remaining bytes of the message"
        source.line(f"if q > end: raise Malformed({complaint!r})")
        if kind is Kind.STRING:
            if self.flexible:
                limit = primitives.STRING_LENGTH_MAX
                complaint = f"{name}: the string has more than {limit} bytes"
                source.line(f"if n > {limit}: raise Malformed({complaint!r})")
            source.line(f"{attribute} = str(data[p:q], 'utf-8')")
        elif kind is Kind.BYTES:
            source.line(f"{attribute} = bytes(data[p:q])")
        else:
            source.line(f"{attribute} = data[p:q]")
        source.line("p = q")

    def array(self, attribute: str, field: WireField, name: str) -> None:
        """Generate the code that decodes an array into `attribute`: the element count, then the
        elements. `name` is for error messages."""
        source, wire = self.source, field.wire
        self.length("i")
        self.nullable(attribute, wire.is_nullable_in(self.version), name)
        size = max(1, minimum_element_size(wire, self.version, self.flexible))
        complaint = f"{name}: the element count exceeds the remaining bytes of the message"
        source.line(f"if n * {size} > end - p: raise Malformed({complaint!r})")
        # One call decodes all numbers of an array, so a number takes less time than a structure.
        charged = f"n // {_NUMBERS_AS_ONE}" if wire.kind.is_fixed else "n"
        self.charge(charged)
        if wire.kind.is_fixed:
            unpacked = f"list(unpack_from(f'>{{n}}{wire.kind.value}', data, p))"
            source.line(f"{attribute} = {unpacked} if n else []")
            source.line(f"p += n * {size}")
            source.dedent()
            return
        items = source.variable("items")
        source.line(f"{attribute} = {items} = []")
        source.line(f"for {source.variable('i')} in range(n):")
        source.indent()
        if wire.element is not None:
            source.line(f"{items}.append({self.structure(wire.element)})")
        else:
            self.length("h")
            source.line(f"if n < 0: raise Malformed({f'{name}: a string of the array is null'!r})")
            self.sized("text", wire.kind, name)
            source.line(f"{items}.append(text)")
        source.dedent()
        source.dedent()

    def charge(self, count: str) -> None:
        """Generate the code that subtracts `count`, an expression, from the number of array
        elements that the message may still have. The code raises MalformedInput if the difference
        is negative."""
        self.source.line(f"room -= {count}")
        complaint = "the arrays of the message have too many elements"
        self.source.line(f"if room < 0: raise Malformed({complaint!r})")

    def tagged_section(self, target: str, cls: type[Message], tagged: list[WireField]) -> None:
        source = self.source
        if not tagged:
            source.line("if data[p]:")
            source.indent()
            # `skip_tagged_fields` rejects a count that does not fit into one byte.
            self.charge("data[p]")
            source.line("p = skip_tagged_fields(data, p)")
            source.dedent()
            source.line("else: p += 1")
            return
        count, tag, size, seen, stop = (source.variable(name) for name in ("c", "t", "s", "d", "e"))
        self.uvarint(count)
        source.line(f"if {count}:")
        source.indent()
        complaint = f"{cls.__name__}: the count of tagged fields exceeds the remaining bytes"
        source.line(f"if 2 * {count} > end - p: raise Malformed({complaint!r})")
        self.charge(count)
        source.line(f"{seen} = set()")
        source.line(f"for {source.variable('i')} in range({count}):")
        source.indent()
        source.line(f"{tag}, {size}, p = read_tag(data, p)")
        source.line(f"if {tag} in {seen}: raise Malformed(f'tag {{{tag}}} occurs twice')")
        source.line(f"{seen}.add({tag})")
        source.line(f"{stop} = p + {size}")
        for field in tagged:
            name = f"{cls.__name__}.{field.name}"
            source.line(f"if {tag} == {field.wire.tag}:")
            source.indent()
            if field.wire.is_array:
                self.array(f"{target}.{field.name}", field, name)
            else:
                self.value(f"{target}.{field.name}", field, name)
            self.flush()
            complaint = f"{name}: the value does not end at the declared size of the tagged field"
            source.line(f"if p != {stop}: raise Malformed({complaint!r})")
            source.dedent()
        source.line(f"p = {stop}")
        source.dedent()
        source.dedent()

    def flush(self) -> None:
        """Generate one `struct` call that decodes all fields in `pending`, and clear `pending`."""
        if not self.pending:
            return
        layout = struct.Struct(">" + "".join(letter for _, letter in self.pending))
        targets = ", ".join(target for target, _ in self.pending)
        unpack: Callable[..., Any] = layout.unpack_from
        self.source.line(f"{targets}, = {self.source.constant(unpack)}(data, p)")
        self.source.line(f"p += {layout.size}")
        self.pending = []
