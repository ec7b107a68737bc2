"""Digits: what is right, and that the held-out prompts are never trained on."""

import pytest

from recipes import tasks
from recipes.config import Task
from recipes.tasks import Row, TaskData, digits


def prompts(rows: list[Row]) -> set[str]:
    return {row["prompt"] for row in rows}


def test_the_answer_is_the_digits_sorted() -> None:
    data = tasks.load(Task())
    for row in data.held_out[:20]:
        assert row["prompt"][-1] == "="
        assert row["answer"] == "".join(sorted(row["prompt"][:-1]))


def test_only_the_exact_answer_is_rewarded() -> None:
    assert digits.reward("1346", "1346") == 1
    for wrong in ("", "134", "13460", "3146", "1346 "):
        assert digits.reward(wrong, "1346") == 0


@pytest.mark.parametrize(("least", "most", "total"), [(4, 4, 10_000), (1, 2, 110), (2, 3, 1100)])
def test_every_string_is_in_one_half_or_the_other(least: int, most: int, total: int) -> None:
    data = tasks.load(Task(min_digits=least, max_digits=most, eval_prompts=50))
    train, held_out = prompts(data.train), prompts(data.held_out)
    assert len(held_out) == 50
    assert len(train) == total - 50
    assert not train & held_out
    assert {len(prompt) - 1 for prompt in train} == set(range(least, most + 1))


def test_the_split_belongs_to_the_task() -> None:
    assert tasks.load(Task()) == tasks.load(Task(temperature=0.5, eval_samples=1))
    assert tasks.load(Task()).held_out[0] != tasks.load(Task(max_digits=5)).held_out[0]


def test_many_digits_are_sampled_not_listed() -> None:
    data = tasks.load(Task(min_digits=9, max_digits=9, max_completion_tokens=10))
    assert len(prompts(data.train)) == digits.MAX_TRAIN_PROMPTS


def test_an_overlap_is_refused() -> None:
    row = Row(prompt="1=", answer="1")
    with pytest.raises(ValueError, match=r"1 held-out prompts are trained on, e.g. '1='"):
        TaskData([row], [row], digits.reward)
