"""Outlines of the project's Python files, for the tests that check the source code."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
LINKED: Final = ("coordinator", "tools", "spark")
FOUND_BY_SPARK: Final = "pyspark_pybroker"
TEST_FOLDERS: Final = ("unit_tests", "integration_tests")
OTHER_FOLDERS: Final = ("benchmarks", "docs")
Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Import:
    """One imported name: `module`, or `module.name` where `name` may be a module too."""

    line: int
    module: str
    name: str | None
    inside_function: bool

    @property
    def candidates(self) -> tuple[str, ...]:
        """Return the dotted names that the import may mean, the longest first."""
        return (f"{self.module}.{self.name}", self.module) if self.name else (self.module,)


@dataclass(frozen=True)
class Outline:
    """The facts of one file that the rules check, without its syntax tree."""

    docstring: str | None
    statements: tuple[type[ast.stmt], ...]
    """The kinds of the top-level statements."""
    imports: tuple[Import, ...]
    """The imported names of all import statements, in order."""
    functions: tuple[tuple[str, int, int], ...]
    """(name, line, length in lines) of every function."""
    calls: tuple[tuple[int, str], ...]
    """(line, dotted text) of every call of a plain dotted name."""
    docstrings: tuple[tuple[int, str], ...]
    """(line, text) of the docstrings of the module, its classes and functions."""


@dataclass(frozen=True)
class Source:
    """One Python file and the dotted name by which it is imported."""

    module: str
    path: Path
    text: str

    @property
    def is_package(self) -> bool:
        return self.path.name == "__init__.py"

    @property
    def label(self) -> str:
        return str(self.path.relative_to(ROOT))

    @cached_property
    def outline(self) -> Outline:
        tree = ast.parse(self.text, str(self.path))
        reader = _Reader()
        reader.visit(tree)
        return Outline(
            ast.get_docstring(tree),
            tuple(type(node) for node in tree.body),
            tuple(reader.imports),
            tuple(reader.functions),
            tuple(reader.calls),
            tuple(reader.docstrings),
        )


@cache
def package_sources() -> list[Source]:
    """Return every installed module, including modules behind symlinks."""
    found = [
        _source(path, _module(path, package))
        for package in ("pybroker", FOUND_BY_SPARK)
        for path in _python(ROOT / package)
    ]
    for folder in LINKED:
        found += [
            _source(path, _module(path, f"pybroker.{folder}")) for path in _python(ROOT / folder)
        ]
    return found


@cache
def other_sources() -> list[Source]:
    """Return the tests, benchmarks and all other Python files of the project."""
    return [
        _source(path, _module(path, folder))
        for folder in (*TEST_FOLDERS, *OTHER_FOLDERS)
        for path in _python(ROOT / folder)
    ]


def _python(folder: Path) -> list[Path]:
    """Yield the Python files below the folder, without following symlinks."""
    return sorted(path for path in folder.rglob("*.py") if not _behind_link(path, folder))


def _behind_link(path: Path, folder: Path) -> bool:
    return any(parent.is_symlink() for parent in path.parents if parent.is_relative_to(folder))


def _module(path: Path, package: str) -> str:
    top = ROOT / package.rsplit(".", 1)[-1]
    parts = path.relative_to(top).with_suffix("").parts
    return ".".join((package, *(part for part in parts if part != "__init__")))


def _source(path: Path, module: str) -> Source:
    return Source(module, path, path.read_text())


class _Reader(ast.NodeVisitor):
    """A visitor that collects an outline in one walk of the syntax tree."""

    def __init__(self) -> None:
        self.imports: list[Import] = []
        self.functions: list[tuple[str, int, int]] = []
        self.calls: list[tuple[int, str]] = []
        self.docstrings: list[tuple[int, str]] = []
        self._inside_function = False

    def visit_Module(self, node: ast.Module) -> None:
        self._describe(node)
        self.generic_visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._describe(node)
        self.generic_visit(node)

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self._note(node.lineno, alias.name, None)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        module = "." * node.level + (node.module or "")
        for alias in node.names:
            self._note(node.lineno, module, alias.name)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        length = (node.end_lineno or node.lineno) - node.lineno + 1
        self.functions.append((node.name, node.lineno, length))
        self._describe(node)
        before, self._inside_function = self._inside_function, True
        self.generic_visit(node)
        self._inside_function = before

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Call(self, node: ast.Call) -> None:
        if name := dotted(node.func):
            self.calls.append((node.lineno, name))
        self.generic_visit(node)

    def _describe(self, node: Documented) -> None:
        if text := ast.get_docstring(node):
            self.docstrings.append((node.body[0].lineno, text))

    def _note(self, line: int, module: str, name: str | None) -> None:
        self.imports.append(Import(line, module, name, self._inside_function))


def dotted(node: ast.expr) -> str:
    """Return the text of a plain dotted name; empty for any other expression."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (left := dotted(node.value)):
        return f"{left}.{node.attr}"
    return ""
