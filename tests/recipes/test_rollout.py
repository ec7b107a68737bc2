"""Generation: TRL's own where nothing is added to it, and thinking that is ended from outside."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from recipes.config import Budget, ConfigError, Length
from recipes.rollout import interruption, roll_out
from recipes.train import train
from recipes.trainer import AblationTrainer
from tests.recipes.conftest import TINY, Recorder, built, tiny

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")
PAD, BOS, EOS = range(3)
END = "="
FORCED = 13  # the token of END
THINKING = replace(TINY.task, max_completion_tokens=10, end_of_thinking=END)
INTERRUPT = Length("interrupt", earliest=0.4, latest=0.6)


@pytest.fixture
def trainer(models_dir: Path, tmp_path: Path) -> AblationTrainer:
    return built(tiny(task=THINKING, length=INTERRUPT), models_dir, tmp_path)


def test_the_paper_s_lengths() -> None:
    # 14k tokens: thinking is ended between 10k and 12k, and 2k are for the answer.
    assert interruption(Length(), 14 * 1024) == (10 * 1024, 12 * 1024, 2 * 1024)


def test_plain_generation_is_trl_s_number_by_number(models_dir: Path, tmp_path: Path) -> None:
    trainer = built(tiny(), models_dir, tmp_path)
    prompts = [row["prompt"] for row in trainer.data.train[:8] for _ in range(4)]
    torch.manual_seed(5)
    ours = trainer._generate(prompts)
    after = torch.get_rng_state()
    trainer.rollout_func = None
    torch.manual_seed(5)
    theirs = trainer._generate(prompts)
    assert ours == theirs
    assert len({tuple(ids) for ids in ours[1]}) > 8
    assert torch.equal(torch.get_rng_state(), after)


def test_each_way_that_thinking_can_end(
    trainer: AblationTrainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten tokens: cuts at 4 to 6, here at 4, 5, 5, 6, 5; four for the answer."""
    first = [
        [3, 4, 5, 6, 7, 8],  # still thinking at 4
        [3, FORCED, 5, 6, 7, 8],  # thought, and still answering
        [3, FORCED, 5, EOS],  # thought and answered
        [3, 4, 5, 6, 7, FORCED],  # thought just in time
        [3, 4, 5, 6, EOS],  # ended without a thought's end
    ]
    then = [[9, EOS], [9, 10, 11, 12], [9, 10, EOS]]
    asked: list[tuple[list[list[int]], int, int]] = []

    def scripted(prompts: list[list[int]], *_: Any) -> tuple[list[list[int]], None]:  # noqa: ANN401
        limit = trainer.generation_config.max_new_tokens
        asked.append(([list(prompt) for prompt in prompts], limit, _[-1]))
        return (first if len(asked) == 1 else then), None

    monkeypatch.setattr(trainer, "_generate_single_turn", scripted)
    monkeypatch.setattr(torch, "randint", lambda *_: torch.tensor([4, 5, 5, 6, 5]))
    found = roll_out(["41="] * 5, trainer)
    prompt = found["prompt_ids"][0]
    assert found["completion_ids"] == [
        [3, 4, 5, 6, FORCED, 9, EOS],
        [3, FORCED, 5, 6, 7, 8, 9, 10, 11, 12],
        [3, FORCED, 5, EOS],
        [3, 4, 5, 6, 7, FORCED, 9, 10, EOS],
        [3, 4, 5, 6, EOS],
    ]
    assert found["env_mask"] == [[1, 1, 1, 1, 0, 1, 1], [1] * 10, [1] * 4, [1] * 9, [1] * 5]
    assert found["logprobs"] is None
    assert asked[0] == ([prompt] * 5, 6, TINY.batch.generations)
    going_on = [prompt + found["completion_ids"][index][:length] for index, length in BEGUN]
    assert asked[1] == (going_on, 4, 1)
    assert trainer.generation_config.max_new_tokens == 10


BEGUN = [(0, 5), (1, 6), (3, 6)]
"""Of the completions above: those gone on with, and how far they were."""


def test_nothing_is_generated_where_nothing_is_left_to_do(
    trainer: AblationTrainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def scripted(prompts: list[list[int]], *_: object) -> tuple[list[list[int]], list[list[float]]]:
        calls.append(prompts)
        return [[3, EOS]] * len(prompts), [[-0.5, -0.25]] * len(prompts)

    monkeypatch.setattr(trainer, "_generate_single_turn", scripted)
    found = roll_out(["41="] * 4, trainer)
    assert len(calls) == 1
    assert found["completion_ids"] == [[3, EOS]] * 4
    assert found["logprobs"] == [[-0.5, -0.25]] * 4


def test_a_forced_token_s_logprob_is_a_placeholder(
    trainer: AblationTrainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([([[3, 4, 5, 6, 7, 8]], [[-1.0] * 6]), ([[9, EOS]], [[-2.0, -3.0]])])
    monkeypatch.setattr(trainer, "_generate_single_turn", lambda *_: next(answers))
    monkeypatch.setattr(torch, "randint", lambda *_: torch.tensor([4]))
    found = roll_out(["41="], trainer)
    assert found["completion_ids"] == [[3, 4, 5, 6, FORCED, 9, EOS]]
    assert found["logprobs"] == [[-1.0] * 4 + [0.0] + [-2.0, -3.0]]


def test_the_model_goes_on_from_what_it_has_written(models_dir: Path, tmp_path: Path) -> None:
    """Nearly greedy, so that generating in two passes can be compared with one."""
    task = replace(THINKING, temperature=1e-3)
    trainer = built(tiny(task=task, length=INTERRUPT), models_dir, tmp_path)
    task = replace(task, end_of_thinking="1")  # not what the model was taught to end it with
    trainer.config = replace(trainer.config, task=task)
    trainer.generation_config.suppress_tokens = [EOS]  # goes on to the limit
    prompts = [row["prompt"] for row in trainer.data.train[:40]]
    torch.manual_seed(0)
    found = roll_out(prompts, trainer)
    trainer.config = replace(trainer.config, length=Length("truncate"))
    plain = roll_out(prompts, trainer)["completion_ids"]
    (end,) = trainer.processing_class("1")["input_ids"]
    cuts = []
    for ids, own, whole in zip(found["completion_ids"], found["env_mask"], plain, strict=True):
        assert len(whole) == 10
        if 0 not in own:
            assert ids == whole
            assert end in ids[:6]
            continue
        cut = own.index(0)
        cuts.append(cut)
        assert ids[:cut] == whole[:cut]
        assert end not in ids[:cut]
        assert ids[cut] == end
        assert len(ids) == min(cut + 1 + 4, 10)  # four for the answer, as far as there is room
        assert sum(own) == len(ids) - 1
    assert set(cuts) == {4, 5, 6}
    assert len(cuts) < 40


def test_interruption_needs_an_end_of_thinking() -> None:
    with pytest.raises(ConfigError, match=r"length.kind: got 'interrupt', allowed: truncate"):
        tiny(length=Length("interrupt"))


def test_an_interrupting_run_goes_on_as_if_it_had_not_been_stopped(
    models_dir: Path, tmp_path: Path
) -> None:
    budget = Budget(amount=4, eval_every=2, log_every=1)
    interrupt = Length("interrupt", earliest=0.0, latest=0.2)  # so early that some are right
    config = tiny(task=THINKING, length=interrupt, budget=budget)
    whole, parts = Recorder(), Recorder(stop_at=4)  # step 3: it is asked before step 2 is kept
    train(config, tmp_path / "whole", models_dir, whole)
    assert train(config, tmp_path / "parts", models_dir, parts).status == "interrupted"
    train(config, tmp_path / "parts", models_dir, parts)
    assert parts.points == whole.points
    assert parts.compute == whole.compute
    norms = {whole.points[step, "train"]["train/grad_norm"] for step in (1, 2, 3, 4)}
    assert len(norms) > 2


def test_a_phrase_that_leaves_no_room_for_an_answer_is_refused(trainer: AblationTrainer) -> None:
    long = replace(THINKING, end_of_thinking="====")  # 4 tokens are left for it
    trainer.config = replace(trainer.config, task=long)
    with pytest.raises(ConfigError, match=r"task.end_of_thinking: got '====', allowed: less than"):
        roll_out(["12="], trainer)
