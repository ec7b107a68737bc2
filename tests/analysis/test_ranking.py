"""Whole analyses: order, probabilities, options, the document, and hardly any curve at all."""

import json

import numpy as np
import pytest

from analysis import sigmoid
from analysis.curves import Curve, CurveError, curve
from analysis.fits import windows
from analysis.ranking import Options, analyse
from tests.analysis.simulate import SCALERL, compute, run

SLOW_HIGH = (0.65, 1.7, 6000, 0.2)
FAST_LOW = (0.56, 1.9, 1500, 0.2)


def crossing() -> list[Curve]:
    return [run("slow", SLOW_HIGH, last=16000, seed=2), run("fast", FAST_LOW, last=16000, seed=1)]


def test_the_order_turns_at_the_compute_where_curves_cross() -> None:
    assert analyse(crossing(), Options(at=2000)).order == ["fast", "slow"]
    late = analyse(crossing(), Options(at=1e5))
    assert late.order == ["slow", "fast"]
    assert [f.probability_best for f in late.fits] == [1.0, 0.0]
    forecast = late.document()["fits"][0]["forecast"]
    truth = float(sigmoid.value(1e5, *SLOW_HIGH))
    assert forecast["compute"] == 1e5
    assert forecast["interval"][0] < truth < forecast["interval"][1]
    assert forecast["reward"] == pytest.approx(truth, abs=0.02)


def test_within_the_margin_the_faster_comes_first() -> None:
    quick, slow = (0.605, 2.3, 2542, 0.2), (0.612, 1.6, 2542, 0.2)
    curves = [run("slow", slow, last=16000), run("quick", quick, last=16000, seed=1)]
    assert analyse(curves).order == ["quick", "slow"]
    assert analyse(curves, Options(margin=0.002)).order == ["slow", "quick"]


def test_a_lucky_unstable_or_short_run_is_not_first() -> None:
    curves = [
        run("sound", SCALERL),
        run("cut", (0.9, *SCALERL[1:]), truncation=0.2),
        run("short", (0.62, *SCALERL[1:]), last=1500),
        curve("tiny", [1, 2], [0.1, 0.9]),
    ]
    found = analyse(curves)
    assert found.order == ["sound", "short", "tiny", "cut"]
    assert [f.resolved for f in found.fits] == [True, False, False, True]


def test_seeds_are_one_fit_with_the_spread_between_them() -> None:
    truths = [(A, *SCALERL[1:]) for A in (0.59, 0.61, 0.63)]
    seeds = [run(f"s{i}", t, seed=i, of=i, choices={"loss": "x"}) for i, t in enumerate(truths)]
    (row,) = analyse(seeds).document()["fits"]
    assert (row["run"], row["runs"], row["seeds"]) == ("s0", ["s0", "s1", "s2"], [0, 1, 2])
    assert row["A_interval"][0] < 0.61 < row["A_interval"][1]
    assert row["A_interval"][1] - row["A_interval"][0] > 0.03


def test_the_margin_measured_from_seeds_is_their_reproducibility() -> None:
    A = (0.60, 0.62)
    seeds = [
        run(
            f"{recipe}{i}",
            (a, *SCALERL[1:]),
            last=16000,
            sd=0.001,
            seed=i,
            of=i,
            choices={"loss": recipe},
        )
        for recipe in ("x", "y")
        for i, a in enumerate(A)
    ]
    measured = analyse(seeds, Options(margin_from_seeds=True)).margin
    assert measured == pytest.approx(1.96 * np.sqrt(2) * np.std(A, ddof=1), rel=0.1)
    alone = analyse(seeds[:1], Options(margin_from_seeds=True))
    assert alone.margin == 0.02
    assert alone.notes[0].startswith("margin not measured")


def test_a_run_that_has_levelled_says_so() -> None:
    (f,) = analyse([run(last=40000)]).fits
    assert f.left_to_gain is not None
    assert f.left_to_gain < 0.005
    assert f.notes == [f"plateau: at most {f.left_to_gain:.3f} left to gain"]
    assert analyse([run(last=6000)]).fits[0].notes == []


def test_the_error_the_prompts_share_is_what_does_not_scatter() -> None:
    C, rng = compute(8000), np.random.default_rng(0)
    reward = sigmoid.value(C, *SCALERL) + rng.normal(0, 0.006, len(C))
    given = curve("a", C, reward, np.full(len(C), 0.010))  # 0.006 of it scatter, 0.008 shared
    (row,) = analyse([given]).document()["fits"]
    assert row["prompt_error"] == pytest.approx(0.008, abs=0.0012)
    assert analyse([run()]).document()["fits"][0]["prompt_error"] is None


def test_windows_of_points_are_honoured() -> None:
    (row,) = analyse([run()], Options(until=5000, skip_below=1500)).document()["fits"]
    assert row["n_points"] == 24  # 1500, 1650 ... 4950
    assert analyse([run()], Options(until=5000)).fits[0].last_compute == 4950
    left = analyse([run()], Options(until=5000)).fits[0].left_out(None, 5000)
    assert left[0][0].min() == 5100


def test_early_cuts_barely_move_a_true_sigmoid() -> None:
    found = windows(analyse([run(last=16000)]).fits[0])
    assert [w["skip_below"] for w in found] == pytest.approx([0, 477, 1590, 3180])
    assert [w["A"] for w in found] == pytest.approx([0.61] * 4, abs=0.004)


def test_an_unresolved_ceiling_is_null_and_says_what_would_settle_it() -> None:
    (row,) = analyse([run(last=3000)]).document()["fits"]
    assert row["resolved"] is False
    assert [row[k] for k in ("A", "B", "C_mid", "R0")] == [None] * 4
    assert 3000 < row["needed_compute"] < 12000
    assert row["notes"][0].startswith("ceiling unresolved, somewhere in")


def test_four_thousand_hours_do_not_resolve_the_papers_margin() -> None:
    rows = analyse([run(f"r{i}", last=4000, seed=i) for i in range(6)], Options(pool=False))
    assert [f.resolved for f in rows.fits] == [False] * 6
    longer = analyse([run(f"r{i}", last=8000, seed=i) for i in range(6)])
    assert [f.resolved for f in longer.fits] == [True] * 6


def test_a_curve_that_is_no_sigmoid_is_called_one() -> None:
    C = compute(8000)
    (f,) = analyse([curve("log", C, 0.1 + 0.08 * np.log1p(C / 300))]).fits
    assert f.better_form == "logarithm"
    assert any("poor description" in note for note in f.notes)


def test_pooling_is_tried_only_where_something_is_open() -> None:
    early = [run(f"r{i}", last=3000, seed=i) for i in range(6)]
    assert "pooled" in analyse(early).notes[0]
    assert analyse(early, Options(pool=False)).notes == []
    assert analyse([run(f"r{i}", seed=i) for i in range(4)]).notes == []


HARDLY = {
    "one point": ([5], [0.3]),
    "two points": ([5, 6], [0.3, 0.4]),
    "only the start": ([0], [0.3]),
    "nothing": ([], []),
    "constant": (range(1, 15), [0.4] * 14),
    "constant at zero": (range(1, 15), [0.0] * 14),
    "constant at one": (range(15), [1.0] * 15),
    "falling": (range(1, 15), np.linspace(0.6, 0.5, 14)),
    "missing": (range(1, 15), [np.nan, 0.2, np.inf, *np.linspace(0.2, 0.4, 11)]),
    "negative compute": (range(-5, 9), np.linspace(0.2, 0.4, 14)),
    "huge compute": (np.arange(1, 15) * 1e22, np.linspace(0.2, 0.4, 14)),
    "tiny compute": (np.arange(1, 15) * 1e-9, np.linspace(0.2, 0.4, 14)),
    "a step": (range(14), [0.2] * 7 + [0.6] * 7),
    "percent": (range(1, 15), np.linspace(20, 40, 14)),
    "one repeated": ([3] * 9, np.linspace(0.2, 0.4, 9)),
}


@pytest.mark.parametrize("kind", HARDLY)
def test_whatever_comes_in_the_document_is_strict_json(kind: str) -> None:
    found = analyse([curve("odd", *HARDLY[kind]), run()], Options(at=1e5))
    text = json.dumps(found.document(), allow_nan=False)
    assert sorted(json.loads(text)["order"]) == ["a", "odd"]
    json.dumps(analyse([curve("odd", *HARDLY[kind])]).document(), allow_nan=False)


@pytest.mark.parametrize("B", [0.4, 0.6, 1.0])
def test_what_is_quoted_lies_in_its_interval(B: float) -> None:
    rng, C = np.random.default_rng(2), np.linspace(80, 8000, 100)
    noise = rng.normal(0, 0.01, (4, 100))
    curves = [
        curve(f"r{i}", C, sigmoid.value(C, 0.45 + 0.03 * i, B, 900, 0.05) + noise[i])
        for i in range(4)
    ]
    for row in analyse(curves).document()["fits"]:
        for name in ("A", "B", "C_mid") if row["resolved"] else ():
            low, high = row[f"{name}_interval"]
            assert low <= row[name] <= high


def test_bad_questions_are_refused_in_one_line() -> None:
    with pytest.raises(CurveError, match="at: got -3, allowed: a number > 0"):
        Options(at=-3)
    with pytest.raises(CurveError, match=r"at: got 1e\+300, allowed: 1e-30 to 1e\+30$"):
        Options(at=1e300)
    with pytest.raises(CurveError, match="margin: got nan"):
        Options(margin=float("nan"))
    with pytest.raises(CurveError, match="curves: got none"):
        analyse([])
    with pytest.raises(CurveError, match="strategy: got 'all', allowed: grid"):
        analyse([run()], strategy="all")


def test_the_same_question_gets_the_same_answer() -> None:
    assert analyse(crossing()).document() == analyse(crossing()).document()
