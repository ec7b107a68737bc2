"""What the command line accepts, prints and ends with. Commands run for real, in this process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipelines.cli import COMMANDS, main
from pipelines.display import duration, program, quantity, table


def told(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    status = main(list(words))
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = told(capsys, "--help")
    assert status == 0
    assert all(f"\n  {name} " in out for name in COMMANDS)
    assert told(capsys)[0] == 2


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_has_help_and_takes_json(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0
    assert "--json" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nope"], "command: got 'nope', allowed: plan | launch"),
        (["plan"], "shortlist plan: the following arguments are required: SWEEP"),
        (["plan", "nope"], "sweep: got 'nope', allowed: "),
        (["plan", "demo", "loss=nope"], "loss: got 'nope', allowed: bnpo | cispo"),
        (["plan", "demo", "--nope"], "shortlist plan: unrecognized arguments: --nope"),
        (["config", "batch.prompts=x"], "batch.prompts: got 'x', allowed: a whole number"),
        (["rank", "demo", "--at", "x"], "argument --at: invalid float value: 'x'"),
        (["rank", "demo", "--at", "-3"], "at: got -3.0, allowed: a number > 0"),
        (["cancel"], "SWEEP|RUN: got nothing, allowed: a sweep, a run, or --all"),
        (["retry", "demo", "--all"], "SWEEP|RUN: got 'demo' and --all, allowed: a sweep"),
        (["fit", "/nope.csv"], "/nope.csv: cannot be read: No such file or directory"),
        (["fit", "/nope.doc"], "/nope.doc: got .doc, allowed: .csv"),
    ],
)
def test_bad_input_is_one_line_and_status_2(
    words: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("SHORTLIST_ROOT", str(tmp_path))
    status, out, err = told(capsys, *words)
    assert (status, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_a_sweep_never_launched_says_what_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("status", "rank", "sync", "logs", "cancel", "retry"):
        status, _, err = told(capsys, name, "demo", "--root", str(tmp_path))
        assert status == 2
        assert err == f"shortlist: sweep: got 'demo', allowed in {tmp_path}: none launched yet\n"


def test_plan_prints_the_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = told(capsys, "plan", "demo", f"root={tmp_path}", "--json")
    assert status == 0
    document = json.loads(out)
    assert (document["sweep"], document["strategy"]) == ("demo", "one_at_a_time")
    assert len({run["run_id"] for run in document["runs"]}) == len(document["runs"]) >= 6
    first = document["runs"][0]
    assert (first["state"], first["attempts"], first["compute"]) == ("planned", 0, 0.0)
    assert first["cost"]["steps"] == first["budget"] == 600
    status, out, _ = told(capsys, "plan", "demo", f"root={tmp_path}")
    assert all(run["run_id"] in out for run in document["runs"])
    assert not list(tmp_path.iterdir())


def test_flags_and_overrides_come_in_any_order(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = f"root={tmp_path}"
    one = told(capsys, "plan", "demo", "--json", root, "budget=smoke")
    other = told(capsys, "plan", "demo", root, "budget=smoke", "--json")
    assert one == other
    assert one[0] == 0


def test_config_prints_one_resolved_run(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = told(capsys, "config", "loss=cispo", "seed=3", "--json")
    document = json.loads(out)
    assert status == 0
    assert document["config"]["loss"]["name"] == "cispo"
    assert document["config"]["seed"] == 3
    assert len(document["run_id"]) == 12


def test_fit_recovers_known_parameters(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [f"a,{c},{0.2 + 0.41 / (1 + (2542 / c) ** 1.92):.6f}" for c in range(200, 16001, 200)]
    (tmp_path / "curves.csv").write_text("\n".join(["run,compute,reward", *rows]))
    words = ["fit", str(tmp_path / "curves.csv"), "--at", "100000", "--json"]
    status, out, _ = told(capsys, *words, "--out", str(tmp_path / "report"))
    fit = json.loads(out)["fits"][0]
    assert status == 0
    assert fit["A"] == pytest.approx(0.61, abs=2e-3)
    assert fit["B"] == pytest.approx(1.92, abs=2e-2)
    assert fit["C_mid"] == pytest.approx(2542, rel=1e-2)
    assert fit["forecast"]["reward"] == pytest.approx(0.2 + 0.41 / (1 + 0.02542**1.92), abs=3e-3)
    assert (tmp_path / "report" / "report.html").exists()


def test_an_unexpected_error_is_one_line_unless_debug(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(_: object) -> int:
        raise RuntimeError("a\n  bug")

    monkeypatch.setattr("pipelines.commands.config", broken)
    status, _, err = told(capsys, "config")
    assert status == 1
    assert err == "shortlist: unexpected RuntimeError: a bug (--debug shows the traceback)\n"
    with pytest.raises(RuntimeError, match="bug"):
        main(["config", "--debug"])


def test_a_filesystem_error_is_status_3(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(_: object) -> int:
        raise OSError(28, "No space left on device", "/data/runs")

    monkeypatch.setattr("pipelines.commands.config", full)
    status, _, err = told(capsys, "config")
    assert (status, err) == (3, "shortlist: filesystem: No space left on device: /data/runs\n")


def test_a_pipe_gets_plain_aligned_text(capsys: pytest.CaptureFixture[str]) -> None:
    table(["run", "pass rate"], [["loss=cispo", 0.5], ["[b]", "-"]], title="t")
    assert (
        capsys.readouterr().out
        == "t\nrun         pass rate\nloss=cispo        0.5\n[b]                 -\n"
    )


def test_the_program_is_named_as_it_can_be_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "bin" / "shortlist"
    script.parent.mkdir()
    script.write_text("")
    script.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", [str(script)])
    monkeypatch.setenv("PATH", "/nowhere")
    assert program() == "bin/shortlist"
    monkeypatch.setenv("PATH", str(script.parent))
    assert program() == "shortlist"


def test_quantities_and_durations_read_well() -> None:
    assert [quantity(x) for x in (None, 0, 999, 1250, 6.43e11, 2e18)] == [
        "-",
        "0",
        "999",
        "1.25 k",
        "643 G",
        "2 E",
    ]
    assert [duration(x) for x in (None, 42, 180, 7500)] == ["-", "42 s", "3 min", "2 h 05 min"]
