"""A sweep with known curves, ranked: from the files, from MLflow, and back into MLflow."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from mlflow import MlflowClient

from analysis.ranking import Options
from pipelines import files
from pipelines.errors import ServiceError, UserError
from pipelines.ledger import Ledger
from pipelines.rank import conclusion, planned_curves, rank_sweep
from pipelines.tracking import sync
from tests import fakes

KNOWN = {"base": (0.60, 1.6, 2e9), "loss=cispo": (0.75, 1.6, 2e9), "loss=dapo": (0.60, 1.1, 2e9)}
"""Label to A, B and C_mid in FLOPs; R0 is 0.25."""
EVERY = 1e9 / 2


def loss_of(label: str) -> str:
    return label.partition("=")[2] or "grpo"


@pytest.fixture
def sweep(ledger: Ledger) -> Ledger:
    """A launched sweep of three runs whose curves are `KNOWN` with a noise of 0.004."""
    rng = np.random.default_rng(0)
    configs = {label: fakes.tiny_config(loss_of(label)) for label in KNOWN}
    plan = fakes.make_plan(ledger.root, list(configs.values()))
    rows = [
        {**row, "label": label, "choices": {"loss": loss_of(label)}}
        for row, label in zip(plan.rows(), KNOWN, strict=True)
    ]
    for run, row in zip(plan.runs, rows, strict=True):
        write_run(ledger, run.run_id, run.resolved, row, KNOWN[row["label"]], rng)
    manifest = {
        "sweep": "known",
        "strategy": "one_at_a_time",
        "compute": "flops",
        "base": {"loss": "grpo"},
        "varied": ["loss"],
        "overrides": [],
        "tracking": {"uri": None, "experiment": "shortlist"},
        "runs": rows,
    }
    files.write_json(ledger.sweep("known").manifest_file, manifest)
    return ledger


def write_run(
    ledger: Ledger,
    run_id: str,
    resolved: dict[str, object],
    row: dict[str, object],
    known: tuple[float, float, float],
    rng: np.random.Generator,
) -> None:
    A, B, C_mid = known
    run = ledger.run(run_id)
    run.create(resolved)
    run.event(
        "planned",
        sweep="known",
        budget=row["budget"],
        choices=row["choices"],
        label=row["label"],
        seed=0,
        tracking={"uri": None, "experiment": "shortlist"},
    )
    for step in range(41):
        flops = step * EVERY
        rate = 0.25 + (0.0 if step == 0 else (A - 0.25) / (1 + (C_mid / flops) ** B))
        metrics = {
            "eval/pass_rate": float(rate + 0.004 * rng.standard_normal()),
            "eval/pass_rate_stderr": 0.004,
            "eval/truncation_rate": 0.01,
        }
        part = {"pass_rate": metrics["eval/pass_rate"] - 0.1, "pass_rate_stderr": 0.004}
        metrics |= {f"eval/math/{name}": value for name, value in part.items()}
        run.point(1, step, {"steps": step, "flops": flops}, metrics)


def test_known_curves_get_the_right_fits_verdicts_and_order(sweep: Ledger) -> None:
    ranked = rank_sweep(sweep, "known", Options())
    document = ranked.analysis.document()
    for fit in document["fits"]:
        A, B, C_mid = KNOWN[fit["run"]]
        assert fit["A"] == pytest.approx(A, abs=0.015)
        assert fit["B"] == pytest.approx(B, abs=0.25)
        assert fit["C_mid"] == pytest.approx(C_mid, rel=0.1)
        low, high = fit["A_interval"]
        assert low - 0.005 < A < high + 0.005  # one of three at 95% may just miss
    assert document["order"] == ["loss=cispo", "base", "loss=dapo"]
    words = {item["choice"]: item["verdict"] for item in document["verdicts"]}
    assert words["cispo"] == "higher ceiling"
    assert words["dapo"] == "same ceiling, slower"
    told = list(conclusion(ranked))
    assert told[0].startswith("loss=cispo has the highest ceiling. ")
    assert told[1] == "Better than the base: loss=cispo (higher ceiling)."
    launch = f"shortlist launch known root={sweep.root} 'sweep.seeds=[0,1,2]' --follow"
    assert told[-1].startswith(f"Next: {launch}")


def test_a_part_of_a_mixture_is_judged_by_its_own_curve(sweep: Ledger) -> None:
    options = Options(pool=False)
    part = rank_sweep(sweep, "known", options, metric="math").analysis.document()
    for fit in part["fits"]:
        A, _, C_mid = KNOWN[fit["run"]]
        assert fit["A"] == pytest.approx(A - 0.1, abs=0.015)
        assert fit["R0"] == pytest.approx(0.15, abs=0.01)
        assert fit["C_mid"] == pytest.approx(C_mid, rel=0.1)
    by_name = rank_sweep(sweep, "known", options, metric="eval/math/pass_rate").analysis
    assert by_name.document()["fits"] == part["fits"]
    told = "--metric: got 'eval/code/pass_rate', allowed of known: "
    with pytest.raises(UserError) as refused:
        rank_sweep(sweep, "known", options, metric="code")
    assert str(refused.value) == told + "eval/math/pass_rate | eval/pass_rate"


def test_a_sweep_may_say_what_it_is_judged_by(sweep: Ledger) -> None:
    manifest = sweep.sweep("known").manifest()
    assert manifest is not None
    files.write_json(
        sweep.sweep("known").manifest_file, {**manifest, "metric": "eval/math/pass_rate"}
    )
    options = Options(pool=False)
    ranked = rank_sweep(sweep, "known", options)
    by_name = rank_sweep(sweep, "known", options, metric="math").analysis.document()
    assert ranked.analysis.document() == by_name
    assert "Judged by</dt><dd>eval/math/pass_rate" in (ranked.folder / "report.html").read_text()
    told = rank_sweep(sweep, "known", options, metric="eval/pass_rate").analysis.document()
    assert told["fits"] != by_name["fits"]


def test_a_race_reads_the_curves_that_its_sweep_is_judged_by(sweep: Ledger) -> None:
    plan = fakes.make_plan(sweep.root, [fakes.tiny_config(loss_of(label)) for label in KNOWN])
    of_all = planned_curves(sweep, plan)
    of_part = planned_curves(sweep, replace(plan, metric="eval/math/pass_rate"))
    for whole, part in zip(of_all, of_part, strict=True):
        assert part.reward == pytest.approx(whole.reward - 0.1)


def test_choices_that_move_together_are_one_axis(sweep: Ledger) -> None:
    manifest = sweep.sweep("known").manifest()
    assert manifest is not None
    sizes = dict(zip(KNOWN, ("8", "16", "32"), strict=True))
    rows = [{**row, "choices": {"p": sizes[row["label"]], "g": "4"}} for row in manifest["runs"]]
    rows[1]["choices"]["g"] = "2"
    changes = {"base": {"p": "8", "g": "4"}, "varied": ["p,g"], "runs": rows}
    files.write_json(sweep.sweep("known").manifest_file, {**manifest, **changes})
    verdicts = rank_sweep(sweep, "known", Options()).analysis.verdicts
    assert [(v.axis, v.choice, v.versus) for v in verdicts] == [
        ("p,g", "16,2", "8,4"),
        ("p,g", "32,4", "8,4"),
    ]


def test_what_to_type_next_replaces_what_was_typed(sweep: Ledger) -> None:
    manifest = sweep.sweep("known").manifest()
    assert manifest is not None
    changes = {"overrides": ["budget.amount=20", "loss.epsilon_high=3"], "config_dirs": ["my"]}
    files.write_json(sweep.sweep("known").manifest_file, {**manifest, **changes})
    told = list(conclusion(rank_sweep(sweep, "known", Options(until=3e9))))
    amount = next(line for line in told if "budget.amount" in line)
    assert amount.count("budget.amount") == 1
    wanted = f"--config-dir my loss.epsilon_high=3 root={sweep.root} budget.amount="
    assert amount.startswith(f"Next: shortlist launch known {wanted}")


def test_the_report_is_beside_the_manifest(sweep: Ledger) -> None:
    ranked = rank_sweep(sweep, "known", Options(at=1e11))
    assert ranked.folder == sweep.sweep("known").folder
    written = json.loads((ranked.folder / "ranking.json").read_text())
    assert written == json.loads(json.dumps(ranked.analysis.document()))
    assert {fit["forecast"]["compute"] for fit in written["fits"]} == {1e11}
    for name in ("report.html", "curves.svg"):
        assert "loss=cispo" in (ranked.folder / name).read_text()


def test_mlflow_holds_the_same_curves_and_gets_the_ranking(sweep: Ledger) -> None:
    run_ids = [row["run_id"] for row in sweep.sweep("known").manifest()["runs"]]  # type: ignore[index]
    assert sync(sweep, run_ids) == 3 * 41
    from_files = rank_sweep(sweep, "known", Options()).analysis.document()
    from_mlflow = rank_sweep(sweep, "known", Options(), source="mlflow").analysis.document()
    assert from_mlflow["fits"] == from_files["fits"]

    client = MlflowClient(f"sqlite:///{sweep.store}")
    experiment = client.get_experiment_by_name("shortlist")
    assert experiment is not None
    logged = {
        item.data.tags["shortlist.run_id"]: item.data.metrics["fit/A"]
        for item in client.search_runs([experiment.experiment_id])
        if "fit/A" in item.data.metrics
    }
    fitted = {fit["run"]: fit["A"] for fit in from_files["fits"]}
    labels = {row["run_id"]: row["label"] for row in sweep.sweep("known").manifest()["runs"]}  # type: ignore[index]
    assert logged == {run_id: fitted[label] for run_id, label in labels.items()}
    reports = [
        file.path
        for item in client.search_runs([experiment.experiment_id])
        for file in client.list_artifacts(item.info.run_id)
    ]
    assert sorted(reports) == ["curves.svg", "manifest.json", "ranking.json", "report.html"]
    of_a_part = [
        rank_sweep(sweep, "known", Options(), source=source, metric="math").analysis.document()
        for source in ("ledger", "mlflow")
    ]
    assert of_a_part[0]["fits"] == of_a_part[1]["fits"] != from_files["fits"]


def test_a_run_that_truncates_is_unstable_from_mlflow_too(sweep: Ledger) -> None:
    manifest = sweep.sweep("known").manifest()
    assert manifest is not None
    run = sweep.run(manifest["runs"][1]["run_id"])
    for step in range(41, 60):
        metrics = {"eval/pass_rate": 0.7, "eval/pass_rate_stderr": 0.004}
        compute = {"steps": step, "flops": step * EVERY}
        run.point(1, step, compute, {**metrics, "eval/truncation_rate": 0.4})
    sync(sweep, [row["run_id"] for row in manifest["runs"]])
    for source in ("ledger", "mlflow"):
        ranked = rank_sweep(sweep, "known", Options(), source=source)
        stable = {fit.run: fit.stable for fit in ranked.analysis.fits}
        assert stable == {"base": True, "loss=cispo": False, "loss=dapo": True}


def test_a_store_out_of_reach_leaves_the_ranking_on_disk(
    sweep: Ledger, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = sweep.sweep("known").manifest()
    assert manifest is not None
    lost = {**manifest, "tracking": {"uri": "sqlite:////proc/none/x.db", "experiment": "shortlist"}}
    files.write_json(sweep.sweep("known").manifest_file, lost)
    ranked = rank_sweep(sweep, "known", Options())
    assert (ranked.folder / "report.html").exists()
    assert "the ranking is on disk but not in MLflow: tracking.uri" in capsys.readouterr().err


def test_a_damaged_manifest_is_named(sweep: Ledger) -> None:
    path = sweep.sweep("known").manifest_file
    path.write_text("{}")
    with pytest.raises(ServiceError, match=rf"{path} is damaged: launch it again"):
        rank_sweep(sweep, "known", Options())


@pytest.mark.parametrize(
    ("name", "axis", "told"),
    [
        ("nope", None, r"sweep: got 'nope', allowed in .*: empty \| known"),
        ("known", "hours", r"--compute: got 'hours', allowed: steps \| tokens"),
        ("empty", None, r"sweep: 'empty' has no evaluations yet"),
    ],
)
def test_what_cannot_be_ranked_is_told_in_a_line(
    sweep: Ledger, name: str, axis: str | None, told: str
) -> None:
    manifest = sweep.sweep("known").manifest()
    assert manifest is not None
    rows = [{**row, "run_id": "0" * 12} for row in manifest["runs"]]
    empty = {**manifest, "sweep": "empty", "runs": rows}
    files.write_json(sweep.sweep("empty").manifest_file, empty)
    with pytest.raises(UserError, match=told):
        rank_sweep(sweep, name, Options(), axis)
