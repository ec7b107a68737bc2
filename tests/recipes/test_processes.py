"""Two real processes over gloo train as one does."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from recipes import models
from tests.recipes.by_hand import expected, one_step, rows, trainer_of
from tests.recipes.processes import CASES, advantages_and_filters, case

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")
TIMEOUT_S = 300


def run(job: str, folder: Path, models_dir: Path) -> None:
    """Runs `job` in two processes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    command = [sys.executable, "-m", "tests.recipes.processes", job, str(folder), str(models_dir)]
    processes = [
        subprocess.Popen(
            command,
            env={**os.environ, **common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        for process in processes:
            _, errors = process.communicate(timeout=TIMEOUT_S)
            assert process.returncode == 0, errors[-3000:]
    finally:
        for process in processes:
            process.kill()


def test_the_gradient_is_that_of_one_process(models_dir: Path, tmp_path: Path) -> None:
    run("gradients", tmp_path, models_dir)
    found = torch.load(tmp_path / "gradients.pt", weights_only=True)
    start = models.load(one_step(), models_dir)[0]
    for gradient, names in zip(found[: len(CASES)], CASES, strict=True):
        right, _ = expected(start, rows(), case(*names))
        torch.testing.assert_close(gradient, right, rtol=1e-4, atol=1e-5, msg=str(names))
    alone = trainer_of(one_step(), models_dir, tmp_path)
    scripted = advantages_and_filters(alone, alone.model)
    torch.testing.assert_close(found[len(CASES) :], torch.stack(scripted), rtol=1e-4, atol=1e-5)
    differ = {tuple(row.tolist()) for row in found[len(CASES) :]}
    assert len(differ) == len(scripted)  # each choice is another


def test_a_run_of_two_processes_reports_once_and_resumes_exactly(
    models_dir: Path, tmp_path: Path
) -> None:
    run("training", tmp_path, models_dir)
    first, second = (json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in (0, 1))
    assert second["told"] == [[], []]  # one process reports
    straight, stopped = first["told"]
    assert first["status"] == second["status"] == "interrupted"
    steps = [step for (step, kind), _ in straight if kind == "train"]
    assert steps == list(range(1, 9))
    assert sorted(stopped) == sorted(straight)
    assert first["compute"]["8"]["steps"] == 8


@pytest.fixture(autouse=True)
def _no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
