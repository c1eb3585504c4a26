"""The skip policy of the whole suite, and the report of failures.

On a developer's machine a test that lacks an outside program skips and says what to install. With
`PYBROKER_CI=1` everything is installed, so a skip would hide a broken set-up. It fails the run,
unless its reason is listed in `integration_tests/allowed_skips.txt`.
"""

from __future__ import annotations

import gc
import os
import re
from collections.abc import Generator
from pathlib import Path
from typing import Final

import pytest

ALLOWED_SKIPS: Final = "integration_tests/allowed_skips.txt"


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(SkipPolicy(config), "pybroker-skip-policy")
    config.pluginmanager.register(FailuresAtOnce(config), "pybroker-failures-at-once")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Exclude the imported modules and collected tests from the garbage collector: they live to
    the end, and searching them for cycles took a quarter of a run."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


class FailuresAtOnce:
    """Prints a line as soon as a test fails; the full report follows at the end of the run."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        if report.failed and terminal is not None:
            crash = getattr(report.longrepr, "reprcrash", None)
            reason = str(getattr(crash, "message", "")).partition("\n")[0]
            terminal.ensure_newline()
            terminal.write_line(f"FAILED {report.nodeid} ({report.when}) {reason}", red=True)


class SkipPolicy:
    """Collects the skips of a run that are not allowed."""

    def __init__(self, config: pytest.Config) -> None:
        self._active = os.environ.get("PYBROKER_CI") == "1"
        self._allowed = _patterns(config.rootpath / ALLOWED_SKIPS) if self._active else []
        self._refused: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped and not hasattr(report, "wasxfail"):
            self._note(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped:
            self._note(report)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._refused and session.exitstatus in (
            pytest.ExitCode.OK,
            pytest.ExitCode.NO_TESTS_COLLECTED,
        ):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self._refused:
            return
        terminalreporter.section("skips that PYBROKER_CI=1 does not allow", red=True)
        for line in self._refused:
            terminalreporter.line(line)

    def _note(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if not self._active:
            return
        details = report.longrepr
        reason = str(details[2]) if isinstance(details, tuple) else str(details)
        reason = reason.removeprefix("Skipped: ")
        if not any(pattern.match(reason) for pattern in self._allowed):
            self._refused.append(f"{report.nodeid}: {reason}")


def _patterns(path: Path) -> list[re.Pattern[str]]:
    if not path.exists():
        return []
    lines = (line.strip() for line in path.read_text().splitlines())
    return [re.compile(line) for line in lines if line and not line.startswith("#")]
