"""Where prompts come from: reasoning-gym, Hugging Face data sets, mixtures, a user's own task."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import datasets
import pytest

from recipes import models, tasks
from recipes.config import ConfigError, Task
from recipes.tasks import Row, TaskData
from recipes.tasks.source import same_text

DOCS = Path(__file__).resolve().parents[2] / "docs" / "tasks.md"
SUMS = [(f"What is {a} + {b}?", f"work\n#### {a + b}") for a in range(5) for b in range(5)]


def disjoint(data: TaskData) -> bool:
    """Whether no prompt is there twice, in whatever spelling."""
    texts = [same_text(row["prompt"]) for row in [*data.train, *data.held_out]]
    return len(texts) == len(set(texts))


def gym(**changes: Any) -> Task:  # noqa: ANN401
    fixed = {"dataset": "chain_sum", "train_prompts": 40, "eval_prompts": 10}
    return Task(**{"name": "gym", **fixed, **changes})


@pytest.fixture
def sums(tmp_path: Path) -> Path:
    """25 sums, the first of them there twice, in another spelling."""
    rows = [*SUMS, ("what is  0 + 0?", "#### 0")]
    path = tmp_path / "sums.jsonl"
    path.write_text("".join(json.dumps({"question": q, "solution": s}) + "\n" for q, s in rows))
    return path


def hub(path: Path | str, **changes: Any) -> Task:  # noqa: ANN401
    columns = {"prompt_column": "question", "answer_column": "solution", "answer_after": "####"}
    return Task(**{"name": "hub", "dataset": str(path), "eval_prompts": 8, **columns, **changes})


def test_a_gym_data_set_is_scored_by_its_own_scorer() -> None:
    data = tasks.load(gym(template="{prompt} Tag it.", answer_tag="answer"))
    assert (len(data.train), len(data.held_out), disjoint(data)) == (40, 10, True)
    row = data.held_out[0]
    assert row["prompt"].endswith(" Tag it.")
    expected = eval(re.search(r"[\d+\-* ]+ =", row["prompt"])[0].rstrip("="))  # type: ignore[index]
    right = [f"I add. <answer> {expected} </answer>", f"<answer>{expected}0</answer>"]
    assert row["answer"] == str(expected)
    # reasoning_gym's own: half right where the right answer is contained, by its share of length.
    share = len(str(expected)) / len(f"{expected}0")
    scores = data.score([*right, str(expected)], [row] * 3)
    assert scores.rewards == pytest.approx([1, share, 0])
    assert scores.failures == 0


def test_a_gym_s_items_are_those_of_the_task_and_its_options() -> None:
    assert tasks.load(gym()).train == tasks.load(gym(temperature=0.5)).train
    other = gym(options={"min_terms": 2, "max_terms": 2})
    assert all(row["prompt"].count("+") + row["prompt"].count(" - ") == 1 for row in rows(other))
    assert tasks.load(gym()).held_out != tasks.load(other).held_out


def rows(task: Task) -> list[Row]:
    data = tasks.load(task)
    return [*data.train, *data.held_out]


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"dataset": "chain_sums"}, "task.dataset: got 'chain_sums', allowed: ab | acre |"),
        ({"options": {"terms": 2}}, "task.options: got {'terms': 2}, allowed: what .*'terms'"),
        ({"options": {"min_terms": 0}}, "task.options: got {'min_terms': 0}, allowed: what "),
        (
            {"options": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}},
            "task.eval_prompts: got 500, allowed: at most [0-9]+, the different prompts",
        ),
    ],
)
def test_a_gym_that_cannot_be_is_told_in_one_line(changes: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        tasks.load(gym(**{"eval_prompts": 500, **changes}))
    assert re.match(line, str(caught.value))
    assert "\n" not in str(caught.value)


def test_a_file_s_columns_are_prompts_and_answers(sums: Path) -> None:
    data = tasks.load(hub(sums, template="{prompt} \\boxed{}"))
    assert (len(data.train), len(data.held_out), disjoint(data)) == (25 - 8, 8, True)
    row = data.train[0]
    a, b = map(int, re.findall(r"\d", row["prompt"]))
    assert row == {"prompt": f"What is {a} + {b}? \\boxed{{}}", "answer": f"{a + b}", "part": "hub"}
    texts = [f"So \\boxed{{{a + b}}}.", f"{a + b}.0", "\\boxed{99}", "I do not know"]
    assert data.score(texts, [row] * 4).rewards == [1, 1, 0, 0]
    exact = tasks.load(hub(sums, verifier="exact"))
    assert exact.score([f" {a + b}\n", f"{a + b}.0"], [row | {"part": "hub"}] * 2).rewards == [1, 0]


def test_what_is_held_out_in_one_split_is_not_trained_on_in_another(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    columns = [{"question": q, "solution": s} for q, s in SUMS]
    splits = {"train": columns, "test": columns[:10]}
    saved = {name: datasets.Dataset.from_list(part) for name, part in splits.items()}
    datasets.DatasetDict(saved).save_to_disk(tmp_path / "saved")
    data = tasks.load(hub(tmp_path / "saved", held_out_split="test", eval_prompts=10))
    assert {row["prompt"] for row in data.held_out} == {q for q, _ in SUMS[:10]}
    assert {row["prompt"] for row in data.train} == {q for q, _ in SUMS[10:]}


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"prompt_column": "prompt"}, "task.prompt_column: got 'prompt', allowed: question | solu"),
        ({"split": "validation"}, "task.dataset: got '.*sums.jsonl', allowed: a data set on disk"),
        ({"eval_prompts": 26}, "task.eval_prompts: got 26, allowed: at most 25, the different"),
        ({"eval_prompts": 25}, r"task hub: got '0 to train on, 25 held out', allowed: 1 prompt or"),
        ({"dataset": "org/name"}, "task.dataset: got 'org/name', allowed: .*Couldn't reach"),
        ({"dataset": "gone.csv"}, "task.dataset: got 'gone.csv', allowed: a data set on disk"),
    ],
)
def test_data_that_cannot_be_used_are_told_in_one_line(
    changes: dict[str, Any], line: str, sums: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    with pytest.raises(ConfigError) as caught:
        tasks.load(hub(sums, **changes))
    assert re.match(line, str(caught.value))
    assert "\n" not in str(caught.value)


def test_rows_without_an_answer_are_left_out_and_conversations_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "rows.jsonl"
    answers = [None, *range(1, 12)]
    given = [{"question": f"{n}?", "solution": answer} for n, answer in enumerate(answers)]
    path.write_text("\n".join(map(json.dumps, given)))
    data = tasks.load(hub(path, answer_after=""))
    assert {row["answer"] for row in data.train + data.held_out} == {str(n) for n in range(1, 12)}
    assert "train: 1 of 12 rows have no prompt or no answer" in caplog.text
    talk = [{"question": [{"role": "user", "content": str(n)}], "solution": 1} for n in range(9)]
    path.write_text("\n".join(map(json.dumps, talk)))
    with pytest.raises(ConfigError, match=r"task.prompt_column: got 'question', .*, not of list$"):
        tasks.load(hub(path))


def test_long_prompts_are_left_out_and_told(sums: Path, caplog: pytest.LogCaptureFixture) -> None:
    task = hub(sums, template="{prompt}" + "!" * 4, max_prompt_tokens=len("what is  0 + 0?!!!!"))
    tokenizer = models.character_tokenizer(task)
    assert len(tasks.load(task, tokenizer).train) == 17
    caplog.clear()
    with pytest.raises(ConfigError, match="task hub: got '0 to train on, 0 held out'"):
        tasks.load(hub(sums, template="{prompt} Now.", max_prompt_tokens=15), tokenizer)
    told = [record.getMessage() for record in caplog.records]
    assert told == [
        "task hub: 8 of 8 held_out prompts: too long",
        "task hub: 17 of 17 train prompts: too long",
    ]


def test_parts_of_a_mixture_keep_their_reward_and_share_what_is_held_out(
    sums: Path, caplog: pytest.LogCaptureFixture
) -> None:
    parts = {
        "words": hub(sums, verifier="exact", weight=3.0),
        "few": Task(min_digits=1, max_digits=2),
        "more": Task(min_digits=2, max_digits=3),
    }
    task = Task("mixture", parts=parts, eval_prompts=8, max_completion_tokens=9, temperature=0.7)
    data = tasks.load(task)
    assert [(part.name, part.weight) for part in data.parts] == [
        ("words", 3.0),
        ("few", 1.0),
        ("more", 1.0),
    ]
    # Both kinds of digits have the strings of two, which are used once: one held out in both, too.
    assert [row["part"] for row in data.held_out] == ["words"] * 8 + ["few"] * 8 + ["more"] * 7
    assert len(data.train) == 17 + (10 + 100 + 1000 - 15)
    assert disjoint(data)
    right = [row["answer"] for row in data.held_out]
    assert data.score(right, data.held_out).rewards == [1] * 23
    assert {part.max_completion_tokens for part in task.parts.values()} == {9}
    assert parts["words"].max_completion_tokens == 6
    assert "train prompts: there before, or held out" in caplog.text


def example(heading: str) -> str:
    """The first code block of the documentation under `heading`."""
    section = DOCS.read_text().partition(f"## {heading}\n")[2]
    return re.search(r"```python\n(.*?)```", section, re.DOTALL)[1]  # type: ignore[index]


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "sums", raising=False)
    (tmp_path / "sums.py").write_text(example("Your own task"))
    return tmp_path


def test_the_documented_task_of_one_s_own_works(own_module: Path) -> None:
    data = tasks.load(Task("sums:build", eval_prompts=100))
    assert (len(data.train), len(data.held_out), disjoint(data)) == (9_900, 100, True)
    row = next(row for row in data.held_out if row["prompt"] == data.held_out[0]["prompt"])
    a, b = map(int, row["prompt"].rstrip("=").split("+"))
    assert data.score([f"{a + b} ", f"{a + b + 1}"], [row] * 2).rewards == [1, 0]
    assert len([line for line in example("Your own task").splitlines() if line.strip()]) <= 10


@pytest.mark.parametrize(
    ("name", "source", "line"),
    [
        ("no_such:build", "", r"task.name: got 'no_such:build', allowed: a module that imports \("),
        ("sums:made", "", r"task.name: got 'sums:made', allowed: a function of .*sums.py"),
        ("broken:build", "1 / 0", r".* imports \(ZeroDivisionError: division by zero\)"),
        (
            "rows:build",
            "def build(task): return [{'prompt': 'a', 'answer': 1}], [], len",
            "rows:build: got {'prompt': 'a', 'answer': 1}, allowed: rows with a prompt and an",
        ),
        ("flat:build", "def build(task): return ['1+1='], ['1'], len", "flat:build: got '1[+]1='"),
        ("pair:build", "def build(task): return [], []", "task.name: got 'pair:build', .*reward"),
        ("fails:build", "def build(task): return 1 / 0", r".* rows and a reward \(ZeroDivisionErr"),
    ],
)
def test_a_task_of_one_s_own_that_is_wrong_is_told_in_one_line(
    name: str, source: str, line: str, own_module: Path
) -> None:
    if source:
        (own_module / f"{name.partition(':')[0]}.py").write_text(source)
    with pytest.raises(ConfigError) as caught:
        tasks.load(Task(name))
    assert re.match(line, str(caught.value))
    assert "\n" not in str(caught.value)
