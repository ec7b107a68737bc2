"""Promotions of sweeps with known curves: who wins, what is refused, forecast and written."""

from __future__ import annotations

import json
import re
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.forecast import SEED_SPREAD
from analysis.ranking import Options
from pipelines import promote as promotions
from pipelines import request as asking
from pipelines.cli import main
from pipelines.errors import EvidenceError, UserError
from pipelines.ledger import Ledger
from pipelines.plan import single
from pipelines.promote import Promotion
from pipelines.request import Request
from tests.pipelines import promoting
from tests.pipelines.promoting import FLOPS, STEPS, Known, rate

BASE: Known = (0.60, 1.6, 60)
BETTER: Known = (0.70, 1.6, 60)
LOW: Known = (0.50, 1.6, 60)
ABLATION = {
    "strategy": "one_at_a_time",
    "axes": {"loss": ["cispo", "dapo"], "optimizer.lr": ["1e-3"], "batch": ["16x8"]},
}
CURVES = {
    "base": BASE,
    "loss=cispo": BETTER,
    "loss=dapo": LOW,
    "optimizer.lr=0.001": BETTER,
    "batch=16x8": LOW,
}


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """Without a tracking store, which planning a promotion never asks for."""
    return Ledger(tmp_path / "outputs")


@pytest.fixture(scope="module")
def losses(tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    """A grid of two losses, the second one better; nothing is written to it."""
    ledger = Ledger(tmp_path_factory.mktemp("losses") / "outputs")
    grid(ledger, grpo=BASE, cispo=BETTER)
    return ledger


@pytest.fixture(scope="module")
def ablation(tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    """A one-at-a-time sweep in which two of three axes have a better choice; nothing is written."""
    ledger = Ledger(tmp_path_factory.mktemp("ablation") / "outputs")
    promoting.sweep(ledger, CURVES, **ABLATION)
    return ledger


def manifest(ledger: Ledger) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(ledger.sweep("known").manifest_file.read_text())
    return document


def copied(ledger: Ledger, tmp_path: Path) -> Ledger:
    shutil.copytree(ledger.root, tmp_path / "copy")
    return Ledger(tmp_path / "copy")


def ask(ledger: Ledger, *overrides: str, force: bool = False) -> Request:
    return asking.ask(ledger, "known", overrides, [], Options(), "best", force=force)


def promoted(ledger: Ledger, *overrides: str) -> Promotion:
    return promotions.promote(ask(ledger, *overrides))


def grid(ledger: Ledger, **curves: Known) -> None:
    known = {f"loss={loss}": known for loss, known in curves.items()}
    promoting.sweep(ledger, known, strategy="grid", axes={"loss": list(curves)})


def test_the_best_recipe_of_a_grid_goes_on_as_the_run_it_was(
    losses: Ledger, tmp_path: Path
) -> None:
    ledger = copied(losses, tmp_path)
    found = promoted(ledger)
    found.save()
    evidence, (run,) = found.evidence, found.draft.plan.runs
    assert (evidence["winner"]["run"], evidence["winner"]["changes"]) == ("loss=cispo", [])
    assert run.config.budget.amount == 1600
    forecast = evidence["forecast"]
    assert forecast["compute"] == 1600 * FLOPS
    assert forecast["every"] == 50 * FLOPS
    assert forecast["seen"] == STEPS * FLOPS
    low, high = forecast["interval"]
    assert low < rate(1600, BETTER) < high < low + 0.05
    assert "continues the run" in " ".join(evidence["notes"])
    assert (evidence["commit"], evidence["versions"]) == ("c0ffee", {"trl": "1.16"})
    assert {row["run"] for row in evidence["fits"]} == {"loss=grpo", "loss=cispo"}
    # The file alone is the whole recipe: its run is the winner's, learning rate and all.
    again, _ = single(["recipe=best"], [ledger.root / "promoted"])
    winner = manifest(ledger)["runs"][1]
    assert again.run_id == run.run_id == winner["run_id"]
    written = (ledger.root / "promoted" / "best.evidence.json").read_text()
    assert json.loads(written) == json.loads(json.dumps(evidence))


def test_better_choices_are_composed_and_others_left(ablation: Ledger) -> None:
    found = promoted(ablation)
    (run,), winner = found.draft.plan.runs, found.evidence["winner"]
    assert (winner["run"], winner["changes"]) == ("base", ["loss=cispo", "optimizer.lr=0.001"])
    assert (run.config.loss.name, run.config.optimizer.lr) == ("cispo", 1e-3)
    assert (run.config.batch.prompts, run.config.batch.generations) == (8, 16)
    # Odds of 1.5 and twice 7/3 / 1.5: 3.63, if each curve had levelled off.
    assert found.evidence["forecast"]["reward"] == pytest.approx(0.784, abs=0.01)
    notes = " ".join(found.evidence["notes"])
    assert "The combination itself was not run" in notes
    assert "starts anew" in notes


def test_one_better_choice_is_a_run_that_was_made(ledger: Ledger) -> None:
    promoting.sweep(ledger, {**CURVES, "optimizer.lr=0.001": LOW}, **ABLATION)
    evidence = promoted(ledger).evidence
    assert (evidence["winner"]["run"], evidence["winner"]["changes"]) == ("loss=cispo", [])
    assert evidence["forecast"]["reward"] == pytest.approx(rate(1600, BETTER), abs=0.01)


def test_what_the_evidence_does_not_carry_is_refused(ledger: Ledger) -> None:
    grid(ledger, grpo=BASE, cispo=(0.95, 1.2, 900))
    with pytest.raises(EvidenceError, match=r"not promoted.*: loss=.*(unresolved|likely).*compute"):
        promoted(ledger)
    forced = promotions.promote(ask(ledger, force=True)).evidence
    assert forced["forced"]
    assert forced["notes"][0].startswith("Forced, although")
    assert main(["promote", "known", f"root={ledger.root}"]) == 1
    assert main(["promote", "nope", f"root={ledger.root}"]) == 2
    assert not (ledger.root / "promoted").exists()


def test_a_rival_that_may_be_better_is_refused(ledger: Ledger) -> None:
    """Two equal ceilings, each known to some .002."""
    grid(ledger, grpo=BASE, cispo=BASE)
    alike = asking.ask(ledger, "known", [], [], Options(margin=0.02), "best")
    assert alike.winner().doubts == []
    picky = asking.ask(ledger, "known", [], [], Options(margin=0.0005), "best")
    (doubt,) = picky.winner().doubts
    assert re.search(r"likely to be within 0.0005 of the best at .*may be better: .* should", doubt)


def test_an_unstable_winner_is_refused(ledger: Ledger) -> None:
    grid(ledger, grpo=BETTER)
    run_id = manifest(ledger)["runs"][0]["run_id"]
    for step in range(STEPS + 10, STEPS + 50, 10):
        metrics = {"eval/pass_rate": 0.69, "eval/truncation_rate": 0.3}
        ledger.run(run_id).point(1, step, {"steps": step, "flops": step * FLOPS}, metrics)
    with pytest.raises(EvidenceError, match=r"loss=grpo is unstable: .*truncat"):
        promoted(ledger)


def test_another_seed_starts_anew_and_varies_by_the_margin(losses: Ledger) -> None:
    found = promoted(losses, "seed=7")
    (run,), forecast = found.draft.plan.runs, found.evidence["forecast"]
    assert run.seed == 7
    assert run.run_id not in {row["run_id"] for row in manifest(losses)["runs"]}
    assert forecast["seen"] == 0
    low, high = forecast["interval"]
    spread = np.hypot(0.02 / SEED_SPREAD, promoting.NOISE)
    assert high - low == pytest.approx(2 * 1.96 * spread, rel=0.15)


def test_what_changes_is_told_and_costed(losses: Ledger) -> None:
    ledger = losses
    evidence = promoted(ledger, "batch=16x16").evidence
    assert evidence["changed"] == ["batch.prompts: 8 -> 16"]
    assert evidence["forecast"]["compute"] == pytest.approx(2 * 1600 * FLOPS)
    assert "not for batch.prompts: 8 -> 16; 8 times the compute" in evidence["notes"][-1]


def test_a_part_of_a_mixture_is_promoted_by_its_own_curve(ledger: Ledger) -> None:
    """The part passes half as often as all, and its forecast is of that; so is that it is asked."""
    known = {"loss=grpo": BASE, "loss=cispo": BETTER}
    two = {"set": [f"budget.amount={STEPS}", "task=two"]}
    promoting.sweep(ledger, known, strategy="grid", axes={"loss": ["grpo", "cispo"]}, **two)
    by = partial(asking.ask, ledger, "known", [], [], Options(), "best")
    found = promotions.promote(by(metric=promoting.PART))
    evidence, metric = found.evidence, f"eval/{promoting.PART}/pass_rate"
    assert evidence["forecast"]["metric"] == found.draft.plan.metric == metric
    assert evidence["forecast"]["reward"] == pytest.approx(rate(1600, BETTER) / 2, abs=0.005)
    assert f"Forecast: {metric} of 0.34" in "\n".join(found.lines())
    found.save()
    for again in (None, promoting.PART, metric):
        made = promotions.made_before(by(metric=again))
        assert made is not None
        assert made.evidence == json.loads(json.dumps(evidence))
    with pytest.raises(UserError, match=f"--name: got 'best', .* judged by {metric}"):
        promotions.made_before(by(metric="easy"))
    with pytest.raises(UserError, match=r"--metric: got 'eval/code/pass_rate', allowed of known: "):
        promotions.promote(by(metric="code"))


def test_a_target_that_was_reached_is_refused(losses: Ledger) -> None:
    ledger = losses
    with pytest.raises(UserError, match=r"budget\.amount: got 300, allowed: more than the winner"):
        promoted(ledger, "budget.amount=300")


def test_where_runs_go_is_kept_unless_told(losses: Ledger, tmp_path: Path) -> None:
    ledger = copied(losses, tmp_path)
    document = manifest(ledger)
    document["overrides"] += ["cluster=slurm", "cluster.partition=a", "tracking.experiment=mine"]
    ledger.sweep("known").manifest_file.write_text(json.dumps(document))
    kept = ["cluster=slurm", "cluster.partition=a", "tracking.experiment=mine"]
    assert ask(ledger).settings == ["budget=large", *kept]
    given = ask(ledger, "cluster=local", "budget=small")
    assert given.settings == ["tracking.experiment=mine", "cluster=local", "budget=small"]


@pytest.mark.parametrize(
    ("name", "told"), [("a/b", "letters, digits"), ("known", "another than that of a sweep")]
)
def test_names_that_cannot_be(losses: Ledger, name: str, told: str) -> None:
    with pytest.raises(UserError, match=f"--name: got '{name}', allowed: {told}"):
        asking.ask(losses, "known", [], [], Options(), name)


def test_a_seed_is_one_number(losses: Ledger) -> None:
    assert ask(losses, "seed=3", "seed=7").seed == 7
    with pytest.raises(UserError, match=r"^seed: got \[0, 1\], allowed: a whole number$"):
        ask(losses, "seed=[0,1]")


def test_a_dry_run_writes_nothing(ablation: Ledger, capsys: pytest.CaptureFixture[str]) -> None:
    ledger = ablation
    before = sorted(ledger.root.rglob("*"))
    for words in ([], ["--confirm-loo"]):
        assert main(["promote", "known", f"root={ledger.root}", "--dry-run", *words]) == 0
    assert sorted(ledger.root.rglob("*")) == before
    assert "override /loss: cispo" in capsys.readouterr().out


def test_the_leave_one_out_of_what_was_composed(ablation: Ledger, tmp_path: Path) -> None:
    ledger = copied(ablation, tmp_path)
    request, draft = promotions.leave_one_out(ask(ledger))
    assert (request.sweep, request.name) == ("best-loo", "best")
    draft.save()
    runs = {run.label: run.config for run in draft.plan.runs}
    assert [(c.loss.name, c.optimizer.lr) for c in runs.values()] == [
        ("cispo", 1e-3),
        ("grpo", 1e-3),
        ("cispo", 3e-4),
    ]
    assert {config.budget.amount for config in runs.values()} == {800}  # sqrt(400 x 1600)
    _, again = promotions.leave_one_out(ask(ledger))
    assert [run.run_id for run in again.plan.runs] == [run.run_id for run in draft.plan.runs]


def test_there_may_be_nothing_to_leave_out(ledger: Ledger) -> None:
    curves = {label: BASE if label == "base" else LOW for label in CURVES}
    promoting.sweep(ledger, curves, **ABLATION)
    with pytest.raises(EvidenceError, match="nothing to leave out: no choice of known is known"):
        promotions.leave_one_out(ask(ledger))
