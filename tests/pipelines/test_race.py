"""Races on a training that is fast: its curves level off at 1000 times the learning rate."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from pipelines import race, submit
from pipelines.cli import main
from pipelines.config import Race
from pipelines.costs import over_ceiling
from pipelines.launch import launch
from pipelines.ledger import Ledger
from pipelines.plan import Plan, PlannedRun
from recipes.config import Budget, Optimizer
from tests.fakes import behave, make_plan, planned, tiny_config, train_waiting

pytestmark = pytest.mark.usefixtures("signals", "no_store")
CEILINGS = (0.4, 0.45, 0.5, 0.55, 0.8)
BUDGET = Budget(amount=40, eval_every=2)
RUNGS = Race(rungs=[0.3, 0.6, 1.0])


def runner(ceiling: float, seed: int = 0) -> PlannedRun:
    config = tiny_config(budget=BUDGET, optimizer=Optimizer(lr=ceiling / 1000), seed=seed)
    label = f"optimizer.lr={ceiling / 1000:g}"
    return replace(planned(config, label), choices={"optimizer.lr": f"{ceiling / 1000:g}"})


def plan_of(root: Path, *runs: PlannedRun) -> Plan:
    plan = make_plan(root, [runs[0].config])
    return replace(plan, runs=list(runs), varied=["optimizer.lr"], race=RUNGS)


@pytest.fixture
def plan(root: Path, ledger: Ledger, fake_training: None, monkeypatch: pytest.MonkeyPatch) -> Plan:
    monkeypatch.setattr(submit, "_start_lane", lambda *_: None)
    behave(ledger, "spread")
    return plan_of(root, *map(runner, CEILINGS))


def finish(plan: Plan, ledger: Ledger, passes: int = 10) -> race.Report:
    for _ in range(passes):
        report = race.advance(plan, ledger)
        if report.over:
            return report
        train_waiting(ledger)
    raise AssertionError("the race did not end")


def steps(report: race.Report) -> list[float]:
    return [r.row.compute.get("steps", 0.0) for e in report.entries for r in e.runners]


def events(ledger: Ledger, run: PlannedRun) -> list[str]:
    names = [item["event"] for item in ledger.run(run.run_id).history().events]
    return [name for name in names if name != "checkpoint"]


def test_the_best_goes_to_its_budget_and_the_others_stop_at_a_rung(
    plan: Plan, ledger: Ledger
) -> None:
    first = race.advance(plan, ledger)
    assert not first.over
    assert first.continued == [run.label for run in plan.runs]
    train_waiting(ledger)
    report = finish(plan, ledger)
    assert steps(report) == [12, 12, 12, 12, 40]
    assert events(ledger, plan.runs[0]) == ["planned", "started", "finished", "cancelled"]
    assert events(ledger, plan.runs[4]) == ["planned", "started", "finished"] * 3
    assert [e.runners[0].row.state for e in report.entries] == ["stopped"] * 4 + ["completed"]
    assert "of being the best" in report.entries[0].why
    flops = report.spending[0]
    assert flops.spent == pytest.approx((4 * 12 + 40) * 1e6)
    assert flops.saved == pytest.approx(4 * 28e6)
    assert flops.remaining == 0


def test_the_likeliest_go_on_while_the_others_wait(plan: Plan, ledger: Ledger) -> None:
    plan = replace(plan, race=replace(RUNGS, margin=1.0, together=2))  # all equally likely
    race.advance(plan, ledger)
    train_waiting(ledger)
    second = race.advance(plan, ledger)
    assert second.continued == [run.label for run in plan.runs[:2]]
    assert [e.why for e in second.entries] == ["", "", *["waits for the likelier"] * 3]
    assert second.stopped == {}
    train_waiting(ledger)
    assert steps(race.advance(plan, ledger)) == [24, 24, 12, 12, 12]
    train_waiting(ledger)
    assert steps(finish(plan, ledger)) == [40] * 5
    assert all(events(ledger, run).count("finished") == 3 for run in plan.runs)


def test_a_pass_without_news_changes_nothing(plan: Plan, ledger: Ledger) -> None:
    race.advance(plan, ledger)
    before = [events(ledger, run) for run in plan.runs]
    waiting = race.advance(plan, ledger)  # what it started is still waiting for a lane
    assert not waiting.over
    assert [events(ledger, run) for run in plan.runs] == before
    train_waiting(ledger)
    finish(plan, ledger)
    after = [events(ledger, run) for run in plan.runs]
    again = race.advance(plan, ledger)
    assert (again.over, again.stopped, again.continued) == (True, {}, [])
    assert [events(ledger, run) for run in plan.runs] == after


def test_what_comes_to_its_rung_during_a_pass_is_judged_by_the_next(
    plan: Plan, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    race.advance(plan, ledger)
    with monkeypatch.context() as during:
        during.setattr(submit, "top_up", lambda *_: train_waiting(ledger))
        assert not race.advance(plan, ledger).over
    assert len(race.advance(plan, ledger).stopped) == 4


def test_launch_leaves_what_a_race_stopped(plan: Plan, ledger: Ledger) -> None:
    finish(plan, ledger)
    assert launch(plan, ledger).planned == []
    assert len(launch(plan, ledger, retry=True).planned) == 4


def test_a_race_revives_what_it_stopped_and_not_what_a_person_did(
    plan: Plan, ledger: Ledger
) -> None:
    fewer = replace(plan, runs=plan.runs[:4])
    before = steps(finish(fewer, ledger))
    assert before[:3] == [12, 12, 24]
    ledger.run(plan.runs[2].run_id).event("cancelled", why="by hand")
    generous = replace(fewer, race=replace(RUNGS, margin=0.9))
    report = finish(generous, ledger)
    assert steps(report) == [40, 40, 24, 40]
    assert report.entries[2].runners[0].stopped_by == "person"


def test_a_cancelled_sweep_is_raced_no_further(
    plan: Plan, ledger: Ledger, capsys: pytest.CaptureFixture[str]
) -> None:
    race.advance(plan, ledger)
    train_waiting(ledger)
    race.advance(plan, ledger)  # four are stopped, one waits for its second rung
    assert main(["cancel", "tiny", f"--root={ledger.root}"]) == 0
    assert capsys.readouterr().out.startswith("5 of 5 runs stopped")
    report = race.advance(replace(plan, race=replace(RUNGS, margin=0.9)), ledger)
    assert report.over
    assert [e.runners[0].stopped_by for e in report.entries] == ["person"] * 5


def test_unstable_runs_are_stopped(plan: Plan, ledger: Ledger) -> None:
    behave(ledger, "spread collapse 0.0008")
    report = finish(plan, ledger)
    assert report.entries[4].why.startswith("unstable: reward collapsed")
    assert steps(report)[3] == 40
    assert steps(report)[4] < 40


def test_a_young_model_may_be_truncated(plan: Plan, ledger: Ledger) -> None:
    runner_ = race._runner(ledger, race.statuses(ledger, plan.rows())[0])
    truncated, collapsed = "18% of recent responses truncated", "reward collapsed"
    young = replace(runner_, row=replace(runner_.row, problems=[truncated, collapsed]))
    assert young.problems(first=0.3) == [collapsed]
    spent = {"steps": 12.0}
    older = replace(young, row=replace(young.row, compute=spent))
    assert older.problems(first=0.3) == [truncated, collapsed]


def test_seeds_of_a_recipe_stay_together(root: Path, plan: Plan, ledger: Ledger) -> None:
    seeds = [runner(c, seed) for c in (0.4, 0.5, 0.6, 0.8) for seed in (0, 1)]
    report = finish(plan_of(root, *seeds), ledger)
    assert len(report.entries) == 4
    assert steps(report) == [12] * 6 + [40] * 2


def ablation(plan: Plan) -> Plan:
    """One at a time, over the worst of the recipes."""
    base = replace(plan.runs[0], label="base")
    return replace(plan, strategy="one_at_a_time", base=base.choices, runs=[base, *plan.runs[1:]])


def test_the_base_of_an_ablation_goes_on_with_its_variants(plan: Plan, ledger: Ledger) -> None:
    report = finish(ablation(plan), ledger)
    assert steps(report) == [40, 12, 12, 12, 40]
    assert [e.runners[0].row.state for e in report.entries] == [
        "completed",
        *["stopped"] * 3,
        "completed",
    ]
    assert report.winners == ["base", "optimizer.lr=0.0008"]
    told = "kept in: the others are compared with it"
    base, *others = report.document()["recipes"]
    assert (base["stopped"], base["why"]) == (None, told)
    assert base["chance"] < RUNGS.threshold
    assert [item["why"] == item["stopped"] for item in others] == [True] * 4
    assert [line[-1] for line in race.table(report)[1] if line[0] == "base"] == [told]


def test_a_pass_tells_that_the_base_is_kept_in(plan: Plan, ledger: Ledger) -> None:
    plan = ablation(plan)
    race.advance(plan, ledger)
    train_waiting(ledger)
    report = race.advance(plan, ledger)
    assert report.continued == ["base", "optimizer.lr=0.0008"]
    assert report.notes == ["base kept in: the others are compared with it"]


def test_a_base_whose_variants_are_all_cancelled_is_judged_as_any(
    plan: Plan, ledger: Ledger
) -> None:
    plan = ablation(plan)
    race.advance(plan, ledger)
    train_waiting(ledger)
    for run in plan.runs[1:]:
        ledger.run(run.run_id).event("cancelled", why="by hand")
    assert steps(finish(plan, ledger)) == [12] * 5


def test_an_unstable_base_is_stopped(plan: Plan, ledger: Ledger) -> None:
    behave(ledger, "spread collapse 0.0004")
    report = finish(ablation(plan), ledger)
    assert report.entries[0].why.startswith("unstable: reward collapsed")
    assert steps(report) == [12, 12, 12, 12, 40]


def test_the_base_is_paid_for_first(plan: Plan, ledger: Ledger) -> None:
    """A step takes 1 / 3600 of a GPU-hour: after the first rungs, there is one rung of 12 left."""
    plan = ablation(plan)
    race.advance(plan, ledger)
    train_waiting(ledger)
    report = finish(replace(plan, max_gpu_hours=74 / 3600), ledger)
    assert steps(report) == [24, 12, 12, 12, 12]


def test_a_failed_run_holds_up_nothing(plan: Plan, ledger: Ledger) -> None:
    race.advance(plan, ledger)
    ledger.run(plan.runs[0].run_id).event("failed", error="no")
    report = finish(plan, ledger)
    assert report.entries[0].runners[0].row.state == "failed"
    assert steps(report)[-1] == 40


def test_a_ceiling_of_gpu_hours_ends_it(plan: Plan, ledger: Ledger) -> None:
    # A step takes 1 / 3600 of a GPU-hour: all first rungs take 60 steps, one more rung 12.
    first = race.advance(replace(plan, max_gpu_hours=60 / 3600), ledger)
    assert len(first.continued) == 1  # nothing is measured yet: one run tells what they cost
    race.advance(plan, ledger)
    train_waiting(ledger)
    report = finish(replace(plan, max_gpu_hours=66 / 3600), ledger)
    assert steps(report) == [12] * 5
    assert report.notes == ["the ceiling of 0.0183333 GPU-hours leaves 1 runs where they are"]
    report = finish(replace(plan, max_gpu_hours=74 / 3600), ledger)
    assert steps(report) == [12] * 4 + [24]
    reached = finish(replace(plan, max_gpu_hours=72 / 3600), ledger)
    assert reached.notes == ["the ceiling of 0.02 GPU-hours is reached: 0.02 spent"]


def test_launch_and_plan_know_the_ceiling(plan: Plan, ledger: Ledger) -> None:
    race.advance(plan, ledger)
    train_waiting(ledger)
    rows = race.statuses(ledger, plan.rows())
    assert over_ceiling(replace(plan, max_gpu_hours=200 / 3600), rows) is None
    whole = over_ceiling(replace(plan, max_gpu_hours=199 / 3600), rows)
    assert whole == pytest.approx(200 / 3600)  # five runs of 40 steps


SWEEP = """
axes: {optimizer.lr: [4e-4, 5e-4, 6e-4, 8e-4]}
set: [budget.amount=40, budget.eval_every=2]
race: {rungs: [0.3, 1.0]}
"""


def test_race_command_follows_to_the_end(
    tmp_path: Path,
    root: Path,
    fake_jobs: None,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = tmp_path / "mine" / "sweep"
    folder.mkdir(parents=True)
    (folder / "small.yaml").write_text(SWEEP)
    behave(Ledger(root), "spread")
    monkeypatch.setenv("SHORTLIST_ROOT", str(root))
    words = ["race", "small", "--config-dir", str(folder.parent)]
    assert main([*words, "--follow", "--json"]) == 0
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert [item["done"] for item in document["recipes"]] == [[0.3], [0.3], [0.3], [1.0]]
    assert [item["states"] for item in document["recipes"]][-1] == ["completed"]
    assert "stopped optimizer.lr=0.0004: a chance of" in captured.err
    assert main([*words, "--metric", "hard"]) == 2
    told = "sweep.metric: got 'eval/hard/pass_rate', allowed: eval/pass_rate"
    assert told in capsys.readouterr().err
    assert main(words) == 0
    told = capsys.readouterr().out
    assert "flops: spent" in told
    assert "The race is over" in told
