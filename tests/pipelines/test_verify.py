"""A promotion from its launch to its verification, and runs that keep to a forecast or leave it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from mlflow import MlflowClient

from analysis.ranking import Options
from analysis.svg import LEFT, RIGHT
from pipelines import files
from pipelines import promote as promotions
from pipelines import request as asking
from pipelines.cli import main
from pipelines.config import Tracking
from pipelines.errors import UserError
from pipelines.ledger import Ledger
from pipelines.store import SWEEP_TAG
from pipelines.tracking import open_store
from pipelines.verify import verify
from tests.analysis.browser import CHROMIUM, DRIVER, browser
from tests.pipelines import promoting
from tests.pipelines.promoting import FLOPS, Known, rate

TRUE: Known = (0.70, 1.6, 60)
LATER = range(450, 1601, 50)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A root with a promotion from 400 to 1,600 steps, of which none is trained; its run's id."""
    ledger = Ledger(tmp_path_factory.mktemp("made") / "outputs")
    known = {"loss=grpo": (0.60, 1.6, 60), "loss=cispo": TRUE}
    promoting.sweep(ledger, known, strategy="grid", axes={"loss": ["grpo", "cispo"]})
    found = promotions.promote(asking.ask(ledger, "known", [], [], Options(), "best"))
    found.save()
    plan = found.draft.plan
    manifest = {**(ledger.sweep("known").manifest() or {}), "sweep": "best", "runs": plan.rows()}
    files.write_json(ledger.sweep("best").manifest_file, {**manifest, "varied": plan.varied})
    return ledger.root, plan.runs[0].run_id


@pytest.fixture
def promoted(made: tuple[Path, str], root: Path) -> str:
    """The promotion in a root with a tracking store."""
    shutil.copytree(made[0], root, dirs_exist_ok=True)
    return made[1]


@pytest.fixture
def untracked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing goes to MLflow, which costs seconds; one test sees that it does."""
    monkeypatch.setattr("pipelines.tracking.log_ranking", lambda *_: None)


def trained(ledger: Ledger, run_id: str, known: Known = TRUE, steps: range = LATER) -> None:
    promoting.add(ledger, run_id, known, steps, np.random.default_rng(1))


def test_before_it_has_trained_there_is_a_forecast_alone(
    ledger: Ledger, promoted: str, untracked: None
) -> None:
    found = verify(ledger, "best")
    document = found.document()
    assert (found.inside, document["observed"], document["left_band_at"]) == (True, None, None)
    assert [row["compute"] for row in document["band"]] == [step * FLOPS for step in LATER]
    assert found.lines()[0] == "No evaluation yet that the forecast was not made from"


def test_a_run_that_keeps_to_its_forecast(ledger: Ledger, promoted: str, untracked: None) -> None:
    trained(ledger, promoted)
    assert main(["verify", "best", "--root", str(ledger.root)]) == 0
    document = json.loads((ledger.sweep("best").folder / "verify.json").read_text())
    assert (document["inside"], document["where"]) == (True, "inside")
    assert document["observed"]["compute"] == 1600 * FLOPS
    assert document["observed"]["evaluations"] == len(LATER)
    assert document["observed"]["reward"] == pytest.approx(rate(1500, TRUE), abs=0.008)
    again, first = document["refitted"]["interval"], document["forecast"]["interval"]
    assert again[0] < rate(1600, TRUE) < again[1]
    assert again[1] - again[0] < first[1] - first[0]


def test_a_run_that_falls_is_told_at_once(
    ledger: Ledger, promoted: str, untracked: None, capsys: pytest.CaptureFixture[str]
) -> None:
    trained(ledger, promoted, steps=range(450, 901, 50))
    trained(ledger, promoted, (0.50, 1.6, 60), range(950, 1601, 50))
    assert main(["verify", "best", "--json", "--root", str(ledger.root)]) == 1
    document = json.loads(capsys.readouterr().out)
    assert (document["inside"], document["where"]) == (False, "below")
    assert document["left_band_at"] == 950 * FLOPS
    # It stays told, once it has come back.
    trained(ledger, promoted, steps=range(1650, 2001, 50))
    assert verify(ledger, "best").document()["left_band_at"] == 950 * FLOPS


def test_a_run_that_does_better_has_left_too(
    ledger: Ledger, promoted: str, untracked: None
) -> None:
    trained(ledger, promoted, (0.85, 1.6, 60))
    found = verify(ledger, "best")
    assert found.document()["where"] == "above"
    assert "above it" in found.lines()[0]


def test_the_page_is_whole_and_in_mlflow(ledger: Ledger, promoted: str) -> None:
    trained(ledger, promoted)
    text = verify(ledger, "best").page.read_text()
    assert "Keeps to its forecast so far, over 24 evaluations" in text
    assert text.count('class="point"') == 24 + 1  # and the one in the legend
    assert text.count('class="made"') == 40 + 1
    for absent in ("http://", "https://", "<script", "None", "$"):
        assert absent not in text
    store = open_store(ledger, Tracking())
    entry = store.find(SWEEP_TAG, "best")
    assert entry is not None
    kept = {item.path for item in MlflowClient(store.uri).list_artifacts(entry)}
    assert {"verify.html", "verify.json", "manifest.json"} <= kept


@pytest.mark.skipif(DRIVER is None or CHROMIUM is None, reason="needs Chromium and chromedriver")
def test_the_page_as_a_reader_has_it(ledger: Ledger, promoted: str, untracked: None) -> None:
    """The run falls after 900 of 1,600 steps; on a screen, in the dark, and on a phone."""
    trained(ledger, promoted, steps=range(450, 901, 50))
    trained(ledger, promoted, (0.50, 1.6, 60), range(950, 1601, 50))
    found = verify(ledger, "best")
    wide = "return document.documentElement.scrollWidth"
    paper = "return getComputedStyle(document.body).backgroundColor"
    with browser() as page:
        page.open(found.page.as_uri())
        assert page.run("return document.querySelector('h1').textContent") == found.lines()[0]
        forecast = found.document()["forecast"]
        low, high = forecast["interval"]
        row = [f"{forecast['reward']:.3f}", f"{low:.3f}–{high:.3f}", "1.6×10⁹"]
        assert page.run(cells("td"))[:3] == row
        left = float(page.run("return document.querySelector('.out').getAttribute('cx')"))
        assert left == pytest.approx(LEFT + 950 / 1600 * (RIGHT - LEFT), abs=0.1)
        keys = ["one evaluation", "mean of the last 4", "forecast of that mean"]
        keys += ["band it should keep to", "made the forecast", "left the band"]
        assert page.run(cells(".keys li")) == keys
        assert page.run(paper) == "rgb(255, 255, 255)"
        page.dark()
        assert page.run(paper) == "rgb(16, 19, 23)"
        page.resize(390, 844)
        assert page.run(wide) == 390
        drawn = "return document.querySelector('.kept > svg').getBoundingClientRect()"
        assert page.run(f"{drawn}.right") <= 390
        assert page.errors() == []


def cells(css: str) -> str:
    return f"return [...document.querySelectorAll('{css}')].map(node => node.textContent)"


def test_a_part_is_held_against_the_forecast_of_it(ledger: Ledger, untracked: None) -> None:
    """`verify` reads what was forecast by from the evidence: the part passes half as often."""
    document = {"axes": {"loss": ["grpo"]}, "set": ["budget.amount=400", "task=two"]}
    promoting.sweep(ledger, {"loss=grpo": TRUE}, **document)
    asked = asking.ask(ledger, "known", [], [], Options(), "best", metric=promoting.PART)
    found = promotions.promote(asked)
    found.save()
    manifest = {**(ledger.sweep("known").manifest() or {}), "sweep": "best"}
    manifest |= {"runs": found.draft.plan.rows(), "varied": found.draft.plan.varied}
    files.write_json(ledger.sweep("best").manifest_file, manifest)
    trained(ledger, found.evidence["run_id"])
    held = verify(ledger, "best")
    assert held.inside
    observed = held.document()["observed"]
    assert observed["evaluations"] == len(LATER)
    assert observed["reward"] == pytest.approx(rate(1500, TRUE) / 2, abs=0.004)
    assert "eval/hard/pass_rate" in held.page.read_text()


def test_what_was_never_promoted(ledger: Ledger, promoted: str) -> None:
    with pytest.raises(UserError, match=r"promotion: got 'known', allowed in .*: best"):
        verify(ledger, "known")


SWEEP = """
strategy: one_at_a_time
axes: {loss: [cispo], advantage: [none]}
set: [budget.amount=100, budget.eval_every=5]
"""


def test_from_sweep_to_promotion_on_the_command_line(
    tmp_path: Path, ledger: Ledger, fake_jobs: None, capsys: pytest.CaptureFixture[str]
) -> None:
    """Training of the tests: 0.2 + 0.6 s / (s + 20) at step s, for every recipe."""
    (tmp_path / "mine" / "sweep").mkdir(parents=True)
    (tmp_path / "mine" / "sweep" / "small.yaml").write_text(SWEEP)
    root = f"root={ledger.root}"
    launch = ["launch", "small", root, "--config-dir", str(tmp_path / "mine"), "--follow"]
    assert main(launch) == 0
    large = ["promote", "small", root, "budget.amount=400", "budget.eval_every=5", "--json"]
    capsys.readouterr()
    assert main([*large, "--follow"]) == 0
    told = capsys.readouterr()
    assert f"verify small-promoted --root {ledger.root}\n" in told.err
    document = json.loads(told.out)
    run_id = document["run_id"]
    assert document["planned"] == [run_id]
    assert ledger.run(run_id).points()[-1]["compute"]["steps"] == 400
    assert ledger.run(run_id).history().sweeps == ["small", "small-promoted"]
    assert document["forecast"]["reward"] == pytest.approx(0.2 + 0.6 * 400 / 420, abs=0.03)

    # Again: nothing is trained, and the forecast is that of before the run.
    evidence = ledger.promotion("small-promoted").evidence.read_bytes()
    assert main(large) == 0
    assert json.loads(capsys.readouterr().out)["planned"] == []
    assert ledger.promotion("small-promoted").evidence.read_bytes() == evidence
    assert main([*large, "budget.log_every=1"]) == 2
    assert main(["verify", "small-promoted", "--root", str(ledger.root)]) == 0
    assert main(["rank", "small-promoted", "--root", str(ledger.root)]) == 0


@pytest.mark.slow
def test_a_composed_recipe_is_confirmed_before_it_is_promoted(
    ledger: Ledger, fake_jobs: None, capsys: pytest.CaptureFixture[str]
) -> None:
    """The leave-one-out trains with the tests' training: then nothing beats what was composed."""
    low, high = (0.60, 1.6, 60), TRUE
    curves = {"base": low, "loss=cispo": high, "batch=16x8": high}
    axes = {"loss": ["cispo"], "batch": ["16x8"]}
    promoting.sweep(ledger, curves, strategy="one_at_a_time", axes=axes)
    large = ["promote", "known", f"root={ledger.root}", "--confirm-loo", "--json"]
    assert main([*large, "budget.eval_every=20"]) == 0
    confirming = json.loads(capsys.readouterr().out)
    assert confirming["confirming"] == "known-promoted-loo"
    assert {run["budget"] for run in confirming["runs"]} == {800.0}
    assert not ledger.promotion("known-promoted").evidence.exists()
    assert main([*large, "budget.eval_every=20", "--follow"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["sweep"], document["winner"]["run"]) == ("known-promoted-loo", "base")
    assert document["winner"]["config"]["loss"]["name"] == "cispo"
    assert document["winner"]["config"]["batch"]["prompts"] == 16
    assert ledger.run(document["run_id"]).points()[-1]["compute"]["steps"] == 1600
    assert main(["verify", "known-promoted", "--root", str(ledger.root)]) == 0
