"""Every published recipe trains on the embedded model, its lengths and batch scaled down."""

from pathlib import Path

import pytest

from pipelines.plan import single
from recipes.train import train
from tests.recipes.conftest import Recorder

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")
SCALED = [
    "model=embedded",
    "task=digits",
    "batch=8x8",
    "batch.prompts=4",
    "batch.generations=4",
    "task.eval_prompts=16",
    "model.layers=1",
    "model.warm_start_batches=30",
    "budget=smoke",
    "budget.amount=2",
    "execution.threads=1",
]
OF = {
    "scalerl": {"train/staleness": 0.5, "train/prompts_left_out": 0},
    "deepseek_grpo": {"train/staleness": 0.5},
    "qwen_dapo": {"train/staleness": 0.5, "train/length_penalty": 0},
    "magistral": {"train/staleness": 0.5, "train/length_penalty": 0},
    "minimax": {"train/staleness": 0.5},
}
"""Metrics of the choices it makes: after two steps, rollouts were 0 and 1 updates old."""


@pytest.fixture(scope="module")
def models_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.mark.parametrize(
    "name",
    [name if name == "scalerl" else pytest.param(name, marks=pytest.mark.slow) for name in OF],
)
def test_a_published_recipe_trains(name: str, models_dir: Path, tmp_path: Path) -> None:
    _, settings = single([f"recipe={name}", *SCALED, "budget.log_every=2"], [])
    recorder = Recorder()
    result = train(settings, tmp_path, models_dir, recorder)
    assert (result.status, result.step) == ("completed", 2)
    found = recorder.points[2, "train"]
    for metric, value in OF[name].items():
        assert found[metric] == value, metric
    assert found["train/grad_norm"] > 0 or found["train/zero_variance_groups"] == 1
    assert recorder.compute[2]["scored_tokens"] >= recorder.compute[2]["trained_tokens"]
