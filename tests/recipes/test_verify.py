"""math-verify in a process of its own: verdicts, limits, threads, and a process that dies."""

import threading
import time

import pytest

from recipes.config import Task
from recipes.tasks import Part, Row, TaskData, verify
from recipes.tasks.verify import MathVerifier


@pytest.fixture(scope="module")
def verifier() -> MathVerifier:
    return MathVerifier(seconds=1.0)


@pytest.mark.parametrize(
    ("completion", "answer", "right"),
    [
        (r"so it is \boxed{0.5}", r"\frac12", 1),
        ("the answer is 72", "72", 1),
        (r"\boxed{1234}", "1,234", 1),
        (r"\boxed{2\sqrt{3}}", r"\sqrt{12}", 1),
        (r"\boxed{[0,1)}", "[0,1)", 1),
        (r"\boxed{3}, and not 4", "3", 1),
        (r"\boxed{3}, and not 4", "4", 0),
        ("5 or 6", "5", 0),
        (r"\boxed{}", "3", 0),
        ("", "3", 0),
        ("line\nbreaks \\boxed{7}\n", "7", 1),
        ("7", "", None),  # an answer that is no mathematics
    ],
)
def test_equal_is_as_mathematics(
    verifier: MathVerifier, completion: str, answer: str, right: float | None
) -> None:
    assert verifier(completion, answer) == right


def test_what_takes_too_long_is_wrong_and_the_next_is_judged(verifier: MathVerifier) -> None:
    begun = time.process_time()
    assert verifier(r"\boxed{9^{9^{9^{9}}}}", "3") == 0
    assert time.process_time() - begun < 1  # none of it here
    assert verifier(r"\boxed{3}", "3") == 1


def test_any_thread_may_ask(verifier: MathVerifier) -> None:
    verdicts: list[float | None] = []
    thread = threading.Thread(target=lambda: verdicts.append(verifier("4", "4")))
    thread.start()
    thread.join()
    assert verdicts == [1]


def test_a_process_that_dies_is_a_reward_that_failed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    monkeypatch.setattr(verify, "WORKER", "/no/such/file.py")
    row = Row(prompt="1 + 1", answer="2", part="a")
    broken = MathVerifier()
    part = Part("a", [row], [row | {"prompt": "2"}], lambda text, row: broken(text, row["answer"]))
    scores = TaskData([part]).score(["2", "2"], [row, row])
    assert (scores.failures, scores.last_error) == (
        2,
        "RuntimeError: math-verify's process ended with 2",
    )


def test_without_math_verify_another_verifier_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"task.verifier: got 'math', allowed: exact, without"):
        MathVerifier()
    assert Task("hub", dataset="a").verifier == "math"
