"""Two real processes over gloo train as one does."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from recipes import models
from tests.recipes.by_hand import expected, one_step, rows, trainer_of
from tests.recipes.conftest import TINY
from tests.recipes.processes import CASES, advantages_and_filters, case

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")
TIMEOUT_S = 600


@pytest.fixture(scope="module")
def folder(models_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two processes have written."""
    made = tmp_path_factory.mktemp("processes")
    command = [sys.executable, "-m", "tests.recipes.processes", str(made), str(models_dir)]
    threads = {"OMP_NUM_THREADS", "MKL_NUM_THREADS"}  # so that only the run says how many
    environment = {key: value for key, value in os.environ.items() if key not in threads}
    environment |= {"HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        command, env=environment, stderr=subprocess.PIPE, text=True, timeout=TIMEOUT_S
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return made


def test_the_gradient_is_that_of_one_process(
    folder: Path, models_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    found = torch.load(folder / "gradients.pt", weights_only=True)
    start = models.load(one_step(), models_dir)[0]
    for gradient, names in zip(found[: len(CASES)], CASES, strict=True):
        right, _ = expected(start, rows(), case(*names))
        torch.testing.assert_close(gradient, right, rtol=1e-4, atol=1e-5, msg=str(names))
    alone = trainer_of(one_step(), models_dir, tmp_path)
    scripted = advantages_and_filters(alone, alone.model)
    torch.testing.assert_close(found[len(CASES) :], torch.stack(scripted), rtol=1e-4, atol=1e-5)
    differ = {tuple(row.tolist()) for row in found[len(CASES) :]}
    assert len(differ) == len(scripted)  # each choice is another


def test_a_run_of_two_processes_reports_once_and_resumes_exactly(folder: Path) -> None:
    first, second = (json.loads((folder / f"rank-{rank}.json").read_text()) for rank in (0, 1))
    assert second["told"] == [[], []]  # one process reports
    straight, stopped = first["told"]
    assert first["status"] == second["status"] == "interrupted"
    steps = [step for (step, kind), _ in straight if kind == "train"]
    assert steps == list(range(1, 9))
    assert sorted(stopped) == sorted(straight)
    assert first["compute"]["8"]["steps"] == 8
    assert first["threads"] == second["threads"] == TINY.execution.threads
