"""What is right, that held-out prompts are never trained on, and rewards that fail."""

import logging
import math
import random

import pytest

from recipes import tasks
from recipes.config import Task
from recipes.tasks import Part, Row, TaskData, digits


def prompts(rows: list[Row]) -> set[str]:
    return {row["prompt"] for row in rows}


def row(prompt: str, answer: str = "1", part: str = "a") -> Row:
    return Row(prompt=prompt, answer=answer, part=part)


def exact(completion: str, row: Row) -> float:
    return float(completion == row["answer"])


def test_the_answer_is_the_digits_sorted() -> None:
    data = tasks.load(Task())
    for item in data.held_out[:20]:
        assert item["prompt"][-1] == "="
        assert item["answer"] == "".join(sorted(item["prompt"][:-1]))


def test_only_the_exact_answer_is_rewarded() -> None:
    completions = ["1346", "", "134", "13460", "3146", "1346 "]
    rows = [row("4163=", "1346", "digits")] * 6
    assert tasks.load(Task()).score(completions, rows).rewards == [1, 0, 0, 0, 0, 0]


@pytest.mark.parametrize(("least", "most", "total"), [(4, 4, 10_000), (1, 2, 110), (2, 3, 1100)])
def test_every_string_is_in_one_half_or_the_other(least: int, most: int, total: int) -> None:
    data = tasks.load(Task(min_digits=least, max_digits=most, eval_prompts=50))
    train, held_out = prompts(data.train), prompts(data.held_out)
    assert len(held_out) == 50
    assert len(train) == total - 50
    assert not train & held_out
    assert {len(prompt) - 1 for prompt in train} == set(range(least, most + 1))


def test_the_split_belongs_to_the_task() -> None:
    first = tasks.load(Task()).held_out
    assert first == tasks.load(Task(temperature=0.5, eval_samples=1)).held_out
    assert first[0] != tasks.load(Task(max_digits=5)).held_out[0]


def test_many_digits_are_sampled_not_listed() -> None:
    data = tasks.load(Task(min_digits=9, max_digits=9, max_completion_tokens=10))
    assert len(prompts(data.train)) == digits.MAX_TRAIN_PROMPTS


def test_an_overlap_is_refused_across_parts_whatever_its_spacing() -> None:
    parts = [
        Part("a", [row("What is  1 + 1?")], [row("2 = ")], exact),
        Part("b", [row("3 =", part="b")], [row("what is 1 + 1? ", part="b")], exact),
    ]
    with pytest.raises(ValueError, match=r"1 held-out prompts are trained on, e.g. 'what is 1"):
        TaskData(parts)


def test_rows_are_those_of_all_parts_in_order_each_judged_by_its_own() -> None:
    half = Part("b", [row("3", part="b")], [row("4", part="b")], lambda completion, row: 0.5)
    data = TaskData([Part("a", [row("1")], [row("2")], exact), half])
    assert [item["prompt"] for item in data.train] == ["1", "3"]
    assert [item["prompt"] for item in data.held_out] == ["2", "4"]
    assert data.score(["1", "1"], data.held_out).rewards == [1, 0.5]


def test_a_reward_that_fails_is_told_once_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    answers = {"raise": KeyError("no\nsuch key"), "none": None, "nan": math.nan, "inf": math.inf}

    def reward(completion: str, row: Row) -> float | None:
        value = answers.get(completion, 1.0)
        if isinstance(value, Exception):
            raise value
        return value

    data = TaskData([Part("a", [row("1")], [row("2")], reward)])
    given = ["good", "raise", "none", "nan", "inf", "raise"]
    with caplog.at_level(logging.WARNING):
        scores = data.score(given, [row("1")] * 6)
        assert data.score(["raise"], [row("1")]).failures == 1
    assert scores.rewards[0] == 1
    assert all(math.isnan(reward) for reward in scores.rewards[1:])
    assert scores.failures == 5
    assert scores.last_error == "KeyError: 'no\\nsuch key'"
    told = [record.getMessage() for record in caplog.records]
    assert told == [
        "the reward of task a failed (told once): KeyError: 'no\\nsuch key'",
        "the reward of task a failed (told once): ValueError: returned None, allowed: a finite"
        " number",
    ]


def test_demonstrations_think_step_by_step_for_different_lengths() -> None:
    task = Task(end_of_thinking="#", max_completion_tokens=42)
    data, rng = tasks.load(task), random.Random(0)
    shown = [tasks.demonstration(task, item, rng) for item in data.train[:300]]
    assert data.score(shown, data.train[:300]).rewards == [1] * 300
    for item, text in zip(data.train, shown, strict=False):
        steps = text.partition("#")[0].rstrip(",").split(",")
        digits_of = item["prompt"][:-1]
        assert list(dict.fromkeys(steps)) == ["".join(sorted(digits_of[:n])) for n in (1, 2, 3, 4)]
    # 14 characters in four steps, each written 1 / (1 - .4) times on average; # and the answer.
    mean = sum(map(len, shown)) / 300
    assert mean == pytest.approx(14 / 0.6 + 5, rel=0.05)
    assert tasks.demonstration(Task(), data.train[0], rng) == data.train[0]["answer"]


def test_only_what_follows_the_thinking_is_judged() -> None:
    data = TaskData([Part("a", [row("1")], [row("2")], exact)], end_of_thinking="#")
    completions = ["22#1", "1", "#1", "1#2", "2#1#"]
    assert data.score(completions, [row("1")] * 5).rewards == [1, 0, 1, 0, 0]
