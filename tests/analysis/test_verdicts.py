"""Verdicts on known differences, by every strategy, in exactly the words of the design."""

from collections.abc import Mapping

import numpy as np
import pytest

from analysis import effects, sigmoid, verdicts
from analysis.curves import Curve
from analysis.fits import Fit, judge
from analysis.notation import amount
from analysis.ranking import Analysis, Options, analyse
from tests.analysis.simulate import SCALERL, run

BASE = {"loss": "cispo", "precision": "fp32"}


def changed(name: str, truth: tuple[float, ...], seed: int = 0, **to: str) -> Curve:
    return run(name, truth, seed=seed, choices={**BASE, **to})


def sweep(*others: Curve, strategy: str = "one_at_a_time") -> Analysis:
    base = run("base", seed=7, choices=BASE)
    return analyse([base, *others], Options(), strategy, BASE)


def words(analysis: Analysis) -> dict[str, str]:
    return {v.choice: v.verdict for v in analysis.verdicts}


@pytest.mark.parametrize("strategy", ["one_at_a_time", "leave_one_out"])
def test_every_word_from_a_known_difference(strategy: str) -> None:
    found = sweep(
        changed("up", (0.66, 1.92, 2542, 0.2), 1, loss="up"),
        changed("down", (0.52, 1.92, 2542, 0.2), 2, loss="down"),
        changed("quick", (0.61, 2.3, 2542, 0.2), 3, loss="quick"),
        changed("slow", (0.61, 1.5, 2542, 0.2), 4, loss="slow"),
        changed("same", SCALERL, 5, precision="bf16"),
        run("short", last=2000, seed=6, choices={**BASE, "loss": "short"}),
        run("cut", truncation=0.3, choices={**BASE, "loss": "cut"}),
        strategy=strategy,
    )
    assert words(found) == {
        "up": "higher ceiling",
        "down": "lower ceiling",
        "quick": "same ceiling, faster",
        "slow": "same ceiling, slower",
        "bf16": "no difference",
        "short": "unresolved",
        "cut": "unstable",
    }
    assert {(v.axis, v.versus) for v in found.verdicts} == {
        ("loss", "cispo"),
        ("precision", "fp32"),
    }
    assert found.order[0] == "up"
    assert found.order[-1] == "cut"


def test_differences_and_their_intervals_hold_the_truth() -> None:
    found = sweep(changed("down", (0.52, 1.92, 2542, 0.2), 2, loss="down"))
    (v,) = found.verdicts
    assert v.interval is not None
    assert v.interval[0] < 0.52 - 0.61 < v.interval[1]
    assert v.difference == pytest.approx(-0.09, abs=0.01)
    assert v.evidence.startswith(f"A differs by {v.difference:+.3f}")
    assert v.runs == ["down"]


def test_speed_is_the_difference_in_b_at_a_shared_ceiling() -> None:
    found = sweep(changed("quick", (0.61, 2.3, 2542, 0.2), 3, loss="quick"))
    (v,) = found.verdicts
    assert v.difference == pytest.approx(2.3 - 1.92, abs=0.12)
    assert "at a shared A, B is" in v.evidence


def test_an_unresolved_verdict_says_what_would_settle_it() -> None:
    found = sweep(run("short", last=2500, seed=6, choices={**BASE, "loss": "short"}))
    (v,) = found.verdicts
    assert v.verdict == "unresolved"
    assert v.needed_compute is not None
    assert 2500 < v.needed_compute < 12000


def test_curves_that_cross_say_where() -> None:
    late = run("late", (0.66, 1.7, 6000, 0.2), last=16000, seed=1, choices={**BASE, "loss": "late"})
    base = run("base", (0.58, 1.9, 2000, 0.2), last=16000, seed=2, choices=BASE)
    (v,) = analyse([base, late], Options(), "one_at_a_time", BASE).verdicts
    assert v.verdict == "higher ceiling"
    assert v.crossing is not None
    gap = sigmoid.value(v.crossing, 0.66, 1.7, 6000, 0.2) - sigmoid.value(
        v.crossing, 0.58, 1.9, 2000, 0.2
    )
    assert abs(float(gap)) < 0.01
    assert f"the curves cross at {amount(v.crossing)}" in v.evidence
    found = sweep(changed("down", (0.52, 1.92, 2542, 0.2), 2, loss="down"))
    assert found.verdicts[0].crossing is None


def test_without_the_base_runs_are_compared_with_the_best() -> None:
    runs = [changed("a", SCALERL, loss="x"), changed("b", (0.5, *SCALERL[1:]), loss="y")]
    found = analyse(runs, strategy="one_at_a_time", base=BASE)
    assert [(v.axis, v.choice, v.versus) for v in found.verdicts] == [("run", "b", "a")]
    assert found.notes[0].startswith("no run of the base recipe")


def grid(effects: Mapping[tuple[str, str], float]) -> list[Fit]:
    """Fits of a 2 x 2 x 2 grid whose A is 0.55 plus the effects present."""
    curves = []
    for i in range(8):
        choices = {axis: level[(i >> k) & 1] for k, (axis, level) in enumerate(LEVELS.items())}
        present = set(choices.items())
        A = 0.55 + sum(
            e for key, e in effects.items() if set(zip(*[iter(key)] * 2, strict=True)) <= present
        )
        curves.append([run(f"r{i}", (A, 1.9, 2500, 0.2), last=10000, seed=i, choices=choices)])
    return judge(curves, np.random.default_rng(0), margin=0.02)


LEVELS = {"loss": ("grpo", "cispo"), "precision": ("bf16", "fp32"), "batch": ("s", "l")}


def test_main_effects_of_a_grid_average_over_matched_pairs() -> None:
    fits = grid({("loss", "cispo"): 0.06, ("precision", "fp32"): 0.03})
    rng = np.random.default_rng(0)
    found = {
        (axis, choice): (
            versus,
            len(pairs),
            verdicts.compare(axis, choice, versus, pairs, 0.02, rng),
        )
        for axis, choice, versus, pairs in effects.within_grid(fits, None)
    }
    assert set(found) == {("loss", "grpo"), ("precision", "bf16"), ("batch", found_batch(found))}
    versus, pairs, v = found["loss", "grpo"]
    assert (versus, pairs, v.verdict) == ("cispo", 4, "lower ceiling")
    assert v.difference == pytest.approx(-0.06, abs=0.004)
    assert v.evidence.endswith("over 4 pairs")
    assert found["precision", "bf16"][2].verdict == "lower ceiling"
    assert found["batch", found_batch(found)][2].verdict == "no difference"
    assert effects.interactions(fits, 0.02) == []


def found_batch(found: Mapping[tuple[str, str], object]) -> str:
    return next(choice for axis, choice in found if axis == "batch")


def test_interactions_that_matter_are_found_with_their_size() -> None:
    fits = grid({("loss", "cispo"): 0.03, ("loss", "cispo", "precision", "fp32"): 0.05})
    (i,) = effects.interactions(fits, 0.02)
    assert i.axes == ("loss", "precision")
    assert i.choices == ("cispo", "fp32")
    assert i.versus == ("grpo", "bf16")
    assert i.difference == pytest.approx(0.05, abs=0.01)
    assert i.interval[0] < 0.05 < i.interval[1]


def test_a_grid_is_compared_with_the_base_where_one_is_given() -> None:
    fits = grid({})
    base = {axis: level[0] for axis, level in LEVELS.items()}
    found = effects.within_grid(fits, base)
    assert [(axis, choice, versus) for axis, choice, versus, _ in found] == [
        (axis, level[1], level[0]) for axis, level in LEVELS.items()
    ]


def test_unstable_runs_leave_their_pairs_and_only_then_the_verdict() -> None:
    fits = grid({("loss", "cispo"): 0.06})
    fits[0].health.problems.append("broken")
    rng = np.random.default_rng(0)
    pairs = next(p for axis, *_, p in effects.within_grid(fits, None) if axis == "loss")
    v = verdicts.compare("loss", "grpo", "cispo", pairs, 0.02, rng)
    assert v.verdict == "lower ceiling"
    assert v.evidence.endswith("over 3 pairs")
    for f in fits:
        f.health.problems.append("broken")
    v = verdicts.compare("loss", "grpo", "cispo", pairs, 0.02, rng)
    assert v.verdict == "unstable"
    assert "r0: broken" in v.evidence
