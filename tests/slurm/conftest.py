from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.slurm.cluster import PrivateCluster, missing


def started(
    factory: pytest.TempPathFactory, name: str, *, accounting: bool
) -> Iterator[PrivateCluster]:
    if missing():
        pytest.fail(f"not installed: {', '.join(missing())} (make test-slurm installs them)")
    with PrivateCluster(factory.mktemp(f"slurm-{name}"), name, accounting=accounting) as made:
        yield made


@pytest.fixture(scope="session")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrivateCluster]:
    """A cluster without accounting, where preempted jobs are sent SIGTERM."""
    yield from started(tmp_path_factory, "b", accounting=False)


@pytest.fixture(scope="session")
def accounted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrivateCluster]:
    """A cluster with accounting and limits, where preempted jobs are sent the user's signal."""
    yield from started(tmp_path_factory, "a", accounting=True)


@pytest.fixture
def cluster(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[PrivateCluster]:
    """The cluster that Slurm's clients talk to: the bare one, or the one asked for by name."""
    made: PrivateCluster = request.getfixturevalue(getattr(request, "param", "bare"))
    monkeypatch.setenv("SLURM_CONF", str(made.configuration))
    for name in [name for name in os.environ if name.startswith(("SBATCH_", "SLURM_JOB"))]:
        monkeypatch.delenv(name)
    yield made
    made.empty()
