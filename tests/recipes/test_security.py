"""Nothing that is read as weights, or as a model, can run code."""

import json
import pickle
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from recipes import models
from recipes.checkpoints import STATE, Checkpoints
from recipes.config import ConfigError, Model
from recipes.train import train
from tests.recipes.conftest import TINY, Recorder, tiny

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


class Bomb:
    """Unpickled, it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        return Path.touch, (self.path,)


@pytest.fixture(scope="module")
def trained(models_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a checkpoint at step 3."""
    folder = tmp_path_factory.mktemp("run")
    train(replace(TINY, budget=replace(TINY.budget, amount=3)), folder, models_dir, Recorder())
    return folder


@pytest.mark.parametrize("name", ["optimizer.pt", "scheduler.pt", "rng_state.pth"])
def test_checkpoint_with_code_in_it_is_not_run(
    name: str, trained: Path, models_dir: Path, tmp_path: Path
) -> None:
    checkpoint = Checkpoints(trained / "checkpoints", 2).latest()
    assert checkpoint is not None
    whole = (checkpoint / name).read_bytes()
    sizes = (checkpoint / STATE).read_text()
    bomb = tmp_path / "it-ran"
    try:
        torch.save({"state": Bomb(bomb)}, checkpoint / name)
        document = json.loads(sizes)
        document["sizes"][name] = (checkpoint / name).stat().st_size  # or it counts as damaged
        (checkpoint / STATE).write_text(json.dumps(document))
        with pytest.raises((pickle.UnpicklingError, RuntimeError), match=r"(?i)weights"):
            train(TINY, trained, models_dir, Recorder())
    finally:
        (checkpoint / name).write_bytes(whole)
        (checkpoint / STATE).write_text(sizes)
    assert not bomb.exists()
    torch.load(_saved(Bomb(bomb), tmp_path), weights_only=False)
    assert bomb.exists()  # it would have


def _saved(thing: object, folder: Path) -> Path:
    torch.save(thing, folder / "bomb.pt")
    return folder / "bomb.pt"


def test_model_that_brings_its_own_code_is_refused(tmp_path: Path) -> None:
    mark = tmp_path / "it-ran"
    code = f"from pathlib import Path\nPath({str(mark)!r}).touch()\nclass Mine: ...\n"
    (tmp_path / "mine.py").write_text(code)
    config = {"model_type": "mine", "auto_map": {"AutoConfig": "mine.Mine"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=r"model\.path"):
        models.load(tiny(model=Model(path=str(tmp_path))), tmp_path)
    assert not mark.exists()


def test_no_code_asks_to_trust_remote_code() -> None:
    sources = (Path(models.__file__).parents[1] / "recipes").rglob("*.py")
    assert not [path for path in sources if "trust_remote_code=True" in path.read_text()]
