from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.slurm.cluster import PrivateCluster, missing


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrivateCluster]:
    """A private cluster, which every Slurm client of this session talks to."""
    if missing():
        pytest.fail(f"not installed: {', '.join(missing())} (make test-slurm installs them)")
    folder = tmp_path_factory.mktemp("slurm")
    with PrivateCluster(folder) as made, pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", str(made.configuration))
        for name in [name for name in os.environ if name.startswith(("SBATCH_", "SLURM_JOB"))]:
            patch.delenv(name)
        yield made
