"""The embedded model: its tokenizer, its warm start, and that it is built once and whole."""

import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from recipes import models
from recipes.config import (
    Budget,
    ConfigError,
    Execution,
    Length,
    Model,
    Precision,
    RunConfig,
    Task,
)
from recipes.evaluate import evaluate
from recipes.meter import adapter_parameters, parameter_count
from recipes.train import train
from tests.recipes.conftest import TINY, Recorder, built, tiny


def test_the_tokenizer_keeps_every_character() -> None:
    tokenizer = models.character_tokenizer(Task())
    ids = tokenizer("4163=1346")["input_ids"]
    assert len(ids) == 9
    assert tokenizer.decode([*ids, tokenizer.eos_token_id], skip_special_tokens=True) == "4163=1346"
    assert tokenizer(["1=", "12="], padding=True)["input_ids"][0][0] == tokenizer.pad_token_id


def test_a_model_is_loaded_as_it_was_built(models_dir: Path) -> None:
    model, tokenizer = models.load(TINY, models_dir)
    assert model.dtype == torch.float32
    assert tokenizer.padding_side == "left"
    assert not model.config.tie_word_embeddings
    assert models.matmul_parameters(model) == parameter_count(TINY.model, TINY.task)


def test_building_again_gives_the_same_weights_and_leaves_random_state_alone(
    models_dir: Path, tmp_path: Path
) -> None:
    before = torch.random.get_rng_state()
    path = models.ensure_embedded(TINY, tmp_path)
    assert torch.equal(torch.random.get_rng_state(), before)
    built = models_dir / path.name / "model.safetensors"
    assert (path / "model.safetensors").read_bytes() == built.read_bytes()


def test_the_weights_do_not_depend_on_the_run(models_dir: Path) -> None:
    other = tiny(seed=7, task=replace(TINY.task, temperature=0.5))
    assert models.ensure_embedded(other, models_dir) == models.ensure_embedded(TINY, models_dir)
    larger = tiny(model=Model(hidden_size=48, layers=1))
    assert models._key(larger.model, larger.task) != models._key(TINY.model, TINY.task)


def test_many_at_once_build_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built = []

    def build(config: RunConfig, folder: Path) -> None:
        built.append(folder)
        folder.mkdir()

    monkeypatch.setattr(models, "_build", build)
    threads = [
        threading.Thread(target=models.ensure_embedded, args=(TINY, tmp_path)) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(built) == 1
    assert not list(tmp_path.glob(".partial*"))


def test_a_half_written_model_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(config: RunConfig, folder: Path) -> None:
        folder.mkdir()
        (folder / "half").touch()
        raise OSError("disk full")

    monkeypatch.setattr(models, "_build", fails)
    with pytest.raises(OSError, match="disk full"):
        models.ensure_embedded(TINY, tmp_path)
    monkeypatch.setattr(models, "_build", lambda config, folder: folder.mkdir())
    assert not (models.ensure_embedded(TINY, tmp_path) / "half").exists()


@pytest.fixture
def tied(models_dir: Path, tmp_path: Path) -> str:
    """A model on disk whose LM head is its input embedding."""
    model, tokenizer = models.load(TINY, models_dir)
    model.config.tie_word_embeddings = True
    model.tie_weights()
    model.save_pretrained(tmp_path / "tied")
    tokenizer.save_pretrained(tmp_path / "tied")
    return str(tmp_path / "tied")


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize("fp32_head", [True, False])
def test_a_tied_head_in_fp32_gives_the_logits_of_fp32(
    fp32_head: bool, rank: int, tied: str, models_dir: Path, tmp_path: Path
) -> None:
    """In training (TRL's fused head) and in generation; only hidden states are BF16."""
    config = tiny(model=Model(tied, lora_rank=rank), precision=Precision("bf16", fp32_head))
    trainer = built(config, models_dir, tmp_path)
    base = trainer.model.get_base_model() if rank else trainer.model
    assert base.config.tie_word_embeddings
    head, embedding = base.lm_head, base.model.embed_tokens
    assert head.weight is embedding.weight
    seen: dict[str, torch.Tensor] = {}
    base.model.norm.register_forward_hook(lambda m, i, o: seen.update(hidden=o.detach()))
    embedding.register_forward_hook(lambda m, i, o: seen.update(embedded=o.detach()))
    ids = torch.tensor([[5, 4, 13, 4, 5, 2]])
    with trainer.accelerator.autocast(), torch.no_grad():
        logits = base(input_ids=ids).logits
    expected = seen["hidden"].float() @ head.weight.T
    assert torch.equal(seen["embedded"], embedding.weight[ids])  # as it is looked up: FP32
    mask = torch.ones_like(ids)
    logps, *_ = trainer._get_per_token_logps_and_entropies(trainer.model, ids, mask, 3)
    assert torch.equal(seen["hidden"].float() @ head.weight.T, expected)
    exact = expected.log_softmax(-1)[0, 2:5].gather(1, ids[0, 3:, None])[:, 0]
    assert logits.dtype == (torch.float32 if fp32_head else torch.bfloat16)
    assert torch.equal(logits.float(), expected) is fp32_head
    assert torch.allclose(logps[0], exact, rtol=0, atol=1e-6) is fp32_head


def test_a_tied_embedding_takes_part_in_matrix_products(tied: str, models_dir: Path) -> None:
    model = models.load(tiny(model=Model(tied)), models_dir)[0]
    assert models.matmul_parameters(model) == sum(p.numel() for p in model.parameters())


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(
    ("targets", "adapted"),
    # Hidden 32, MLP 80: 2 x (32 + 32) for each matrix of attention, 2 x (32 + 80) of the MLP's.
    [(["all-linear"], 4 * 128 + 3 * 224), (["q_proj", "v_proj"], 2 * 128)],
)
def test_adapters_alone_are_trained_and_start_as_nothing(
    targets: list[str], adapted: int, models_dir: Path
) -> None:
    given = replace(TINY.model, lora_rank=2, lora_targets=targets)
    plain, _ = models.load(TINY, models_dir)
    before = torch.random.get_rng_state()
    model, _ = models.load(tiny(model=given), models_dir)
    assert torch.equal(torch.random.get_rng_state(), before)
    ids = torch.tensor([[5, 4, 13]])
    assert torch.equal(model(input_ids=ids).logits, plain(input_ids=ids).logits)
    assert {name for name, p in model.named_parameters() if p.requires_grad} == {
        name for name, _ in model.named_parameters() if ".lora_" in name
    }
    assert models.matmul_parameters(model, trained=True) == adapted
    assert models.matmul_parameters(model) == models.matmul_parameters(plain) + adapted
    assert parameter_count(given, TINY.task) == models.matmul_parameters(model)
    assert adapter_parameters(given, TINY.task) == adapted
    again, _ = models.load(tiny(model=given), models_dir)
    other, _ = models.load(tiny(model=given, seed=1), models_dir)
    first, second, third = (
        torch.cat([p.flatten() for p in m.parameters() if p.requires_grad])
        for m in (model, again, other)
    )
    assert torch.equal(first, second)
    assert not torch.equal(first, third)


def test_adapters_of_what_is_not_there_are_refused(models_dir: Path) -> None:
    given = replace(TINY.model, lora_rank=2, lora_targets=["query"])
    with pytest.raises(ConfigError, match=r"model.lora_targets: got \['query'\], allowed: \[all-"):
        models.load(tiny(model=given), models_dir)


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_run_with_adapters_goes_on_as_if_it_had_not_been_stopped(
    models_dir: Path, tmp_path: Path
) -> None:
    config = tiny(
        model=replace(TINY.model, lora_rank=4), budget=Budget(amount=6, eval_every=3, log_every=1)
    )
    whole, parts = Recorder(), Recorder(stop_at=5)  # asked before step 3 is kept, too
    train(config, tmp_path / "whole", models_dir, whole)
    assert train(config, tmp_path / "parts", models_dir, parts).status == "interrupted"
    parts.stop_at = None
    assert train(config, tmp_path / "parts", models_dir, parts).status == "completed"
    assert parts.points == whole.points
    assert parts.compute == whole.compute
    norms = [whole.points[step, "train"]["train/grad_norm"] for step in range(1, 7)]
    assert len(set(norms)) == 6
    assert min(norms) > 0
    tokens = whole.compute[6]
    n = parameter_count(config.model, config.task)
    t = adapter_parameters(config.model, config.task)
    forward = tokens["tokens"] + tokens["trained_tokens"] + tokens["scored_tokens"]
    assert tokens["flops"] == 2 * n * forward + 2 * (n + t) * tokens["trained_tokens"]


def test_a_task_longer_than_the_model_can_read_is_refused(tied: str, models_dir: Path) -> None:
    task = replace(TINY.task, max_completion_tokens=62)
    message = (
        r"task.max_completion_tokens: got 62, allowed: at most 61: .* 64 tokens, 3 of a prompt"
    )
    with pytest.raises(ConfigError, match=message):
        models.load(tiny(model=Model(tied), task=task), models_dir)
    model, _ = models.load(tiny(task=task), models_dir)  # the embedded one follows
    assert model.config.max_position_embeddings == 65
    assert models.load(TINY, models_dir)[0].config.max_position_embeddings == 64


def test_a_model_out_of_reach_is_told_in_one_line(tmp_path: Path) -> None:
    config = tiny(model=Model(path=str(tmp_path)))
    with pytest.raises(ConfigError, match=r"model.path: got .*, allowed: embedded, a folder"):
        models.load(config, tmp_path)


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_the_default_model_starts_at_a_fifth_to_a_third(tmp_path: Path) -> None:
    trainer = built(RunConfig(), tmp_path, tmp_path)
    start = evaluate(trainer, trainer.data, 0)
    assert 0.2 <= start.pass_rate <= 0.33
    assert start.truncation_rate < 0.25


@pytest.mark.slow
def test_thinking_starts_at_a_fifth_to_a_third_and_is_needed(
    models_dir: Path, tmp_path: Path
) -> None:
    """Some of it is cut off; an answer after one token of it is hardly ever right."""
    task = Task(end_of_thinking="#", max_completion_tokens=42)
    config = RunConfig(task=task, execution=Execution(threads=1))
    trainer = built(config, models_dir, tmp_path)
    start = evaluate(trainer, trainer.data, 0)
    assert 0.2 <= start.pass_rate <= 0.35
    assert 0.05 <= start.truncation_rate <= 0.25
    at_once = replace(config, length=Length("interrupt", earliest=0.03, latest=0.03))
    cut = built(at_once, models_dir, tmp_path / "cut")
    assert evaluate(cut, cut.data, 0).pass_rate < 0.05
