"""Every choice in ``conf/`` is one that can be trained, and recipes have their published values."""

from pathlib import Path
from typing import Any, get_type_hints

import pytest
from omegaconf import OmegaConf

from pipelines.compose import Composer
from recipes.config import AXES, LOSSES, RunConfig

CONF = Path(__file__).resolve().parents[2] / "conf"
FILES = sorted(file for axis in AXES for file in (CONF / axis).glob("*.yaml"))
TYPES = get_type_hints(RunConfig)


def composed(*overrides: str) -> dict[str, Any]:
    """The axes of a composed run."""
    config = Composer().base(overrides).config
    return {axis: OmegaConf.to_container(config[axis]) for axis in AXES}


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.name}={file.stem}")
def test_a_choice_is_a_valid_value_of_its_axis(file: Path) -> None:
    node = Composer().choice(file.parent.name, file.stem)
    if file.stem == "hub":
        node.dataset = "org/name"  # left to the user
    assert isinstance(OmegaConf.to_object(node), TYPES[file.parent.name])
    assert file.read_text().startswith("# ")  # says what it is, and where its numbers are from


def test_every_loss_of_trl_s_has_a_file() -> None:
    names = {OmegaConf.load(file).name for file in (CONF / "loss").glob("*.yaml")}
    assert names == set(LOSSES)
    assert OmegaConf.load(CONF / "loss" / "gspo.yaml") == {
        "name": "grpo",
        "ratio": "sequence",
        "epsilon_low": 4e-3,
        "epsilon_high": 5e-3,
    }


def test_batches_are_what_their_names_say() -> None:
    for file in (CONF / "batch").glob("*.yaml"):
        batch = OmegaConf.load(file)
        assert file.stem == f"{batch.prompts}x{batch.generations}"


@pytest.mark.parametrize("model", ["embedded", "hf"])
def test_adapters_are_put_on_the_model_that_is_trained_without_them(model: str) -> None:
    plain, adapted = (composed(f"model={name}")["model"] for name in (model, f"{model}_lora"))
    assert adapted["lora_rank"] > 0
    for key, value in plain.items():
        assert adapted[key] == value or key.startswith("lora_"), key


def test_the_defaults_of_the_classes_are_those_of_the_files() -> None:
    defaults = OmegaConf.structured(RunConfig)
    for axis, option in [
        ("loss", "grpo"),
        ("aggregation", "native"),
        ("advantage", "prompt"),
        ("precision", "fp32"),
        ("batch", "8x16"),
        ("filtering", "keep"),
        ("length", "truncate"),
        ("staleness", "on_policy"),
        ("model", "embedded"),
        ("task", "digits_direct"),
        ("optimizer", "adamw"),
    ]:
        of_file = OmegaConf.load(CONF / axis / f"{option}.yaml")
        assert OmegaConf.merge(defaults[axis], of_file) == defaults[axis], axis
        if axis != "task":  # whose fields differ by source
            assert set(of_file) == set(defaults[axis])


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("baseline", "grpo native prompt fp32 False 8x16 keep None truncate on_policy-1 2e-4"),
        ("scalerl", "cispo prompt batch bf16 True 48x16 drop 0.9 interrupt pipeline-8 5e-7"),
        ("deepseek_grpo", "grpo sample prompt bf16 False 48x16 keep None truncate ppo-8 5e-7"),
        ("qwen_dapo", "dapo prompt prompt bf16 False 80x16 drop None penalty ppo-8 5e-7"),
        ("magistral", "dapo prompt prompt bf16 False 80x16 drop None penalty pipeline-8 5e-7"),
        ("minimax", "cispo prompt prompt bf16 True 80x16 drop None truncate ppo-8 5e-7"),
    ],
)
def test_recipes_have_their_published_values(name: str, expected: str) -> None:
    axes = composed(f"recipe={name}", "task=digits")
    batch, precision = axes["batch"], axes["precision"]
    values = [
        axes["loss"]["name"],
        axes["aggregation"]["over"],
        axes["advantage"]["scale"],
        precision["dtype"],
        str(precision["fp32_head"]),
        f"{batch['prompts']}x{batch['generations']}",
        axes["filtering"]["zero_variance"],
        str(axes["filtering"]["max_pass_rate"]),
        axes["length"]["kind"],
        f"{axes['staleness']['kind']}-{axes['staleness']['updates']}",
    ]
    *words, lr = expected.split()
    assert values == words
    assert axes["optimizer"]["lr"] == float(lr)
    RunConfig(**{axis: TYPES[axis](**content) for axis, content in axes.items()})
    if name != "baseline":
        scalerl = {"warmup_steps": 100, "weight_decay": 0.01, "eps": 1e-15, "schedule": "constant"}
        assert scalerl.items() <= axes["optimizer"].items()


@pytest.mark.parametrize(("kind", "number"), [("ppo", 2), ("ppo", 8), ("pipeline", 4)])
def test_staleness_is_what_its_name_says(kind: str, number: int) -> None:
    axes = composed(f"staleness={kind}-{number}")
    assert axes["staleness"] == {"kind": kind, "updates": number}


def test_lengths_are_the_paper_s_at_its_limit() -> None:
    axes = composed("length=interrupt", "task.end_of_thinking='='")
    shares = [axes["length"][name] for name in ("earliest", "latest", "cache")]
    assert [round(share * 14 * 1024) for share in shares] == [10 * 1024, 12 * 1024, 2 * 1024]


def test_an_override_wins_over_the_recipe() -> None:
    axes = composed("recipe=scalerl", "batch=16x8", "loss=dapo", "length=truncate")
    assert (axes["batch"]["prompts"], axes["loss"]["name"]) == (16, "dapo")
    assert axes["aggregation"]["over"] == "prompt"
