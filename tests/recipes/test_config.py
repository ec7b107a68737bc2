"""Values that cannot be trained are told in one line that names the field and what is allowed."""

from collections.abc import Callable
from dataclasses import asdict

import pytest

from recipes.config import (
    AXES,
    Advantage,
    Aggregation,
    Batch,
    Budget,
    ConfigError,
    Execution,
    Filtering,
    Length,
    Loss,
    Model,
    Optimizer,
    Precision,
    RunConfig,
    Staleness,
    Task,
    identity,
)

Build = Callable[[], object]
BAD: list[tuple[Build, str]] = [
    (lambda: Loss("ppo"), "loss.name: got 'ppo', allowed: grpo | dapo | cispo"),
    (lambda: Loss(ratio="word"), "loss.ratio: got 'word', allowed: token | sequence"),
    (lambda: Loss(epsilon_low=-0.1), "loss.epsilon_low: got -0.1, allowed: a number from 0 to 1"),
    (lambda: Loss(epsilon_high=0), "loss.epsilon_high: got 0, allowed: a number > 0"),
    (lambda: Loss("luspo"), "loss.ratio: got 'token', allowed: sequence, with loss.name=luspo"),
    (lambda: Loss("vespo", "sequence"), "loss.ratio: got 'sequence', allowed: token"),
    (lambda: Aggregation("word"), "aggregation.over: got 'word', allowed: native | sample"),
    (lambda: Advantage("std"), "advantage.scale: got 'std', allowed: prompt | batch | none"),
    (lambda: Precision("fp8"), "precision.dtype: got 'fp8', allowed: fp32 | bf16 | fp16"),
    (lambda: Batch(0), "batch.prompts: got 0, allowed: a number >= 1"),
    (lambda: Batch(8, 1), "batch.generations: got 1, allowed: a number >= 2"),
    (
        lambda: Filtering("skip"),
        "filtering.zero_variance: got 'skip', allowed: keep | drop",
    ),
    (lambda: Optimizer(lr=float("nan")), "optimizer.lr: got nan, allowed: a number > 0"),
    (lambda: Optimizer(beta2=1.0), "optimizer.beta2: got 1.0, allowed: a number from 0"),
    (lambda: Optimizer(schedule="step"), "optimizer.schedule: got 'step', allowed: constant"),
    (lambda: Optimizer(total_steps=9), "optimizer.total_steps: got 9, allowed: null"),
    (lambda: Optimizer(schedule="linear"), "optimizer.total_steps: got None, allowed: a number"),
    (lambda: Model(hidden_size=40), "model.hidden_size: got 40, allowed: a multiple of 16"),
    (lambda: Model(layers=0), "model.layers: got 0, allowed: a number >= 1"),
    (
        lambda: Task("chess"),
        "task.name: got 'chess', allowed: digits | gym | hub | mixture | module:function",
    ),
    (
        lambda: RunConfig(task=Task(max_completion_tokens=4)),
        "task.max_completion_tokens: got 4, allowed: more",
    ),
    (lambda: Task(min_digits=5), "task.max_digits: got 4, allowed: a number from 5 to 9"),
    (
        lambda: RunConfig(task=Task(min_digits=2, max_digits=2, eval_prompts=64)),
        "task.eval_prompts: got 64, allowed: a number from 2 to 50, half of the prompts there are",
    ),
    (lambda: Task("gym"), "task.dataset: got '', allowed: a data set of reasoning-gym"),
    (lambda: Task("hub"), "task.dataset: got '', allowed: an id or a path"),
    (lambda: Task("gym", dataset="lcm"), "task.train_prompts: got None, allowed: a number, with"),
    (
        lambda: Task("hub", dataset="a", template="Solve it."),
        "task.template: got 'Solve it.', allowed: a text with {prompt} in it",
    ),
    (
        lambda: Task("hub", dataset="a", verifier="judge"),
        "task.verifier: got 'judge', allowed: math | exact",
    ),
    (lambda: Task("mixture"), "task.parts: got '', allowed: one task or more, with task.name=mixt"),
    (lambda: Task(parts={"a": Task()}), "task.parts: got 'a', allowed: none, with task.name=digi"),
    (
        lambda: Task("mixture", parts={"a/b": Task()}),
        "task.parts: got 'a/b', allowed: names of letters, digits, _ and -",
    ),
    (
        lambda: RunConfig(task=Task("mixture", eval_prompts=6000, parts={"a": Task()})),
        "task.parts.a.eval_prompts: got 6000, allowed: a number from 2 to 5000, half",
    ),
    (
        lambda: Task("mixture", parts={"a": Task("mixture", parts={"b": Task()})}),
        "task.parts.a.name: got 'mixture', allowed: no mixture in a mixture",
    ),
    (lambda: Task(weight=0), "task.weight: got 0, allowed: a number > 0"),
    (
        lambda: RunConfig(task=Task(chat=True)),
        "task.chat: got True, allowed: false, with model.path=embedded",
    ),
    (lambda: Budget("epochs"), "budget.axis: got 'epochs', allowed: steps | tokens | flops"),
    (lambda: Budget(amount=1.5), "budget.amount: got 1.5, allowed: a whole number"),
    (lambda: Budget(eval_every=0), "budget.eval_every: got 0, allowed: a number >= 1"),
    (lambda: Execution(threads=0), "execution.threads: got 0, allowed: a number >= 1"),
    (lambda: RunConfig(seed=-1), "seed: got -1, allowed: a number from 0"),
    (
        lambda: RunConfig(task=Task(min_digits=1, max_digits=1, eval_prompts=4)),
        "batch.prompts: got 8, allowed: at most 6, the prompts to train on",
    ),
    (
        lambda: RunConfig(execution=Execution(micro_batch=48)),
        "execution.micro_batch: got 48, allowed: a divisor of batch.prompts x batch.generations"
        " = 128",
    ),
    (lambda: Filtering(rounds=0), "filtering.rounds: got 0, allowed: a number >= 1"),
    (
        lambda: Filtering(max_pass_rate=1.5),
        "filtering.max_pass_rate: got 1.5, allowed: null, or a number above 0 and at most 1",
    ),
    (lambda: Length("shorten"), "length.kind: got 'shorten', allowed: truncate | penalty"),
    (lambda: Length(cache=0), "length.cache: got 0, allowed: a number above 0 and at most 1"),
    (lambda: Length(earliest=0.9), "length.earliest: got 0.9, allowed: a number from 0 to 0.857"),
    (lambda: Staleness("late"), "staleness.kind: got 'late', allowed: on_policy | ppo | pipeline"),
    (lambda: Staleness("ppo", 0), "staleness.updates: got 0, allowed: a number >= 1"),
    (lambda: Staleness(updates=4), "staleness.updates: got 4, allowed: 1, with staleness.kind"),
    (
        lambda: RunConfig(loss=Loss("dr_grpo"), aggregation=Aggregation("prompt")),
        "aggregation.over: got 'prompt', allowed: native, with loss.name=dr_grpo",
    ),
    (
        lambda: RunConfig(optimizer=Optimizer(schedule="linear", total_steps=100)),
        "budget.amount: got 400, allowed: at most optimizer.total_steps = 100",
    ),
]


@pytest.mark.parametrize(
    ("build", "line"), BAD, ids=[line.split(", allowed")[0] for _, line in BAD]
)
def test_a_bad_value_gets_one_line(build: Build, line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build()
    message = str(caught.value)
    assert message.startswith(line)
    assert "\n" not in message


def test_the_identity_is_what_is_trained() -> None:
    config = RunConfig(seed=3, budget=Budget(amount=7), execution=Execution(threads=1))
    assert identity(asdict(config)) == {
        **{axis: asdict(config)[axis] for axis in AXES},
        "seed": 3,
    }
