"""Strategies, identities and refusals of a plan, on sweeps the tests write."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from pipelines.compose import Composer, changed
from pipelines.errors import UserError
from pipelines.plan import plan, run_id_of, single
from recipes.config import AXES, ConfigError


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    """A user's own configuration folder, with a place for sweeps."""
    (tmp_path / "sweep").mkdir()
    return tmp_path


def labels(name: str, conf: Path, *overrides: str) -> list[tuple[str, int]]:
    return [(run.label, run.seed) for run in plan(name, overrides, [conf]).runs]


def write(conf: Path, name: str, text: str) -> None:
    (conf / "sweep" / f"{name}.yaml").write_text(text)


def test_grid_is_the_product_of_its_axes(conf: Path) -> None:
    write(conf, "g", "axes: {loss: [grpo, cispo], optimizer.lr: [1e-3, 5e-4]}\nseeds: [0, 1]")
    assert labels("g", conf) == [
        (f"loss={loss} optimizer.lr={lr}", seed)
        for loss in ("grpo", "cispo")
        for lr in ("0.001", "0.0005")
        for seed in (0, 1)
    ]


def test_a_sweep_may_be_judged_by_a_part_of_its_task(conf: Path) -> None:
    write(conf, "m", "axes: {loss: [cispo]}\nset: [task=mixture, model=hf]\nmetric: sums")
    assert plan("m", [], [conf]).metric == "eval/sums/pass_rate"
    assert plan("m", ["sweep.metric=eval/pass_rate"], [conf]).metric == "eval/pass_rate"
    with pytest.raises(ConfigError) as refused:
        plan("m", ["sweep.metric=code"], [conf])
    parts = "eval/pass_rate | eval/gsm8k/pass_rate | eval/sums/pass_rate"
    assert str(refused.value) == f"sweep.metric: got 'eval/code/pass_rate', allowed: {parts}"


def test_grid_conditions(conf: Path) -> None:
    axes = "axes: {loss: [grpo, cispo], aggregation: [sample, token]}\n"
    write(conf, "without", axes + "exclude: [{loss: grpo, aggregation: token}]")
    assert [label for label, _ in labels("without", conf)] == [
        "loss=grpo aggregation=sample",
        "loss=cispo aggregation=sample",
        "loss=cispo aggregation=token",
    ]
    write(conf, "only", axes + "where: [{loss: [cispo], aggregation: [sample, token]}]")
    assert [label for label, _ in labels("only", conf)] == [
        "loss=cispo aggregation=sample",
        "loss=cispo aggregation=token",
    ]
    write(conf, "bad", axes + "where: [{los: grpo}]")
    with pytest.raises(
        ConfigError, match=r"sweep\.where, sweep\.exclude: got 'los', allowed: loss"
    ):
        plan("bad", (), [conf])
    write(conf, "none", axes + "where: [{loss: sapo}]")
    with pytest.raises(UserError, match="leave no run of 'none'"):
        plan("none", (), [conf])


def test_zipped_axes_move_together(conf: Path) -> None:
    write(conf, "z", '"batch.prompts,batch.generations": [[4, 32], [16, 8]]'.join(["axes: {", "}"]))
    runs = plan("z", (), [conf]).runs
    assert [(run.config.batch.prompts, run.config.batch.generations) for run in runs] == [
        (4, 32),
        (16, 8),
    ]
    assert runs[0].choices["batch.prompts"] == "4"
    assert plan("z", (), [conf]).varied == ["batch.prompts,batch.generations"]
    write(conf, "short", '"batch.prompts,batch.generations": [[4]]'.join(["axes: {", "}"]))
    with pytest.raises(ConfigError, match=r"got \[4\], allowed: lists of 2 choices"):
        plan("short", (), [conf])


def test_one_at_a_time_is_the_base_and_each_alternative(conf: Path) -> None:
    text = (
        "strategy: one_at_a_time\nset: [loss=cispo]\naxes: {loss: [cispo, grpo], advantage: [none]}"
    )
    write(conf, "o", text)
    made = plan("o", (), [conf])
    assert [run.label for run in made.runs] == ["base", "loss=grpo", "advantage=none"]
    assert made.base["loss"] == "cispo"
    assert made.runs[2].choices["loss"] == "cispo"
    assert made.runs[2].config.advantage.scale == "none"
    assert set(made.runs[0].choices) == set(AXES)


def test_leave_one_out_puts_axes_back_to_the_reference(conf: Path) -> None:
    text = "strategy: leave_one_out\nset: [loss=cispo, advantage=batch]\n"
    write(conf, "l", text + "axes: {loss: null, advantage: [none]}\nreference: baseline")
    made = plan("l", (), [conf])
    assert [run.label for run in made.runs] == ["base", "loss=grpo", "advantage=none"]
    assert made.runs[1].config.advantage.scale == "batch"


def test_a_run_reached_twice_is_one_run(conf: Path) -> None:
    write(conf, "twice", "axes: {optimizer.lr: [0.001, 1e-3]}")
    assert len(plan("twice", (), [conf]).runs) == 1
    write(conf, "again", "strategy: one_at_a_time\naxes: {optimizer.lr: [0.001]}")
    first = plan("twice", (), [conf]).runs[0].run_id
    assert first in {run.run_id for run in plan("again", (), [conf]).runs}


def test_identity_is_what_is_trained_and_nothing_else() -> None:
    base = single()[0]
    assert base.run_id == run_id_of(asdict(base.config))
    assert len(base.run_id) == 12
    same = ["budget.amount=7", "root=/elsewhere", "execution.threads=3", "cluster.parallel=9"]
    assert single(same)[0].run_id == base.run_id
    for other in ("seed=1", "optimizer.lr=1e-3", "loss=cispo", "task.eval_samples=2"):
        assert single([other])[0].run_id != base.run_id


def test_identity_does_not_depend_on_process_or_order() -> None:
    code = "from pipelines.plan import single; print(single(['loss=cispo', 'seed=4'])[0].run_id)"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    here = single(["seed=4", "loss=cispo"])[0].run_id
    assert other.stdout.strip() == here


def test_value_overrides_reach_every_choice_of_a_swept_axis(conf: Path) -> None:
    write(conf, "v", "axes: {loss: [grpo, cispo]}")
    runs = plan("v", ["loss.epsilon_high=3"], [conf]).runs
    assert [run.config.loss.epsilon_high for run in runs] == [3.0, 3.0]
    assert [run.config.loss.name for run in runs] == ["grpo", "cispo"]


def test_overrides_of_the_sweep_and_the_run_are_told_apart(conf: Path) -> None:
    write(conf, "s", "axes: {loss: [grpo, cispo]}")
    made = plan("s", ["sweep.seeds=[4,5]", "budget.amount=60"], [conf])
    assert [run.seed for run in made.runs] == [4, 5, 4, 5]
    assert {run.config.budget.amount for run in made.runs} == {60}


def test_a_recipe_is_an_axis_too(conf: Path) -> None:
    (conf / "recipe").mkdir()
    text = "# @package _global_\ndefaults:\n  - override /loss: cispo\noptimizer:\n  lr: 0.002\n"
    (conf / "recipe" / "mine.yaml").write_text(text)
    write(conf, "r", "axes: {recipe: [baseline, mine]}")
    runs = plan("r", (), [conf]).runs
    assert [run.choices["loss"] for run in runs] == ["grpo", "cispo"]
    assert [run.choices["recipe"] for run in runs] == ["baseline", "mine"]
    assert runs[1].config.optimizer.lr == 0.002


REFUSED = {
    "loss=nope": "loss: got 'nope', allowed: .*cispo",
    "loss.nope=1": r"loss\.nope: no such key, allowed: name \| ratio",
    "nope=1": "nope: no such key, allowed: loss",
    "+nope=1": "nope: no such key, allowed: loss",
    "~loss": "loss: got '~loss', allowed: loss=value",
    "loss=[": r"override: got 'loss=\[', allowed: key=value",
    "loss=grpo,cispo": "loss: got 'loss=grpo,cispo', allowed: one value",
    "recipe=nope": "recipe: got 'nope', allowed: .*baseline",
    "batch.prompts=many": r"batch\.prompts: got 'many', allowed: a whole number",
    "batch.prompts=0": r"batch\.prompts: got 0, allowed: a number >= 1",
    "batch.generations=1": r"batch\.generations: got 1, allowed: a number >= 2",
    "execution.micro_batch=7": r"execution\.micro_batch: got 7, allowed: a divisor of .* = 128",
    "optimizer.lr=0": r"optimizer\.lr: got 0\.0, allowed: a number > 0",
    "optimizer.lr=nan": r"optimizer\.lr: got nan, allowed: a number > 0",
    "optimizer.schedule=linear": r"optimizer\.total_steps: got None, allowed: a number of steps",
    "seed=3": r"seed: got 3, allowed: sweep\.seeds=\[\.\.\.\], in a sweep",
    "seed=-1": "seed: got -1, allowed: a number from 0",
    "budget.amount=2.5": r"budget\.amount: got 2\.5, allowed: a whole number",
    "cluster.kind=cloud": r"cluster\.kind: got 'cloud', allowed: local \| slurm",
    "cluster.parallel=0": r"cluster\.parallel: got 0, allowed: a number > 0",
    "sweep.axes={nope: [1]}": r"sweep\.axes: got 'nope', allowed: loss \|",
    "sweep.axes={loss: []}": r"sweep\.axes\.loss: got \[\], allowed: a list of at least one",
    "sweep.axes={loss: [nope]}": "loss: got 'nope', allowed: .*cispo",
    "sweep.axes={loss.nope: [1]}": r"loss\.nope: no such key, allowed: name",
    "sweep.axes={budget.amount: [1, 2]}": r"sweep\.axes: got 'budget\.amount', allowed: loss \|",
    "sweep.axes={optimizer.lr: [high]}": r"optimizer\.lr: got 'high', allowed: a number",
    "sweep.compute=hours": r"sweep\.compute: got 'hours', allowed: steps \|",
    "sweep.set=[{loss: cispo}]": r"sweep\.set: got .*, allowed: texts such as 'loss=cispo'",
    "loss=null": "loss: got 'None', allowed: .*cispo",
    "cluster.extra.gres=gpu": r"cluster\.extra\.gres: no such key, allowed: \+cluster\.extra\.gres",
    "sweep.nope=1": r"sweep\.nope: no such key, allowed: strategy",
    "sweep.strategy=random": r"sweep\.strategy: got 'random', allowed: grid \| one_at_a_time",
    "sweep.seeds=[0,0]": r"sweep\.seeds: got \[0, 0\], allowed: one or more different",
    "advantage=batch": r"advantage: got .* allowed: sweep\.axes\.advantage=\[\.\.\.\]",
}


@pytest.mark.parametrize("override", REFUSED)
def test_bad_input_gets_one_line_with_field_given_and_allowed(override: str, conf: Path) -> None:
    write(conf, "s", "axes: {advantage: [none, batch]}")
    with pytest.raises((UserError, ConfigError), match=REFUSED[override]) as told:
        plan("s", [override], [conf])
    assert "\n" not in str(told.value)


def test_an_unknown_sweep_lists_the_known_ones(conf: Path) -> None:
    write(conf, "mine", "axes: {loss: [grpo]}")
    with pytest.raises(UserError, match=r"sweep: got 'nope', allowed: .*demo.*mine"):
        plan("nope", (), [conf])
    with pytest.raises(UserError, match="--config-dir: got '/nowhere'"):
        plan("demo", (), [Path("/nowhere")])


FILES = {
    "axes: {loss: [grpo": r"s\.yaml, line \d: not YAML: ",
    "axes: {loss: [grpo]}\naxes: {loss: [grpo]}": r"line 2: not YAML: found duplicate key axes",
    "42": "configuration: Invalid loaded object type: int",
    "# @package _global_\naxes: {loss: [grpo]}": r"sweep/s\.yaml: defines no sweep, allowed: keys",
    'axes: {"loss,advantage": null}': r"sweep\.axes\.loss,advantage: got None, allowed: a",
    'axes: {loss: [grpo, "${nope}"]}': r"sweep\.axes\.loss\[1\]: Interpolation key 'nope'",
}


@pytest.mark.parametrize("text", FILES)
def test_a_broken_sweep_file_is_told_in_one_line(text: str, conf: Path) -> None:
    write(conf, "s", text)
    with pytest.raises((UserError, ConfigError), match=FILES[text]) as told:
        plan("s", (), [conf])
    assert "\n" not in str(told.value)


def test_a_bad_value_in_a_choice_file_names_its_axis(conf: Path) -> None:
    (conf / "loss").mkdir()
    (conf / "loss" / "mine.yaml").write_text("name: cispo\nepsilon_low: abc")
    write(conf, "s", "axes: {loss: [grpo, mine]}")
    with pytest.raises(UserError, match=r"loss\.epsilon_low: got 'abc', allowed: a number"):
        plan("s", (), [conf])


def test_a_file_with_the_name_of_a_built_in_one_is_refused(conf: Path) -> None:
    (conf / "loss").mkdir()
    (conf / "loss" / "grpo.yaml").write_text("name: dapo")
    write(conf, "s", "axes: {loss: [grpo, cispo]}")
    with pytest.raises(UserError, match=r"loss/grpo\.yaml: got the name of .*grpo\.yaml, allowed"):
        plan("s", (), [conf])


@pytest.mark.parametrize("name", ["2026", "true", "été", "it's", "a b"])
def test_any_file_name_can_be_a_sweep_or_a_choice(name: str, conf: Path) -> None:
    (conf / "loss").mkdir()
    (conf / "loss" / f"{name}.yaml").write_text("name: cispo")
    write(conf, name, f'axes: {{loss: ["{name}"]}}')
    (run,) = plan(name, (), [conf]).runs
    assert (run.choices["loss"], run.config.loss.name) == (name, "cispo")


def test_values_that_differ_a_little_are_different_choices(conf: Path) -> None:
    write(conf, "s", "axes: {optimizer.lr: [0.00012345678, 0.00012345679]}")
    assert len({run.label for run in plan("s", (), [conf]).runs}) == 2


def test_resolved_is_plain_data(conf: Path) -> None:
    write(conf, "p", "axes: {loss: [grpo]}")
    run = plan("p", (), [conf]).runs[0]
    assert json.loads(json.dumps(run.resolved)) == run.resolved
    assert run.resolved["loss"]["name"] == "grpo"


def test_a_base_is_left_as_it_was() -> None:
    composer = Composer()
    base = composer.base([])
    before = OmegaConf.to_yaml(base.config)
    node = composer.choice("loss", "cispo")
    settings = changed(base, {"loss": node}, {"optimizer.lr": 7e-4, "seed": 3})
    assert (settings.loss.name, settings.optimizer.lr, settings.seed) == ("cispo", 7e-4, 3)
    with pytest.raises(UserError, match=r"optimizer.rate: no such key"):
        changed(base, {"loss": node}, {"optimizer.lr": 1e-3, "optimizer.rate": 1})
    assert OmegaConf.to_yaml(base.config) == before
    assert node == composer.choice("loss", "cispo")
