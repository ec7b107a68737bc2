"""The gradient of an optimizer batch: every loss, average, advantage and filter, by hand."""

import copy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from trl import GRPOTrainer

from recipes import models
from recipes.config import Aggregation, Execution, Filtering, Loss, Staleness
from recipes.trainer import AblationTrainer
from tests.recipes.by_hand import (
    FORCED,
    expected,
    flat,
    gradient,
    log_probabilities,
    one_step,
    rows,
    set_up,
    trainer_of,
)

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")
STALE = Staleness("ppo", 4)
LOSSES = {
    "grpo": Loss("grpo"),
    "dapo": Loss("dapo", epsilon_high=0.26),
    "cispo": Loss("cispo", epsilon_high=2.0),  # low enough to truncate some of these ratios
    "gspo": Loss("grpo", "sequence", 0.2, 0.3),
    "dr_grpo": Loss("dr_grpo"),
    "bnpo": Loss("bnpo"),
    "sapo": Loss("sapo"),
    "luspo": Loss("luspo", "sequence", 0.2, 0.3),
    "vespo": Loss("vespo"),
}
FREE = [name for name in LOSSES if name not in ("dr_grpo", "luspo")]
CASES = [(name, "native", "keep") for name in LOSSES]
CASES += [(name, "native", "drop") for name in LOSSES]
CASES += [(name, over, "drop") for name in FREE for over in ("sample", "prompt", "token")]
CASES += [("grpo", over, "keep") for over in ("sample", "prompt", "token")]
CASES += [("cispo", over, "keep") for over in ("sample", "prompt", "token")]


@pytest.fixture(scope="module")
def start(models_dir: Path) -> torch.nn.Module:
    return models.load(one_step(), models_dir)[0]


@pytest.fixture(scope="module")
def trainer(models_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> AblationTrainer:
    return trainer_of(one_step(staleness=STALE), models_dir, tmp_path_factory.mktemp("trainer"))


@pytest.mark.parametrize(("loss", "over", "filtering"), CASES)
def test_the_gradient_is_the_formula_s_however_the_batch_is_split(
    loss: str, over: str, filtering: str, trainer: AblationTrainer, start: torch.nn.Module
) -> None:
    config = one_step(
        loss=LOSSES[loss],
        aggregation=Aggregation(over),
        filtering=Filtering(filtering),
        staleness=STALE,
    )
    made = rows()
    right, loss_value = expected(start, made, config)
    assert right.norm() > 0.001
    for micro in (16, 4, 1):
        set_up(trainer, replace(config, execution=Execution(micro, threads=1)))
        found, value = gradient(trainer, made)
        torch.testing.assert_close(found, right, rtol=1e-4, atol=1e-5)
        assert value == pytest.approx(loss_value, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("loss", FREE)
def test_on_policy_every_ratio_is_one(
    loss: str, trainer: AblationTrainer, start: torch.nn.Module
) -> None:
    config = one_step(loss=LOSSES[loss], aggregation=Aggregation("prompt"))
    made = rows(stale=False)
    set_up(trainer, config)
    found, _ = gradient(trainer, made)
    torch.testing.assert_close(found, expected(start, made, config)[0], rtol=1e-4, atol=1e-5)
    if loss not in ("vespo", "sapo"):  # all are A grad log pi there
        plain = expected(start, made, replace(config, loss=LOSSES["grpo"]))[0]
        torch.testing.assert_close(found, plain, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("loss", ["grpo", "cispo", "gspo", "vespo"])
@pytest.mark.parametrize("over", ["sample", "prompt", "token"])
def test_forced_tokens_contribute_nothing(
    loss: str, over: str, trainer: AblationTrainer, start: torch.nn.Module
) -> None:
    config = one_step(loss=LOSSES[loss], aggregation=Aggregation(over), staleness=STALE)
    made = rows(forced=True)
    set_up(trainer, replace(config, execution=Execution(4, threads=1)))
    found, _ = gradient(trainer, made)
    torch.testing.assert_close(found, expected(start, made, config)[0], rtol=1e-4, atol=1e-5)
    free = expected(start, rows(), config)[0]
    assert (found - free).norm() > 0.001 * free.norm()
    for place in FORCED:
        made["drift"][place] = 5.0  # whatever they would have been weighted by
    assert torch.equal(gradient(trainer, made)[0], found)


def test_truncated_ratios_bound_what_a_stale_token_weighs(
    trainer: AblationTrainer, start: torch.nn.Module
) -> None:
    """CISPO's gradient is linear in the truncated ratio: with all over the bound, in the bound."""
    made = rows()
    made["drift"] = torch.full_like(made["drift"], 3.0)  # ratios of 20
    found = []
    for bound in (4.0, 8.0):
        config = one_step(loss=Loss("cispo", epsilon_high=bound), staleness=STALE)
        set_up(trainer, config)
        found.append(gradient(trainer, made)[0])
    torch.testing.assert_close(2 * found[0], found[1], rtol=1e-5, atol=1e-7)
    clipped = one_step(loss=Loss("grpo"), staleness=STALE)
    set_up(trainer, clipped)
    made["advantages"] = made["advantages"].clamp(min=0)
    assert gradient(trainer, made)[0].abs().max() == 0  # GRPO's clip takes such tokens out


def test_a_batch_without_any_variance_leaves_the_weights_alone(trainer: AblationTrainer) -> None:
    made = rows()
    made["advantages"] = torch.zeros_like(made["advantages"])
    for filtering in ("keep", "drop"):
        set_up(trainer, one_step(filtering=Filtering(filtering), staleness=STALE))
        found, value = gradient(trainer, copy.copy(made))
        assert found.abs().max() == 0
        assert value == 0


@pytest.mark.parametrize("loss", LOSSES)
def test_trl_s_own_choices_are_trl_s_own_loss(loss: str, trainer: AblationTrainer) -> None:
    """TRL's loss of the same rollouts, as its own trainer hands them to it, in one micro-batch."""
    set_up(trainer, one_step(loss=LOSSES[loss], staleness=STALE))
    ours, value = gradient(trainer, rows())
    made = rows()
    drift = made.pop("drift")
    with torch.no_grad():
        made["old_per_token_logps"] = log_probabilities(trainer.model, made) - drift
    generated = STALE.updates  # TRL counts the tokens of all batches that it generates at once
    made["num_items_in_batch"] = made["completion_mask"].sum() * generated
    trainer.model.zero_grad()
    theirs = GRPOTrainer._compute_loss(trainer, trainer.model, made)
    theirs.backward()
    assert value == pytest.approx(theirs.item(), rel=1e-6)
    torch.testing.assert_close(ours, flat([p.grad for p in trainer.model.parameters()]))
