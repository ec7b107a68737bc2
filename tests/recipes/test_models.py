"""The embedded model: its tokenizer, its warm start, and that it is built once and whole."""

import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from recipes import models
from recipes.config import ConfigError, Model, Precision, RunConfig
from recipes.evaluate import evaluate
from recipes.meter import parameter_count
from tests.recipes.conftest import TINY, built, tiny


def test_the_tokenizer_keeps_every_character() -> None:
    tokenizer = models.character_tokenizer()
    ids = tokenizer("4163=1346")["input_ids"]
    assert len(ids) == 9
    assert tokenizer.decode([*ids, tokenizer.eos_token_id], skip_special_tokens=True) == "4163=1346"
    assert tokenizer(["1=", "12="], padding=True)["input_ids"][0][0] == tokenizer.pad_token_id


def test_a_model_is_loaded_as_it_was_built(models_dir: Path) -> None:
    model, tokenizer = models.load(TINY, models_dir)
    assert model.dtype == torch.float32
    assert tokenizer.padding_side == "left"
    assert not model.config.tie_word_embeddings
    assert models.matmul_parameters(model) == parameter_count(TINY.model)


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


def test_an_fp32_head_needs_an_untied_one(models_dir: Path, tmp_path: Path) -> None:
    path = models.ensure_embedded(TINY, models_dir)
    model, tokenizer = models.load(TINY, models_dir)
    model.config.tie_word_embeddings = True
    model.tie_weights()
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    assert models.matmul_parameters(model) == sum(p.numel() for p in model.parameters())
    config = tiny(model=Model(path=str(tmp_path)), precision=Precision("bf16", fp32_head=True))
    with pytest.raises(ConfigError, match=r"precision.fp32_head: got True, allowed: false"):
        models.load(config, models_dir)
    untied = tiny(model=Model(path=str(path)), precision=Precision("bf16", fp32_head=True))
    assert models.load(untied, models_dir)[0].num_parameters() == model.num_parameters() + 14 * 32


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
