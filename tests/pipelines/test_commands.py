"""The commands in the order a person types them, on a sweep whose training is fast."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipelines.cli import main
from pipelines.ledger import Ledger

SWEEP = """
strategy: one_at_a_time
axes: {loss: [cispo]}
set: [budget.amount=60, budget.eval_every=5]
"""


@pytest.fixture
def words(
    tmp_path: Path, root: Path, fake_jobs: None, monkeypatch: pytest.MonkeyPatch
) -> list[str]:
    """What comes after the name of the sweep ``small``, and the root of it all."""
    folder = tmp_path / "mine" / "sweep"
    folder.mkdir(parents=True)
    (folder / "small.yaml").write_text(SWEEP)
    monkeypatch.setenv("SHORTLIST_ROOT", str(root))
    return ["small", "--config-dir", str(folder.parent)]


def answer(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    capsys.readouterr()
    status = main([*words, "--json"])
    document = json.loads(capsys.readouterr().out)
    assert isinstance(document, dict)
    return status, document


def test_launch_status_rank_sync_and_again(
    words: list[str], root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, followed = answer(capsys, "launch", *words, "--follow")
    assert status == 0
    runs = followed["runs"]
    assert isinstance(runs, list)
    assert [(run["label"], run["state"], run["attempts"]) for run in runs] == [
        ("base", "completed", 1),
        ("loss=cispo", "completed", 1),
    ]
    assert [run["pass_rate"] for run in runs] == [pytest.approx(0.65)] * 2
    assert answer(capsys, "status", "small") == (0, followed)

    status, again = answer(capsys, "launch", *words)
    assert (status, again["planned"]) == (0, [])
    # These jobs log nothing themselves: 13 evaluations of two runs are missing, and then none.
    assert answer(capsys, "sync", "small") == (0, {"sweep": "small", "points": 26})
    assert answer(capsys, "sync", "small") == (0, {"sweep": "small", "points": 0})

    status, document = answer(capsys, "rank", "small", "--at", "1e9")
    assert status == 0
    assert document == json.loads((root / "sweeps" / "small" / "ranking.json").read_text())
    fits = document["fits"]
    assert isinstance(fits, list)
    # The fake curve: 0.2 + 0.6 / (1 + 20 / step), with 1e6 FLOPs a step.
    assert {fit["run"] for fit in fits} == {"base", "loss=cispo"}
    assert [fit["forecast"]["compute"] for fit in fits] == [1e9, 1e9]

    assert main(["rank", "small"]) == 0
    out = capsys.readouterr().out
    assert f"Report: {root / 'sweeps' / 'small' / 'report.html'}" in out
    assert "Next: shortlist launch small" in out
    assert main(["plan", *words]) == 0
    assert "2 runs: 2 exist, 0 to train" in capsys.readouterr().out


def test_what_failed_is_shown_and_tried_again_only_when_told(
    words: list[str], root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (root / "runs").mkdir()
    (root / "runs" / "behave").write_text("fail")
    status, followed = answer(capsys, "launch", *words, "--follow")
    runs = followed["runs"]
    assert isinstance(runs, list)
    assert (status, {run["state"] for run in runs}) == (1, {"failed"})
    assert all(run["error"].endswith("ValueError: the loss became a pumpkin") for run in runs)
    assert main(["status", "small"]) == 1
    assert "the loss became a pumpkin" in capsys.readouterr().out

    (root / "runs" / "behave").unlink()
    assert main(["launch", *words, "--follow"]) == 1
    assert "(loss=cispo) failed; `retry`" in capsys.readouterr().err
    first, second = (run["run_id"] for run in runs)
    status, logged = answer(capsys, "logs", first[:6])
    (only,) = logged["runs"]
    assert only["run_id"] == first
    assert only["text"].endswith("ValueError: the loss became a pumpkin\n")
    # One run, as it was launched: its sweep's file is not looked at.
    status, followed = answer(capsys, "retry", first, "--follow")
    assert [(run["state"], run["attempts"]) for run in followed["runs"]] == [
        ("completed", 2),
        ("failed", 1),
    ]
    status, followed = answer(capsys, "retry", "small", "--follow")
    assert status == 0
    assert [run["attempts"] for run in followed["runs"]] == [2, 2]
    assert answer(capsys, "status", second[:7])[1]["runs"] == followed["runs"][1:]
    assert answer(capsys, "status")[1]["runs"] == followed["runs"]
    assert answer(capsys, "cancel", "small") == (0, {"stopped": []})
    assert answer(capsys, "retry", "--all")[1]["planned"] == []


def test_train_tells_of_each_evaluation(
    words: list[str], root: Path, signals: None, capsys: pytest.CaptureFixture[str]
) -> None:
    overrides = ["budget.amount=10", "budget.eval_every=5"]
    assert main(["train", *overrides]) == 0
    captured = capsys.readouterr()
    assert captured.err.splitlines()[:3] == [
        "step 0: pass rate 0.200 (standard error 0.010)",
        "step 5: pass rate 0.320 (standard error 0.010)",
        "step 10: pass rate 0.400 (standard error 0.010)",
    ]
    assert "completed" in captured.out
    assert len(Ledger(root).known_runs()) == 1


def test_configuration_is_printed_as_yaml(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "optimizer.lr=1e-3"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("# run_id: ")
    assert "\n  lr: 0.001\n" in out
