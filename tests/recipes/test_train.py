"""One run from beginning to end, killed and resumed, stopped and continued."""

import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from recipes.checkpoints import Checkpoints
from recipes.config import (
    Advantage,
    Aggregation,
    Budget,
    ConfigError,
    Execution,
    Filtering,
    Length,
    Loss,
    Precision,
    RunConfig,
    Staleness,
)
from recipes.progress import Progress
from recipes.train import RunResult, TrainingError, train
from tests.recipes.conftest import TINY, Recorder, tiny

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")
Run = tuple[RunResult, Recorder]


def budget(amount: float, axis: str = "steps", **changes: int) -> RunConfig:
    return tiny(budget=replace(TINY.budget, axis=axis, amount=amount, **changes))


def steps(folder: Path) -> list[int]:
    return [int(path.name.removeprefix("step-")) for path in Checkpoints(folder, 2).all()]


@pytest.fixture(scope="module")
def whole(models_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The tiny run, uninterrupted: 12 steps."""
    recorder = Recorder()
    return train(TINY, tmp_path_factory.mktemp("whole"), models_dir, recorder), recorder


def test_evaluations_logs_and_checkpoints_are_where_they_belong(whole: Run) -> None:
    result, recorder = whole
    assert recorder.seen == sorted(recorder.seen, key=lambda seen: (seen[0], seen[1] == "eval"))
    assert [step for step, kind in recorder.seen if kind == "eval"] == [0, 3, 6, 9, 12]
    assert [step for step, kind in recorder.seen if kind == "train"] == [2, 4, 6, 8, 10, 12]
    assert recorder.events == [("checkpoint", {"step": step}) for step in (3, 6, 9, 12)]
    assert result.status == "completed"
    assert result.step == 12
    assert result.pass_rate == recorder.points[12, "eval"]["eval/pass_rate"]
    assert set(recorder.points[12, "train"]) == {
        "train/loss",
        "train/reward",
        "train/reward_std",
        "train/entropy",
        "train/length",
        "train/truncation_rate",
        "train/grad_norm",
        "train/clip_ratio",
        "train/zero_variance_groups",
        "train/lr",
    }


def test_compute_is_counted_by_hand(whole: Run) -> None:
    result, recorder = whole
    compute = result.compute
    parameters = 4 * 32**2 + 3 * 32 * 80 + 2 * 32 + 32 + 14 * 32
    assert compute["steps"] == 12
    assert compute["prompt_tokens"] == 12 * 16 * 3
    lengths = [recorder.points[step, "train"]["train/length"] for step in range(2, 13, 2)]
    assert compute["generated_tokens"] == pytest.approx(2 * 16 * sum(lengths))
    assert compute["trained_tokens"] == compute["prompt_tokens"] + compute["generated_tokens"]
    assert compute["flops"] == 8 * parameters * compute["tokens"]
    assert 0 < compute["gpu_hours"] < 1 / 60
    assert recorder.compute[0]["flops"] == 0


def test_training_learns(whole: Run) -> None:
    recorder = whole[1]
    assert recorder.points[12, "train"]["train/lr"] == TINY.optimizer.lr
    assert recorder.points[2, "train"]["train/lr"] == pytest.approx(TINY.optimizer.lr / 4)
    rates = [recorder.points[step, "eval"]["eval/pass_rate"] for step in (0, 12)]
    assert rates[1] != rates[0]


KILLED = """
import os, signal, sys
from pathlib import Path
from recipes.train import train
from tests.recipes.conftest import Recorder, TINY

class Dies(Recorder):
    def should_stop(self):
        if super().should_stop():
            os.kill(os.getpid(), signal.SIGKILL)

train(TINY, Path(sys.argv[1]), Path(sys.argv[2]), Dies(stop_at=10))  # at 8: 3 and 6 ask twice
"""


def test_killed_and_resumed_equals_uninterrupted(
    whole: Run, models_dir: Path, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", KILLED, str(tmp_path), str(models_dir)]
    done = subprocess.run(command, check=False, capture_output=True)
    assert done.returncode == -signal.SIGKILL
    assert steps(tmp_path / "checkpoints") == [3, 6]
    half = tmp_path / "checkpoints" / ".partial" / "checkpoint-8"
    half.mkdir(parents=True)
    (half / "trainer_state.json").write_text("{")  # cut off while being written
    recorder = Recorder()
    result = train(TINY, tmp_path, models_dir, recorder)
    assert [step for step, kind in recorder.seen if kind == "eval"] == [9, 12]
    assert steps(tmp_path / "checkpoints") == [9, 12]
    assert not half.exists()
    for key, metrics in recorder.points.items():
        assert metrics == whole[1].points[key]
    assert recorder.compute[12] == whole[1].compute[12]
    assert result.pass_rate == whole[0].pass_rate


def test_stopped_between_and_continued_equals_uninterrupted(
    whole: Run, models_dir: Path, tmp_path: Path
) -> None:
    recorder = Recorder(stop_at=6)  # step 5, inside a logging window: its first half is kept
    first = train(TINY, tmp_path, models_dir, recorder)
    assert (first.status, first.step) == ("interrupted", 5)
    assert steps(tmp_path / "checkpoints") == [3, 5]
    second = train(TINY, tmp_path, models_dir, recorder)
    assert (second.status, second.step) == ("completed", 12)
    assert recorder.seen == whole[1].seen
    assert recorder.points == whole[1].points


def test_a_larger_budget_goes_on_and_a_reached_one_does_nothing(
    whole: Run, models_dir: Path, tmp_path: Path
) -> None:
    recorder = Recorder()
    assert train(budget(7), tmp_path, models_dir, recorder).step == 7
    again = Recorder()
    assert train(budget(7), tmp_path, models_dir, again).pass_rate == pytest.approx(
        recorder.points[7, "eval"]["eval/pass_rate"]
    )
    assert again.seen == []
    train(TINY, tmp_path, models_dir, recorder)
    extra = recorder.points.pop((7, "eval"))  # the earlier end is evaluated too
    assert set(extra) == set(whole[1].points[0, "eval"])
    assert recorder.points == whole[1].points


def test_epochs_are_shuffled_alike_when_resumed(models_dir: Path, tmp_path: Path) -> None:
    # 80 prompts, 4 a step: the second epoch begins at step 21, the resumed part inside it.
    config = budget(26, eval_every=100, log_every=1)
    straight, resumed = Recorder(), Recorder(stop_at=23)
    train(config, tmp_path / "a", models_dir, straight)
    train(config, tmp_path / "b", models_dir, resumed)
    train(config, tmp_path / "b", models_dir, resumed)
    assert resumed.points == straight.points


def test_a_budget_in_tokens_stops_at_the_first_step_past_it(
    whole: Run, models_dir: Path, tmp_path: Path
) -> None:
    tokens = whole[1].compute[4]["tokens"]
    recorder = Recorder()
    result = train(budget(tokens - 1, "tokens"), tmp_path, models_dir, recorder)
    assert result.step == 4
    assert [step for step, kind in recorder.seen if kind == "eval"] == [0, 3, 4]


def test_a_schedule_that_ends_ends_the_run(models_dir: Path, tmp_path: Path) -> None:
    optimizer = replace(TINY.optimizer, schedule="linear", total_steps=6, warmup_steps=2)
    recorder = Recorder()
    config = replace(budget(1e9, "tokens", log_every=1), optimizer=optimizer)
    assert train(config, tmp_path, models_dir, recorder).step == 6
    rates = [recorder.points[step, "train"]["train/lr"] for step in range(1, 7)]
    lr = optimizer.lr
    assert rates == pytest.approx([0, lr / 2, lr, lr * 3 / 4, lr / 2, lr / 4])


def test_a_loss_that_is_not_a_number_stops_the_run(
    models_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Progress.on_log

    def poisoned(self: Progress, *args: object, logs: dict[str, float], **kwargs: object) -> None:
        if args[1].global_step == 4 and "loss" in logs:  # type: ignore[attr-defined]
            logs["loss"] = float("nan")
        real(self, *args, logs=logs, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(Progress, "on_log", poisoned)
    with pytest.raises(TrainingError, match="step 4: loss is nan"):
        train(TINY, tmp_path, models_dir, Recorder())
    assert steps(tmp_path / "checkpoints") == [3]


@pytest.mark.parametrize(
    ("layout", "line"),
    [
        ({"fsdp": True}, "execution.fsdp: got True, allowed: false, with one process"),
        ({"deepspeed": "zero3.json"}, "execution.deepspeed: got 'zero3.json', allowed: "),
        ({"rollouts": "vllm_colocate"}, "execution.rollouts: got 'vllm_colocate', allowed: trans"),
    ],
)
def test_a_layout_that_this_machine_cannot_have_is_refused_before_anything(
    layout: dict[str, Any], line: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=line):
        train(tiny(execution=Execution(**layout)), tmp_path / "run", tmp_path / "m", Recorder())
    assert not any(tmp_path.iterdir())


def test_fp16_without_a_gpu_is_refused_before_anything(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"precision.dtype: got 'fp16', allowed: fp32 \| bf16"):
        train(tiny(precision=Precision("fp16")), tmp_path / "run", tmp_path / "m", Recorder())
    assert not list(tmp_path.iterdir())


AXES: dict[str, dict[str, Any]] = {
    "ppo": {"staleness": Staleness("ppo", 4), "loss": Loss("cispo", epsilon_high=5.0)},
    "pipeline": {"staleness": Staleness("pipeline", 3), "aggregation": Aggregation("prompt")},
    "resample": {"filtering": Filtering("resample"), "staleness": Staleness("ppo", 2)},
    "left_out": {
        "filtering": Filtering("drop", max_pass_rate=0.3),
        "advantage": Advantage("batch"),
    },
    "penalty": {"length": Length("penalty", cache=0.5), "precision": Precision("bf16", True)},
    "scalerl": {
        "loss": Loss("cispo", epsilon_high=5.0),
        "aggregation": Aggregation("prompt"),
        "advantage": Advantage("batch"),
        "filtering": Filtering("drop", max_pass_rate=0.9),
        "staleness": Staleness("pipeline", 8),
        "length": Length("interrupt", earliest=0.4, latest=0.6),
        "task": replace(TINY.task, max_completion_tokens=10, end_of_thinking="="),
    },
}


@pytest.mark.parametrize("axis", AXES)
def test_stopped_and_continued_equals_uninterrupted_on_every_axis(
    axis: str, models_dir: Path, tmp_path: Path
) -> None:
    """Stopped inside a generated batch, with prompts left out, and with a queue of rollouts."""
    config = tiny(budget=Budget(amount=26, eval_every=13, log_every=1), **AXES[axis])
    straight, stopped = Recorder(), Recorder(stop_at=23)
    train(config, tmp_path / "a", models_dir, straight)
    assert train(config, tmp_path / "b", models_dir, stopped).status == "interrupted"
    train(config, tmp_path / "b", models_dir, stopped)
    assert stopped.points == straight.points
    assert stopped.compute == straight.compute
    last = straight.points[26, "train"]
    expected = {
        "ppo": ("staleness", 1),
        "pipeline": ("staleness", 3),
        "scalerl": ("staleness", 8),
    }
    if axis in expected:
        name, value = expected[axis]
        assert last[f"train/{name}"] == value
    if axis == "left_out":
        assert last["train/prompts_left_out"] > 0
    if axis == "resample":
        rounds = [
            point["train/generation_rounds"]
            for (step, _), point in straight.points.items()
            if "train/generation_rounds" in point
        ]
        assert max(rounds) > 1
    if axis == "penalty":
        assert min(p.get("train/length_penalty", 0) for p in straight.points.values()) < 0
