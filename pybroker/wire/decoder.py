"""Compiles a declaration into one Python function that decodes one version of a message.

The whole message, nested structures included, becomes a single function: neighbouring fields of
fixed size are read by one `struct` call, and no function is called for each element. Nesting is
bounded by the declarations, since no structure contains itself.

The generated function raises MalformedInput or one of primitives.DECODING_ERRORS. It never
allocates by a count that it has not compared with the bytes that remain, nor more elements than
its second argument allows.
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
    """`elements_max` bounds the elements of all arrays together; messages to a broker must be
    bounded (`primitives.REQUEST_ELEMENTS_MAX`, the default)."""

    def __call__(self, data: memoryview, elements_max: int = ..., /) -> tuple[DecodedT, int]: ...


_NUMBERS_AS_ONE: Final = 16
_LENGTH_LETTER: Final = {Kind.STRING: "h", Kind.BYTES: "i", Kind.RECORDS: "i"}


@memoized
def decoder(message_class: type[MessageT], version: int, flexible: bool) -> Decoder[MessageT]:
    """Return a function that decodes `message_class` at the start of a buffer and returns its
    end."""
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
    """Writes the function's body. `pending` are fixed-size targets that one `struct` call will
    fill."""

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
        """Emits the decoding of one structure; returns the variable that holds it."""
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
        """One value that is no array."""
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
        """Puts a length or count into `n`; -1 is null."""
        if self.flexible:
            self.flush()
            self.uvarint("n")
            self.source.line("n -= 1")
        else:
            self.pending.append(("n", letter))
            self.flush()

    def records_length(self) -> None:
        """As `length`, with lengths of two or three bytes, which batches have, read inline."""
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
        """Most varints have one byte; the rest take the slow path."""
        self.source.line(f"{target} = data[p]")
        self.source.line(f"if {target} > 127: {target}, p = uvarint(data, p)")
        self.source.line("else: p += 1")

    def nullable(self, attribute: str, allowed: bool, name: str) -> None:
        """Handles n < 0 and opens the branch for the rest."""
        source = self.source
        source.line("if n < 0:")
        source.indent()
        if allowed:
            source.line(f"if n != -1: raise Malformed({f'{name}: negative length'!r})")
            source.line(f"{attribute} = None")
        else:
            source.line(f"raise Malformed({f'{name} may not be null'!r})")
        source.dedent()
        source.line("else:")
        source.indent()

    def sized(self, attribute: str, kind: Kind, name: str) -> None:
        """`n` bytes at `p`."""
        source = self.source
        source.line("q = p + n")
        source.line(f"if q > end: raise Malformed({f'{name} reaches beyond the end'!r})")
        if kind is Kind.STRING:
            if self.flexible:
                limit = primitives.STRING_LENGTH_MAX
                source.line(f"if n > {limit}: raise Malformed({f'{name} is too long'!r})")
            source.line(f"{attribute} = str(data[p:q], 'utf-8')")
        elif kind is Kind.BYTES:
            source.line(f"{attribute} = bytes(data[p:q])")
        else:
            source.line(f"{attribute} = data[p:q]")
        source.line("p = q")

    def array(self, attribute: str, field: WireField, name: str) -> None:
        """A count, then the elements."""
        source, wire = self.source, field.wire
        self.length("i")
        self.nullable(attribute, wire.is_nullable_in(self.version), name)
        size = max(1, minimum_element_size(wire, self.version, self.flexible))
        complaint = f"{name}: more elements than the remaining bytes can hold"
        source.line(f"if n * {size} > end - p: raise Malformed({complaint!r})")
        # Numbers are read by one call, and cost a fraction of a structure.
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
            source.line(f"if n < 0: raise Malformed({f'{name}: an element is null'!r})")
            self.sized("text", wire.kind, name)
            source.line(f"{items}.append(text)")
        source.dedent()
        source.dedent()

    def charge(self, count: str) -> None:
        """Takes elements out of the message's total."""
        self.source.line(f"room -= {count}")
        self.source.line("if room < 0: raise Malformed('too many elements in all arrays together')")

    def tagged_section(self, target: str, cls: type[Message], tagged: list[WireField]) -> None:
        source = self.source
        if not tagged:
            source.line("if data[p]:")
            source.indent()
            self.charge("data[p]")  # the count: a larger one than a byte tells is refused below
            source.line("p = skip_tagged_fields(data, p)")
            source.dedent()
            source.line("else: p += 1")
            return
        count, tag, size, seen, stop = (source.variable(name) for name in ("c", "t", "s", "d", "e"))
        self.uvarint(count)
        source.line(f"if {count}:")
        source.indent()
        source.line(f"if 2 * {count} > end - p: raise Malformed('too many tagged fields')")
        self.charge(count)
        source.line(f"{seen} = set()")
        source.line(f"for {source.variable('i')} in range({count}):")
        source.indent()
        source.line(f"{tag}, {size}, p = read_tag(data, p)")
        source.line(f"if {tag} in {seen}: raise Malformed(f'tag {{{tag}}} is given twice')")
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
            complaint = f"{name}: the size of the tagged field is wrong"
            source.line(f"if p != {stop}: raise Malformed({complaint!r})")
            source.dedent()
        source.line(f"p = {stop}")
        source.dedent()
        source.dedent()

    def flush(self) -> None:
        """Emits the `struct` call for the fixed-size fields collected so far."""
        if not self.pending:
            return
        layout = struct.Struct(">" + "".join(letter for _, letter in self.pending))
        targets = ", ".join(target for target, _ in self.pending)
        unpack: Callable[..., Any] = layout.unpack_from
        self.source.line(f"{targets}, = {self.source.constant(unpack)}(data, p)")
        self.source.line(f"p += {layout.size}")
        self.pending = []
