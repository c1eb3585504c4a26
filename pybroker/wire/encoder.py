"""Compiles the declaration of a message into a Python function that encodes one version of the
message. The function raises ValueError or struct.error for a message that the version cannot
represent."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

from pybroker.wire import primitives
from pybroker.wire.primitives import Buffer
from pybroker.wire.schema import Kind, Message, WireField, memoized, wire_fields
from pybroker.wire.source import Source

# The encoder copies smaller record batches, because a copy is cheaper than an additional buffer in
# the vectored write. Larger batches become buffers of their own.
SCATTER_BYTES_MIN: Final = 4096

Encoder = Callable[[Message], list[Buffer]]


@memoized
def encoder(message_class: type[Message], version: int, flexible: bool) -> Encoder:
    """Return a function that encodes a message into buffers, to be sent in their order. `flexible`:
    the version has compact types and tagged fields."""
    compiler = _EncoderCompiler(version, flexible)
    source = compiler.source
    source.line("def encode(m):")
    source.indent()
    source.line("parts = []")
    source.line("out = bytearray()")
    compiler.structure("m", message_class)
    source.line("if out: parts.append(out)")
    source.line("return parts")
    compiled: Encoder = source.function("encode")
    return compiled


class _EncoderCompiler:
    """A writer of the source text of one encoding function. `pending` has the expressions and
    `struct` formats for the next `struct` call. `out` is the name of the variable with the current
    output."""

    def __init__(self, version: int, flexible: bool) -> None:
        self.version = version
        self.flexible = flexible
        self.source = Source(pack=struct.pack, uvarint=primitives.encode_uvarint)
        self.pending: list[tuple[str, str]] = []
        self.out = "out"

    def structure(self, target: str, message_class: type[Message]) -> None:
        """Generate the source code that encodes a message of `message_class`. `target` is the name
        of the variable that contains the message."""
        tagged = []
        for field in wire_fields(message_class):
            attribute = f"{target}.{field.name}"
            name = f"{message_class.__name__}.{field.name}"
            if not field.wire.exists_in(self.version) or (
                field.wire.tag is not None and not self.flexible
            ):
                self.check_absent(attribute, field, name)
            elif field.wire.tag is not None:
                tagged.append(field)
            elif field.wire.is_array:
                self.array(attribute, field, name)
            else:
                self.value(attribute, field, name)
        self.flush()
        if self.flexible:
            self.tagged_section(target, message_class, tagged)

    def check_absent(self, attribute: str, field: WireField, name: str) -> None:
        """Generate the check of a field that this version lacks. The generated code raises
        ValueError if `attribute` differs from the default value. An ignorable field has no
        check."""
        if field.wire.ignorable:
            return
        complaint = f"{name} is set, but version {self.version} has no such field"
        is_set = self.differs_from_default(attribute, field)
        self.source.line(f"if {is_set}: raise ValueError({complaint!r})")

    def differs_from_default(self, attribute: str, field: WireField) -> str:
        """Return an expression that is true if `attribute` differs from the default of the
        field."""
        if field.is_fresh_list:
            return attribute
        if field.default is None:
            return f"{attribute} is not None"
        return f"{attribute} != {self.source.constant(field.default)}"

    def value(self, attribute: str, field: WireField, name: str) -> None:
        """Generate the code that encodes `attribute`, a field that is not an array. `name` is for
        error messages."""
        wire = field.wire
        if wire.kind is Kind.UUID:
            self.pending.append((f"{attribute}.bytes", wire.kind.value))
        elif wire.kind.is_fixed:
            self.pending.append((attribute, wire.kind.value))
        elif wire.element is not None:
            self.flush()
            nested = self.source.variable("m")
            self.source.line(f"{nested} = {attribute}")
            self.structure(nested, wire.element)
        else:
            self.sized(attribute, wire.kind, wire.is_nullable_in(self.version), name)

    def sized(self, expression: str, kind: Kind, nullable: bool, name: str) -> None:
        """Generate the code that encodes `expression` (text, bytes or record batches): the length,
        then the bytes. `nullable`: the value may be None. `name` is for error messages."""
        source = self.source
        value, length = source.variable("v"), source.variable("n")
        source.line(f"{value} = {expression}")
        source.line(f"if {value} is None:")
        source.indent()
        if nullable:
            source.line(f"{value} = b''")
            source.line(f"{length} = -1")
        else:
            self.refuse_null(name)
        source.dedent()
        source.line("else:")
        source.indent()
        if kind is Kind.STRING:
            source.line(f"{value} = {value}.encode()")
        size = f"{value}.nbytes if type({value}) is memoryview else len({value})"
        source.line(f"{length} = {size if kind is Kind.RECORDS else f'len({value})'}")
        if kind is Kind.STRING:
            limit = primitives.STRING_LENGTH_MAX
            complaint = f"{name}: the string has more than {limit} bytes"
            source.line(f"if {length} > {limit}: raise ValueError({complaint!r})")
        source.dedent()
        self.length(length, "h" if kind is Kind.STRING else "i")
        if kind is Kind.RECORDS:
            smallest = SCATTER_BYTES_MIN + self.flexible  # a compact length is the size plus one
            source.line(f"if {length} < {smallest}: {self.out} += {value}")
            source.line("else:")
            source.indent()
            source.line(f"parts.append({self.out})")
            source.line(f"parts.append({value})")
            source.line(f"{self.out} = bytearray()")
            source.dedent()
        else:
            source.line(f"{self.out} += {value}")

    def refuse_null(self, name: str) -> None:
        complaint = f"{name} must not be null in version {self.version}"
        self.source.line(f"raise ValueError({complaint!r})")

    def length(self, variable: str, letter: str) -> None:
        """Generate the code that encodes the number in `variable`, a length or count; -1 means
        null. `letter` is the `struct` format in versions that are not flexible."""
        if not self.flexible:
            self.pending.append((variable, letter))
            self.flush()
            return
        self.flush()
        self.source.line(f"{variable} += 1")
        self.uvarint(variable)

    def uvarint(self, variable: str) -> None:
        """Generate the code that encodes an unsigned varint. In the generated code, the variable
        named `variable` contains the number to encode."""
        self.source.line(f"if {variable} < 128: {self.out}.append({variable})")
        self.source.line(f"else: {self.out} += uvarint({variable})")

    def array(self, attribute: str, field: WireField, name: str) -> None:
        """Append source lines that encode an array: the element count, then the elements.
        `attribute` is the expression of the array. `name` is for error messages."""
        source, wire = self.source, field.wire
        items, count = source.variable("items"), source.variable("n")
        source.line(f"{items} = {attribute}")
        source.line(f"if {items} is None:")
        source.indent()
        if wire.is_nullable_in(self.version):
            source.line(f"{items} = ()")
            source.line(f"{count} = -1")
        else:
            self.refuse_null(name)
        source.dedent()
        source.line(f"else: {count} = len({items})")
        self.length(count, "i")
        if wire.kind.is_fixed:
            letter = wire.kind.value
            packed = f"pack(f'>{{len({items})}}{letter}', *{items})"
            source.line(f"if {items}: {self.out} += {packed}")
            return
        item = source.variable("m")
        source.line(f"for {item} in {items}:")
        source.indent()
        if wire.element is not None:
            self.structure(item, wire.element)
        else:
            self.sized(item, wire.kind, False, name)
        source.dedent()

    def tagged_section(self, target: str, cls: type[Message], tagged: list[WireField]) -> None:
        """Generate the code that encodes the `tagged` fields of the variable `target`, in order of
        their tags. Fields with their default value are omitted."""
        source = self.source
        if not tagged:
            source.line(f"{self.out}.append(0)")
            return
        tagged = sorted(tagged, key=lambda field: field.wire.tag or 0)
        conditions = [self.differs_from_default(f"{target}.{f.name}", f) for f in tagged]
        count = source.variable("n")
        source.line(f"{count} = {' + '.join(f'bool({condition})' for condition in conditions)}")
        self.uvarint(count)
        source.line(f"if {count}:")
        source.indent()
        outer = self.out
        for field, condition in zip(tagged, conditions, strict=True):
            name = f"{cls.__name__}.{field.name}"
            source.line(f"if {condition}:")
            source.indent()
            self.out = source.variable("part")
            source.line(f"{self.out} = bytearray()")
            if field.wire.is_array:
                self.array(f"{target}.{field.name}", field, name)
            else:
                self.value(f"{target}.{field.name}", field, name)
            self.flush()
            head = primitives.encode_uvarint(field.wire.tag or 0)
            source.line(f"{outer} += {head!r} + uvarint(len({self.out})) + {self.out}")
            self.out = outer
            source.dedent()
        source.dedent()

    def flush(self) -> None:
        """Append one call of `struct` to the generated source. The call packs all fields in
        `pending`. Then empty `pending`."""
        if not self.pending:
            return
        layout = struct.Struct(">" + "".join(letter for _, letter in self.pending))
        values = ", ".join(expression for expression, _ in self.pending)
        self.source.line(f"{self.out} += {self.source.constant(layout.pack)}({values})")
        self.pending = []
