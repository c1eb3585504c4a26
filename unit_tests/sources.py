"""The project's Python files as parsed trees, for the tests that look at the code itself."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
LINKED: Final = ("coordinator", "tools", "spark")
FOUND_BY_SPARK: Final = "pyspark_pybroker"
TEST_FOLDERS: Final = ("unit_tests", "integration_tests")
OTHER_FOLDERS: Final = ("benchmarks", "docs")


@dataclass(frozen=True)
class Source:
    """One Python file under the name by which it is imported."""

    module: str
    path: Path
    text: str
    tree: ast.Module

    @property
    def is_package(self) -> bool:
        return self.path.name == "__init__.py"

    @property
    def label(self) -> str:
        return str(self.path.relative_to(ROOT))


@dataclass(frozen=True)
class Import:
    """One imported name: `module`, or `module.name` where `name` may be a module too."""

    line: int
    module: str
    name: str | None
    inside_function: bool
    for_types_only: bool

    @property
    def candidates(self) -> tuple[str, ...]:
        """The dotted names that may be meant, the longest first."""
        return (f"{self.module}.{self.name}", self.module) if self.name else (self.module,)


def package_sources() -> list[Source]:
    """Every module that is installed, those behind the symlinks too."""
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


def other_sources() -> list[Source]:
    """Tests, benchmarks and whatever else is Python here."""
    return [
        _source(path, _module(path, folder))
        for folder in (*TEST_FOLDERS, *OTHER_FOLDERS)
        for path in _python(ROOT / folder)
    ]


def imports_of(source: Source) -> Iterator[Import]:
    """Every import statement's names, in order."""
    yield from _imports(source.tree, inside_function=False, for_types_only=False)


def functions_of(source: Source) -> Iterator[tuple[str, int, int]]:
    """(name, line, length in lines) of every function."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, node.lineno, (node.end_lineno or node.lineno) - node.lineno + 1


def calls_of(source: Source) -> Iterator[tuple[int, str]]:
    """(line, dotted text) of every call of a plain dotted name."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Call):
            yield node.lineno, ast.unparse(node.func)


def _python(folder: Path) -> list[Path]:
    """Python files below the folder, not following symlinks."""
    return sorted(path for path in folder.rglob("*.py") if not _behind_link(path, folder))


def _behind_link(path: Path, folder: Path) -> bool:
    return any(parent.is_symlink() for parent in path.parents if parent.is_relative_to(folder))


def _module(path: Path, package: str) -> str:
    top = ROOT / package.rsplit(".", 1)[-1]
    parts = path.relative_to(top).with_suffix("").parts
    return ".".join((package, *(part for part in parts if part != "__init__")))


def _source(path: Path, module: str) -> Source:
    text = path.read_text()
    return Source(module, path, text, ast.parse(text, str(path)))


def _imports(node: ast.AST, *, inside_function: bool, for_types_only: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            for alias in child.names:
                yield Import(child.lineno, alias.name, None, inside_function, for_types_only)
        elif isinstance(child, ast.ImportFrom):
            module = "." * child.level + (child.module or "")
            for alias in child.names:
                yield Import(child.lineno, module, alias.name, inside_function, for_types_only)
        else:
            guarded = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
            function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from _imports(
                child,
                inside_function=inside_function or function,
                for_types_only=for_types_only or guarded,
            )
