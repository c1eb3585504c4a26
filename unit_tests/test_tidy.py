"""Tests of the rules of the code base. Each message of a failed test says how to comply."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Final

import pytest

from unit_tests import lateness, sources, wording
from unit_tests.layers import FORBIDDEN, ORDER, TELLS_TIME, TIMED_FROM
from unit_tests.sources import LINKED, ROOT, Import, Source

MODULE_LINES_MAX: Final = 500
FUNCTION_LINES_MAX: Final = 60
TEXT_SUFFIXES: Final = frozenset(
    {
        ".py",
        ".pyx",
        ".pxi",
        ".pyi",
        ".rst",
        ".cfg",
        ".toml",
        ".txt",
        ".properties",
        ".ini",
        ".in",
        ".java",
    }
    | {".js", ".yaml", ""}
)

# Written in pieces, so that this file passes its own test.
UNWANTED_WORDS: Final = {
    "unfinished work": r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X)\b",
    "a stub": r"NotImplemented" + r"Error",
    "a place outside the project": r"\.\./sha" + r"red\b",
    "a place of one machine": r"(?<![\w.])/wo" + r"rk/|/ro" + r"ot/",
    "a number of a work item": r"\b[Ii]ss" + r"ue #?\d",
}
COUNTS_TURNS: Final = "unit_tests/idle_loop.py"
"""The only file that may count turns of the event loop, for tests that interrupt the code at every
possible turn.
"""
SNAKE_EVENT: Final = re.compile(
    r"\b(?:log|state_change)\.(?:debug|info|warning|error|exception|critical|log)"
    r"\((?:[\w.]+,)?\s*f?\"([a-z]+(?:_[a-z]+)+)(?=[ \"])"
)
"""A log line whose event is a name with underscores, not words."""
CLOCK_CALLS: Final = re.compile(r"(datetime\.)?(datetime|date)\.(now|utcnow|today)")

FLOORS: Final = {
    (room if room == "pybroker" else f"pybroker.{room}"): [
        set(names.split()) for names in text.split("|")
    ]
    for room, _, text in (
        line.partition(":") for line in ORDER.replace("\n    ", " ").strip().split("\n")
    )
}
"""Room -> its floors, the lowest first."""

PACKAGE: Final = sources.package_sources()
TESTS: Final = sources.other_sources()


def floor(room: str, name: str) -> int:
    """Return the floor of a module or inner room in a room; 0 is the lowest."""
    floors = FLOORS.get(room, [{"*"}])
    found = [number for number, names in enumerate(floors) if name in names]
    found += [number for number, names in enumerate(floors) if "*" in names]
    assert found, f"{room}.{name} is on no floor: add it to ORDER in unit_tests/layers.py"
    return found[0]


def may_import(importer: str, imported: str) -> bool:
    """Return whether ORDER lets a module import another module."""
    if imported in ("pybroker", importer) or imported.startswith(importer + "."):
        return True  # the version, or a re-export of a package's own modules
    mine, theirs = importer.split("."), imported.split(".")
    depth = next(n for n, name in enumerate(mine) if theirs[n : n + 1] != [name])
    if depth == 0:
        return True  # pyspark_pybroker stands outside
    if depth == len(theirs):
        return False  # a package that holds the importer
    room = ".".join(mine[:depth])
    return floor(room, theirs[depth]) < floor(room, mine[depth])


def starts_with(module: str, prefix: str) -> bool:
    return module == prefix or module.startswith(prefix + ".")


def offences(items: list[Source], against: Callable[[Source], list[str]]) -> str:
    """Return the violations in the files, one line each; empty if there are none."""
    return "".join(f"\n{source.label}: {each}" for source in items for each in against(source))


def clock_readings(source: Source) -> list[str]:
    """Return the lines in which a module reads a clock of the machine."""
    imports = [
        f"line {item.line}: import time" for item in source.outline.imports if item.module == "time"
    ]
    return imports + [
        f"line {line}: {call}" for line, call in source.outline.calls if CLOCK_CALLS.fullmatch(call)
    ]


def imported_modules(item: Import, known: set[str]) -> str | None:
    """Return the project's module that an import names; None for other packages."""
    if not starts_with(item.module, "pybroker"):
        return None
    return next((name for name in item.candidates if name in known), item.module)


def written(module: str, text: str) -> Source:
    return Source(module, ROOT / "x.py", text)


@pytest.mark.parametrize(
    ("importer", "imported", "allowed"),
    [
        ("pybroker.ports", "pybroker.errors", True),
        ("pybroker.model", "pybroker.wire.api", False),
        ("pybroker.wire.api", "pybroker.wire.schema", True),
        ("pybroker.wire.api", "pybroker.records.batch", False),
        ("pybroker.wire.messages.fetch", "pybroker.wire.api", False),
        ("pybroker.client.consumer", "pybroker.client.groups.member", True),
        ("pybroker.client.groups.member", "pybroker.client.consumer", False),
        ("pybroker.storage.log", "pybroker.storage.segment", True),
        ("pybroker.storage.segment", "pybroker.storage.log", False),
        ("pybroker.storage.log", "pybroker.storage", False),
        ("pybroker.storage.log", "pybroker.records.batch", True),
        ("pybroker.storage.log", "pybroker.coordinator.zookeeper.paths", False),
        ("pybroker.coordinator.controller.x", "pybroker.coordinator.zookeeper.paths", True),
        ("pybroker.coordinator.zookeeper.x", "pybroker.coordinator.controller.y", False),
        ("pybroker.handlers.fetch", "pybroker.replication.manager", True),
        ("pybroker.server.listener", "pybroker.client.connection", False),
        ("pybroker.tools.topics", "pybroker.broker.app", True),
        ("pybroker.broker.app", "pybroker.tools.topics", False),
    ],
)
def test_may_import_follows_the_order_table(importer: str, imported: str, allowed: bool) -> None:
    assert may_import(importer, imported) is allowed


def test_outlines_have_imports_and_clock_readings() -> None:
    source = written(
        "pybroker.storage.x",
        "import time\nif TYPE_CHECKING:\n    from tools import y\n"
        "def f():\n    from .z import q\n    return datetime.now()\n",
    )
    found = source.outline.imports
    assert [item.module for item in found] == ["time", "tools", ".z"]
    assert [item.inside_function for item in found] == [False, False, True]
    assert source.outline.functions == (("f", 4, 3),)
    assert len(clock_readings(source)) == 2


def test_imports_point_down() -> None:
    known = {source.module for source in PACKAGE}

    def upward(source: Source) -> list[str]:
        return [
            f"line {item.line}: {target}"
            for item in source.outline.imports
            if (target := imported_modules(item, known)) and not may_import(source.module, target)
        ]

    wrong = offences(PACKAGE, upward)
    assert not wrong, f"a module may import lower layers only:{wrong}"


def test_no_room_imports_what_is_forbidden_to_it() -> None:
    def forbidden(source: Source) -> list[str]:
        rooms = [room for room in FORBIDDEN if starts_with(source.module, room)]
        return [
            f"line {item.line}: {name}"
            for item in source.outline.imports
            for name in item.candidates
            for room in rooms
            for prefix in FORBIDDEN[room]
            if starts_with(name, prefix) and not starts_with(name, room)
        ]

    wrong = offences(PACKAGE, forbidden)
    assert not wrong, f"forbidden by unit_tests/layers.py:{wrong}"


def test_imports_are_absolute_and_never_by_a_bare_folder_name() -> None:
    def bare(source: Source) -> list[str]:
        return [
            f"line {item.line}: {item.module}"
            for item in source.outline.imports
            if item.module.startswith(".") or item.module.split(".")[0] in LINKED
        ]

    wrong = offences(PACKAGE + TESTS, bare)
    assert not wrong, f"write: from pybroker.tools.x import y:{wrong}"


def test_imports_are_at_the_top() -> None:
    def inside(source: Source) -> list[str]:
        if source.module == "pybroker.__main__":
            return []
        return [f"line {item.line}" for item in source.outline.imports if item.inside_function]

    wrong = offences(PACKAGE, inside)
    assert not wrong, f"only __main__ imports inside functions:{wrong}"


def test_the_package_itself_imports_nothing() -> None:
    root = next(source for source in PACKAGE if source.module == "pybroker")
    assert not root.outline.imports


def test_modules_stay_small() -> None:
    def long(source: Source) -> list[str]:
        lines = source.text.count("\n")
        return [f"{lines} lines"] if lines > MODULE_LINES_MAX else []

    wrong = offences(PACKAGE + TESTS, long)
    assert not wrong, f"split the module by idea:{wrong}"


def test_functions_stay_small() -> None:
    def long(source: Source) -> list[str]:
        return [
            f"{name} (line {line}): {length} lines"
            for name, line, length in source.outline.functions
            if length > FUNCTION_LINES_MAX
        ]

    wrong = offences(PACKAGE + TESTS, long)
    assert not wrong, f"split the function by idea:{wrong}"


def test_each_module_has_a_docstring() -> None:
    def silent(source: Source) -> list[str]:
        return [] if source.outline.docstring else ["no docstring"]

    wrong = offences(PACKAGE + TESTS, silent)
    assert not wrong, wrong


def test_log_lines_begin_with_words() -> None:
    assert SNAKE_EVENT.findall('log.info(\n    "topic_created topic=%s", topic)') == [
        "topic_created"
    ]
    assert not SNAKE_EVENT.findall('log.info("topic created topic=%s", topic)')

    wrong = offences(PACKAGE, lambda source: SNAKE_EVENT.findall(source.text))
    assert not wrong, f"write the event in words, then key=value:{wrong}"


def test_time_is_read_through_the_clock() -> None:
    timed = floor("pybroker", TIMED_FROM)

    def reads_it(source: Source) -> list[str]:
        room = source.module.split(".")[1:2]
        if source.module in TELLS_TIME or any(floor("pybroker", each) >= timed for each in room):
            return []
        return clock_readings(source)

    wrong = offences(PACKAGE, reads_it)
    assert not wrong, f"take a Clock:{wrong}"


LOADED_ON_DEMAND = frozenset({"pybroker.testing", "pybroker.spark", "pybroker.spark.etl"})
"""Packages that import their names at the first access."""


def test_a_package_file_holds_its_docstring_and_names_of_others_only() -> None:
    def other_statements(source: Source) -> list[str]:
        if not source.is_package:
            return []
        allowed: tuple[type[ast.stmt], ...] = (
            *(ast.Expr, ast.Import, ast.ImportFrom),
            *(ast.Assign, ast.AnnAssign),
        )
        if source.module in LOADED_ON_DEMAND:
            allowed = (*allowed, ast.If, ast.FunctionDef)
        return [kind.__name__ for kind in source.outline.statements if kind not in allowed]

    wrong = offences(PACKAGE, other_statements)
    assert not wrong, f"move it into a module:{wrong}"


def test_dependences_on_the_speed_of_the_machine_are_found() -> None:
    text = (
        "import asyncio\nimport time\n"
        "async def f(n):\n"
        "    await asyncio.sleep(0)\n"
        "    await asyncio.wait_for(g(), PATIENCE_S)\n"
        "    for _ in range(n):\n        await asyncio.sleep(0)\n"
        "    await asyncio.sleep(0)\n    await asyncio.sleep(0)\n"
        "    async with asyncio.timeout(30):\n        took = time.monotonic() - begin\n"
        "    await asyncio.wait_for(g(), timeout=1.5)\n"
        "    assert took < 1\n    assert time.time() - begin < 1\n    assert time.time() > begin\n"
    )
    lines = [each.split(":")[0] for each in lateness.dependences(text)]
    assert lines == [f"line {number}" for number in (3, 6, 10, 12, 13, 14)]


def test_no_test_depends_on_how_fast_a_machine_is() -> None:
    tests = [source for source in TESTS if source.label.startswith(sources.TEST_FOLDERS)]
    waiting = [source for source in tests if source.label != COUNTS_TURNS]
    wrong = offences(waiting, lambda source: lateness.dependences(source.text))
    assert not wrong, wrong


def test_unclear_docstrings_and_test_names_are_found() -> None:
    source = written(
        "unit_tests.test_x",
        '"""What is told."""\nclass C:\n    """Whatever is told."""\n'
        'def test_who_asks():\n    """Nobody asks."""\nasync def what():\n    """Whoever."""\n',
    )
    assert wording.riddles(source) == [
        "line 1: What is told.",
        "line 5: Nobody asks.",
        "line 7: Whoever.",
    ]
    assert wording.riddle_tests(source) == ["line 4: test_who_asks"]
    assert wording.long_subjects(["x" * 72, "y" * 73]) == ["y" * 73]


def test_docstrings_name_their_subject() -> None:
    wrong = offences(PACKAGE + TESTS, wording.riddles)
    assert not wrong, f"begin with the subject, a noun or a verb:{wrong}"


def test_names_of_tests_state_a_behaviour() -> None:
    wrong = offences(TESTS, wording.riddle_tests)
    assert not wrong, f"name subject, verb and object:{wrong}"


def test_subjects_of_commits_are_short() -> None:
    command = ["git", "log", "--format=%s", f"{wording.SUBJECTS_SINCE}..HEAD"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        pytest.skip("the commits are not in this clone")
    wrong = wording.long_subjects(listed.stdout.splitlines())
    assert not wrong, f"at most {wording.SUBJECT_LENGTH_MAX} characters: " + "; ".join(wrong)


def python_folders() -> Iterator[Path]:
    files = {source.path for source in chain(PACKAGE, TESTS)}
    return iter(sorted({path.parent for path in files if "docs" not in path.parts}))


def test_every_folder_with_python_is_a_package() -> None:
    missing = [
        str(folder.relative_to(ROOT))
        for folder in python_folders()
        if not (folder / "__init__.py").exists() and folder.name != "benchmarks"
    ]
    assert not missing, "add __init__.py with a docstring: without it the folder is not packed"


@pytest.mark.parametrize("folder", LINKED)
def test_a_folder_of_the_top_is_a_package_through_a_relative_link(folder: str) -> None:
    link = ROOT / "pybroker" / folder
    assert link.is_symlink()
    assert str(link.readlink()) == f"../{folder}"
    assert (link / "__init__.py").exists()


def names_in_git(*options: str) -> list[str]:
    """Return the names of the files in git; empty without git."""
    command = ["git", "ls-files", *options]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return listed.stdout.splitlines() if listed.returncode == 0 else []


def test_no_link_leads_out_of_the_sources() -> None:
    """A checked-out symlink would replace an ignored path of the same name, such as a virtual
    environment.
    """
    links = [ROOT / name for name in names_in_git("--cached") if (ROOT / name).is_symlink()]
    outside = [str(link) for link in links if link.readlink().is_absolute()]
    assert not outside, "git rm --cached: " + ", ".join(outside)


def project_texts() -> list[Path]:
    """Return the project's own text files: the files in git, or all files of the folders without
    git.
    """
    names = names_in_git("--cached", "--others", "--exclude-standard")
    paths = [ROOT / name for name in names] or [source.path for source in PACKAGE + TESTS]
    return [
        path
        for path in paths
        if path.suffix in TEXT_SUFFIXES and path.is_file() and not path.is_symlink()
    ]


@pytest.mark.parametrize("what", UNWANTED_WORDS)
def test_no_file_has_forbidden_text(what: str) -> None:
    pattern = re.compile(UNWANTED_WORDS[what])
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in project_texts()
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if pattern.search(line)
    ]
    assert not found, "\n".join(found)


def make_targets() -> set[str]:
    text = (ROOT / "Makefile").read_text()
    return set(re.findall(r"^([a-z][a-z-]*):", text, re.MULTILINE))


@pytest.mark.parametrize("name", ["README.rst", "CHANGELOG.rst", "pybroker/ARCHITECTURE.rst"])
def test_the_documents_exist_and_name_only_commands_that_do(name: str) -> None:
    text = (ROOT / name).read_text()
    assert len(text) > 200
    named = set(re.findall(r"\bmake ([a-z][a-z-]+)", text)) - {"sure"}
    assert named <= make_targets()


def test_the_readme_gives_the_two_commands_on_its_first_screen() -> None:
    first_screen = "\n".join((ROOT / "README.rst").read_text().splitlines()[:40])
    assert "make run" in first_screen
    assert "make test" in first_screen
    assert "PySpark" in first_screen


def test_ci_runs_the_command_of_the_readme() -> None:
    assert "make test" in (ROOT / ".ci" / "run").read_text()


def test_the_file_map_of_the_architecture_names_only_what_exists() -> None:
    text = (ROOT / "pybroker" / "ARCHITECTURE.rst").read_text()
    named = re.findall(r"``((?:pybroker|coordinator|tools|spark)/[\w/.-]*)``", text)
    assert named
    missing = [name for name in named if not (ROOT / name).exists()]
    assert not missing
