"""Compute counted, against counts by hand."""

import subprocess
import sys

import pytest

from recipes.config import Batch, Budget, Model, RunConfig, Staleness, Task
from recipes.meter import Meter, embedded_sizes, estimate, parameter_count

# Hidden 64, MLP 160, 3 layers, 14 tokens, by hand: 3 x (4 x 64 x 64 + 3 x 64 x 160 + 2 x 64) + 64
# + 14 x 64 = 142,656; the input embedding, 14 x 64 more, is looked up and not multiplied.
EMBEDDED = 142_656


def test_parameters_of_the_embedded_model() -> None:
    assert parameter_count(Model(), Task()) == EMBEDDED
    assert embedded_sizes(Model(hidden_size=32), Task()).heads == 2
    assert parameter_count(Model(path="org/name"), Task()) is None


def test_two_steps_by_hand() -> None:
    meter = Meter(parameters=1000)
    for _ in range(2):
        meter.rollout(prompt_tokens=50, generated_tokens=30)
        meter.step(trained_tokens=80, device_seconds=9.0)
    assert meter.compute() == {
        "steps": 2,
        "prompt_tokens": 100,
        "generated_tokens": 60,
        "scored_tokens": 0,
        "trained_tokens": 160,
        "tokens": 160,
        "flops": 2 * 1000 * 160 + 6 * 1000 * 160,
        "gpu_hours": 18 / 3600,
    }


def test_a_scored_token_is_a_forward_pass_more() -> None:
    meter = Meter(parameters=1000)
    meter.score(80)
    assert meter.flops == 2 * 1000 * 80
    assert meter.tokens == 0


def test_gradients_of_weights_that_are_not_trained_are_not_counted() -> None:
    meter = Meter(parameters=1000, trained_parameters=10)
    meter.step(trained_tokens=80, device_seconds=1.0)
    assert meter.flops == (4 * 1000 + 2 * 10) * 80
    assert Meter(1000, 1000, trained_tokens=80).flops == Meter(1000, trained_tokens=80).flops


def test_an_estimate_with_adapters_is_of_them() -> None:
    model = Model(lora_rank=8)
    adapters = 8 * 3 * (4 * 128 + 3 * 224)  # hidden 64, MLP 160, three layers
    tokens = 128 * 11
    n = EMBEDDED + adapters
    config = RunConfig(model=model, budget=Budget(amount=1))
    assert estimate(config)["flops"] == (2 * n + 4 * n + 2 * adapters) * tokens


def test_a_meter_goes_on_from_its_state() -> None:
    meter = Meter(parameters=3)
    meter.rollout(5, 7)
    meter.step(12, 0.5)
    assert Meter(**meter.state()) == meter


@pytest.mark.parametrize(
    ("axis", "amount", "reached"),
    [("steps", 2, True), ("steps", 3, False), ("tokens", 20, True), ("flops", 321, False)],
)
def test_a_budget_is_reached_at_its_amount(axis: str, amount: float, reached: bool) -> None:
    meter = Meter(parameters=2, steps=2, prompt_tokens=10, generated_tokens=10, trained_tokens=20)
    assert meter.flops == 320
    assert meter.reached(Budget(axis=axis, amount=amount)) is reached


def test_estimates_are_of_full_completions() -> None:
    config = RunConfig(batch=Batch(8, 16), budget=Budget(amount=10))
    tokens = 128 * (5 + 6)  # four digits and "=", and six new tokens
    assert estimate(config) == {
        "steps": 10,
        "prompt_tokens": 10 * 128 * 5,
        "generated_tokens": 10 * 128 * 6,
        "scored_tokens": 0,
        "trained_tokens": 10 * tokens,
        "tokens": 10 * tokens,
        "flops": 10 * 8 * EMBEDDED * tokens,
    }


def test_what_is_trained_on_late_is_scored_by_the_policy_that_made_it() -> None:
    config = RunConfig(budget=Budget(amount=10), staleness=Staleness("ppo", 4))
    tokens = 10 * 128 * 11
    assert estimate(config)["scored_tokens"] == tokens
    assert estimate(config)["flops"] == (2 + 2 + 6) * EMBEDDED * tokens


def test_an_estimate_stops_at_the_first_step_past_the_budget() -> None:
    tokens = 128 * 11
    config = RunConfig(budget=Budget(axis="tokens", amount=2 * tokens + 1))
    assert estimate(config)["steps"] == 3


def test_an_estimate_says_only_what_is_known() -> None:
    config = RunConfig(model=Model(path="org/name"), task=Task(), budget=Budget(amount=4))
    assert "flops" not in estimate(config)
    assert estimate(RunConfig(budget=Budget(axis="gpu_hours", amount=2))) == {"gpu_hours": 2}
    in_flops = RunConfig(model=Model(path="org/name"), budget=Budget(axis="flops", amount=1e15))
    assert estimate(in_flops) == {"flops": 1e15}


def test_planning_imports_nothing_heavy() -> None:
    code = "import sys, recipes.meter, recipes.config; print({'torch', 'trl'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
