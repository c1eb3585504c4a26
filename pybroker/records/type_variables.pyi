"""The defaults are the types without serializers. They need Python 3.13; before, only type checkers
know them."""

from typing_extensions import TypeVar

from pybroker.ports import Buffer

Key_co = TypeVar("Key_co", default=bytes | None, covariant=True)
Value_co = TypeVar("Value_co", default=bytes | None, covariant=True)
Key_contra = TypeVar("Key_contra", default=Buffer, contravariant=True)
Value_contra = TypeVar("Value_contra", default=Buffer, contravariant=True)
