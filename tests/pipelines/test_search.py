"""Adaptive sweeps on a training that is fast, and the race's rule in a study of one's own."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import numpy as np
import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from analysis import sigmoid
from pipelines import race, search, submit
from pipelines.ledger import Ledger
from pipelines.plan import Plan, plan
from pipelines.search import ForecastPruner
from pipelines.status import statuses
from tests.fakes import behave, train_waiting

pytestmark = pytest.mark.usefixtures("signals", "no_store")
DOCS = Path(__file__).resolve().parents[2] / "docs"
SWEEP = """
strategy: adaptive
axes:
  optimizer.lr: [4e-4, 5e-4, 6e-4, 7e-4, 8e-4]
  loss: [grpo, cispo]
  loss.epsilon_high: [0.3, 0.4]
when: {loss.epsilon_high: {loss: grpo}}
set: [optimizer.lr=5e-4, budget.amount=40, budget.eval_every=2, cluster.parallel=3]
search: {trials: 7}
race: {rungs: [0.3, 1.0]}
"""


SMALL = """
strategy: adaptive
axes: {optimizer.lr: [4e-4, 6e-4, 8e-4]}
set: [optimizer.lr=5e-4, budget.amount=40, budget.eval_every=2, cluster.parallel=3]
"""


@pytest.fixture
def folder(
    tmp_path: Path, root: Path, fake_training: None, monkeypatch: pytest.MonkeyPatch
) -> Path:
    monkeypatch.setenv("SHORTLIST_ROOT", str(root))
    monkeypatch.setattr(submit, "_start_lane", lambda *_: None)
    behave(Ledger(root), "spread")
    (tmp_path / "mine" / "sweep").mkdir(parents=True)
    (tmp_path / "mine" / "sweep" / "find.yaml").write_text(SWEEP)
    (tmp_path / "mine" / "sweep" / "small.yaml").write_text(SMALL)
    return tmp_path / "mine"


@cache
def made(folder: Path, *overrides: str, sweep: str = "find") -> Plan:
    return plan(sweep, overrides, [folder])


def finish(folder: Path, ledger: Ledger, *overrides: str, sweep: str = "find") -> Plan:
    """Passes until there is nothing to train; no pass may ask for more than there is room for."""
    for _ in range(40):
        asked, report = search.advance(made(folder, *overrides, sweep=sweep), ledger)
        assert len(report.planned) <= 3
        if not report.planned:
            return asked
        train_waiting(ledger)
    raise AssertionError("the search did not end")


def told(ledger: Ledger, sweep: str = "find") -> list[optuna.trial.FrozenTrial]:
    storage = JournalStorage(JournalFileBackend(str(ledger.sweep(sweep).study)))
    return optuna.load_study(study_name=None, storage=storage).get_trials()


def attempts(ledger: Ledger) -> list[int]:
    return [run.history().attempts for run in ledger.known_runs()]


def test_asks_until_the_trials_are_done_and_nothing_twice(folder: Path, ledger: Ledger) -> None:
    first, report = search.advance(made(folder), ledger)
    labels = [run.label for run in first.runs]
    assert labels[0] == "optimizer.lr=0.0005 loss=grpo loss.epsilon_high=0.2"  # the base
    assert len(report.planned) == 3
    assert search.advance(made(folder), ledger)[1].planned == []  # no room before they are done
    assert [trial.state for trial in told(ledger)] == [TrialState.RUNNING] * 3
    train_waiting(ledger)
    asked = finish(folder, ledger)
    assert len(asked.runs) == 7
    assert [run.label for run in asked.runs[:3]] == labels
    assert len({run.run_id for run in asked.runs}) == 7
    assert attempts(ledger) == [1] * 7
    trials = told(ledger)
    assert [trial.state for trial in trials] == [TrialState.COMPLETE] * 7
    ceilings = {float(t.params["optimizer.lr"]) * 1000: t.value for t in trials}
    for ceiling, value in ceilings.items():
        assert value == pytest.approx(ceiling, abs=0.03)
    assert all(t.constraints == {"unstable": 0.0} for t in trials)
    for trial in trials:
        assert ("loss.epsilon_high" in trial.params) == (trial.params["loss"] == "grpo")


def test_goes_on_when_a_choice_is_added_and_trials_too(folder: Path, ledger: Ledger) -> None:
    before = finish(folder, ledger, "sweep.search.trials=3", sweep="small")
    words = ("sweep.axes={optimizer.lr: [4e-4,6e-4,7e-4,8e-4,9e-4]}", "sweep.search.trials=5")
    after = finish(folder, ledger, *words, sweep="small")
    assert [run.run_id for run in after.runs[:3]] == [run.run_id for run in before.runs]
    assert len({run.config.optimizer.lr for run in after.runs}) == 5
    assert attempts(ledger) == [1] * 5


def test_ends_when_the_space_is_used_up_and_tells_what_became_of_each(
    folder: Path, ledger: Ledger
) -> None:
    behave(ledger, "spread collapse 0.0008")
    asked = finish(folder, ledger, sweep="small")
    assert sorted(run.config.optimizer.lr for run in asked.runs) == [4e-4, 5e-4, 6e-4, 8e-4]
    _spoil(ledger, {f"{run.config.optimizer.lr:g}": run.run_id for run in asked.runs})
    search.advance(made(folder, sweep="small"), ledger)
    trials = {trial.params["optimizer.lr"]: trial for trial in told(ledger, "small")}
    assert trials["0.0006"].state == TrialState.FAIL
    assert trials["0.0004"].state == TrialState.FAIL
    assert trials["0.0008"].constraints == {"unstable": 1.0}
    assert trials["0.0005"].state == TrialState.COMPLETE


def _spoil(ledger: Ledger, ids: dict[str, str]) -> None:
    """One run has failed, and all that another ever reported is NaN."""
    failed, nan = ledger.run(ids["0.0006"]), ledger.run(ids["0.0004"])
    failed.event("failed", error="no")
    failed.result_file.unlink()
    for run in (failed, nan):
        run.metrics_file.unlink()
    for step in range(0, 41, 2):
        nan.point(1, step, {"steps": step, "flops": step * 1e6}, {"eval/pass_rate": float("nan")})


def test_starts_from_runs_of_other_sweeps(folder: Path, ledger: Ledger) -> None:
    other = made(folder, "sweep.search.trials=3", sweep="small")
    finish(folder, ledger, "sweep.search.trials=3", sweep="small")
    asked = search.known(made(folder), ledger)
    other = search.known(other, ledger)
    assert len(other.runs) == 3
    assert {run.run_id for run in other.runs} == {run.run_id for run in asked.runs}
    grown, report = search.advance(made(folder), ledger)
    assert len(report.planned) == 3
    assert len(grown.runs) == len(other.runs) + len(report.planned)
    assert set(attempts(ledger)) <= {0, 1}


def test_seeds_are_asked_for_together_and_told_as_one(folder: Path, ledger: Ledger) -> None:
    words = ("sweep.seeds=[0,1]", "sweep.search.trials=2", "sweep.search.objective=A_and_B")
    for _ in range(4):
        asked, _report = search.advance(made(folder, *words), ledger)
        train_waiting(ledger)
    assert [run.seed for run in asked.runs] == [0, 1] * 2
    assert all(len(trial.values) == 2 for trial in told(ledger))
    assert [len(trial.user_attrs["runs"]) for trial in told(ledger)] == [2] * 2


def test_an_adaptive_sweep_can_be_raced(folder: Path, ledger: Ledger) -> None:
    words = ("sweep.search.trials=5",)
    for _ in range(20):
        report = race.advance(made(folder, *words), ledger)
        if report.over:
            break
        train_waiting(ledger)
    rows = statuses(ledger, report.plan.rows())
    assert len(rows) == 5
    assert {row.state for row in rows} == {"completed", "stopped"}
    assert min(row.progress for row in rows) == 0.3


def objective(trial: optuna.Trial) -> float:
    ceiling = trial.suggest_float("ceiling", 0.4, 0.8)
    rng = np.random.default_rng(trial.number)
    for step in range(0, 400, 10):
        rate = float(sigmoid.value(step, ceiling, 1.5, 100, 0.2) + 0.003 * rng.normal())
        trial.report(rate, step)
        if trial.should_prune():
            raise optuna.TrialPruned
    return rate


@pytest.mark.parametrize("sign", [1, -1])
def test_pruner_stops_what_cannot_win(sign: int) -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(
        direction="maximize" if sign > 0 else "minimize",
        pruner=ForecastPruner(target=1e4, warmup=60),
    )
    for ceiling in (0.6, 0.8, 0.45, 0.5):
        study.enqueue_trial({"ceiling": ceiling})
    report = optuna.Trial.report
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(optuna.Trial, "report", lambda t, v, s: report(t, sign * v, s))
        study.optimize(lambda trial: sign * objective(trial), n_trials=4)
    pruned = [t.state == TrialState.PRUNED for t in study.trials[:4]]
    assert pruned == [False, False, True, True]
    assert study.trials[2].last_step < 200


def test_the_documented_pruner_runs() -> None:
    found = re.search(
        r"```python\n(.*?ForecastPruner.*?)```", (DOCS / "racing.md").read_text(), re.S
    )
    assert found is not None
    code = found.group(1)
    assert sum(bool(line) for line in code.splitlines()) <= 12
    scope: dict[str, object] = {}
    exec(code, scope)
    study = scope["study"]
    assert isinstance(study, optuna.Study)
    assert any(trial.state == TrialState.PRUNED for trial in study.trials)
