"""The type variables of keys and values. Type checkers read `type_variables.pyi`, which also has
their defaults."""

from __future__ import annotations

from typing import TypeVar

Key_co = TypeVar("Key_co", covariant=True)
Value_co = TypeVar("Value_co", covariant=True)
Key_contra = TypeVar("Key_contra", contravariant=True)
Value_contra = TypeVar("Value_contra", contravariant=True)
