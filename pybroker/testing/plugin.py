"""The pytest plugin of pybroker: clusters of real brokers as fixtures.

Every pytest run imports this module, so only a fixture may import other modules of pybroker.
"""

from __future__ import annotations

import importlib
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import pytest

if TYPE_CHECKING:
    from pybroker.testing.cluster import Cluster

_SHARED: Final = "pybroker_cluster"
_shared = pytest.StashKey["Cluster"]()
_own = pytest.StashKey["list[Cluster]"]()


class ClusterFactory(Protocol):
    """A function that starts a cluster, which is closed after the test. The arguments are those of
    `pybroker.testing.cluster.Cluster`."""

    def __call__(self, brokers: int = 3, **options: Any) -> Cluster: ...


@pytest.fixture(scope="session")
def pybroker_cluster_options() -> Mapping[str, Any]:
    """Return the keyword arguments of the shared cluster. A conftest.py may override this
    fixture."""
    return {}


@pytest.fixture(scope="session")
def pybroker_cluster(
    request: pytest.FixtureRequest,
    pybroker_cluster_options: Mapping[str, Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Cluster]:
    """Return a running cluster of three brokers, shared by all tests and repaired after each
    test."""
    options = {"data": tmp_path_factory.mktemp("pybroker-cluster"), **pybroker_cluster_options}
    cluster = _new_cluster(options)
    request.session.stash[_shared] = cluster
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.close()


@pytest.fixture
def pybroker_cluster_factory(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[ClusterFactory]:
    """Return a function that starts a cluster, which is closed after the test."""
    made: list[Cluster] = []
    request.node.stash[_own] = made

    def make(brokers: int = 3, **options: Any) -> Cluster:
        data = tmp_path / f"pybroker-cluster-{len(made)}"
        made.append(_new_cluster({"brokers": brokers, "data": data, **options}))
        made[-1].start()
        return made[-1]

    yield make
    for cluster in made:
        cluster.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the brokers' last log lines to the report of a failed test that uses a cluster."""
    report = yield
    if report.failed:
        for cluster in _clusters_of(item):
            report.sections.append(("brokers of pybroker", cluster.last_lines()))
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, None, None]:
    """Repair the shared cluster after a test that used it."""
    try:
        return (yield)
    finally:
        if nextitem is not None and _SHARED in getattr(item, "fixturenames", ()):
            cluster = item.session.stash.get(_shared, None)
            if cluster is not None:
                cluster.mend()


def _new_cluster(options: Mapping[str, Any]) -> Cluster:
    cluster: Cluster = importlib.import_module("pybroker.testing.cluster").Cluster(**options)
    return cluster


def _clusters_of(item: pytest.Item) -> list[Cluster]:
    found = list(item.stash.get(_own, ()))
    shared = item.session.stash.get(_shared, None)
    if shared is not None and _SHARED in getattr(item, "fixturenames", ()):
        found.append(shared)
    return found
