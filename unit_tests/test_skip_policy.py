"""Tests of the rule that in CI, where everything is installed, a skipped test fails the run unless
its reason is allowed.
"""

from __future__ import annotations

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parent.parent

SKIPS = """
    import pytest

    def test_runs():
        pass

    def test_skips():
        pytest.skip("no kcat")

    @pytest.mark.xfail
    def test_is_expected_to_fail():
        assert False
"""

MODULE_THAT_SKIPS = """
    import pytest

    pytest.importorskip("no_such_module_at_all")

    def test_runs():
        pass
"""


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.delenv("PYBROKER_CI", raising=False)
    pytester.makeini("[pytest]\nasyncio_default_fixture_loop_scope = function\n")
    pytester.makeconftest((ROOT / "conftest.py").read_text())
    pytester.mkdir("integration_tests")
    return pytester


def allow(suite: pytest.Pytester, reasons: str) -> None:
    (suite.path / "integration_tests" / "allowed_skips.txt").write_text(reasons)


def exit_code(suite: pytest.Pytester) -> int:
    return int(suite.runpytest_inprocess("-p", "no:xdist", "-p", "no:hypothesispytest").ret)


def exit_code_of_processes(suite: pytest.Pytester) -> int:
    return int(suite.runpytest_subprocess("-n", "2", "-p", "no:hypothesispytest").ret)


def test_a_skip_is_allowed_outside_of_ci(suite: pytest.Pytester) -> None:
    suite.makepyfile(SKIPS)
    assert exit_code(suite) == pytest.ExitCode.OK


@pytest.mark.parametrize(
    ("allowed", "expected"),
    [
        ("", pytest.ExitCode.TESTS_FAILED),
        ("# no kcat\n", pytest.ExitCode.TESTS_FAILED),
        ("other\nno kca\n", pytest.ExitCode.OK),
        ("kcat\n", pytest.ExitCode.TESTS_FAILED),
    ],
)
def test_a_skip_needs_an_allowed_reason_in_ci(
    suite: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
    allowed: str,
    expected: pytest.ExitCode,
) -> None:
    monkeypatch.setenv("PYBROKER_CI", "1")
    allow(suite, allowed)
    suite.makepyfile(SKIPS)
    assert exit_code(suite) == expected


def test_a_whole_module_that_skips_counts_too(
    suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYBROKER_CI", "1")
    suite.makepyfile(MODULE_THAT_SKIPS)
    assert exit_code(suite) == pytest.ExitCode.TESTS_FAILED


@pytest.mark.parametrize(
    ("skipping", "allowed", "expected"),
    [
        (SKIPS, "", pytest.ExitCode.TESTS_FAILED),
        (SKIPS, "no kcat\n", pytest.ExitCode.OK),
        (MODULE_THAT_SKIPS, "", pytest.ExitCode.TESTS_FAILED),
    ],
    ids=["a test", "a test that may", "a module"],
)
def test_a_skip_in_a_worker_process_counts_too(
    suite: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
    skipping: str,
    allowed: str,
    expected: pytest.ExitCode,
) -> None:
    monkeypatch.setenv("PYBROKER_CI", "1")
    allow(suite, allowed)
    suite.makepyfile(skipping)
    assert exit_code_of_processes(suite) == expected
