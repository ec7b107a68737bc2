"""The task axis: where prompts come from, how completions are judged and how long they may be."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Any

from recipes.checks import ConfigError, at_least, between, one_of

TASKS = ("digits", "gym", "hub", "mixture")
VERIFIERS = ("math", "exact")
DOTTED = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
"""A user's own: ``module:function``."""
QUESTION = "{prompt}"
OF_ALL_PARTS = (
    "chat",
    "end_of_thinking",
    "max_prompt_tokens",
    "max_completion_tokens",
    "temperature",
    "eval_prompts",
    "eval_samples",
)
"""Fields that a mixture sets for all of its parts."""


@dataclass
class Task:
    """Prompts, their reward, and the held-out set that the curve is measured on."""

    name: str = "digits"
    """``digits``: sort a short string of digits (``4163=`` -> ``1346``); ``gym``: a data set of
    reasoning-gym; ``hub``: one of Hugging Face's; ``mixture``: several tasks; or
    ``module:function``, a user's own."""
    min_digits: int = 4
    max_digits: int = 4
    dataset: str = ""
    """Of ``gym``: its name; of ``hub``: an id, a folder (of ``save_to_disk``, too) or a file."""
    options: dict[str, Any] = field(default_factory=dict)
    """Of ``gym``: the data set's own settings; of ``hub``: further arguments of ``load_dataset``;
    of a user's own: whatever it reads."""
    split: str = "train"
    """Of ``hub``: the split trained on,"""
    held_out_split: str = ""
    """and the one held out; empty: prompts of `split`, drawn at random, the same for every run."""
    prompt_column: str = "prompt"
    answer_column: str = "answer"
    answer_after: str = ""
    """Of ``hub``: the answer is what follows the last of these in its column; empty: all of it."""
    verifier: str = "math"
    """Of ``hub``: ``math`` (math-verify: equal as mathematics) or ``exact`` (the same text)."""
    template: str = QUESTION
    """Of ``gym`` and ``hub``: the prompt; ``{prompt}`` stands for the data set's own."""
    answer_tag: str = ""
    """Of ``gym`` and ``hub``: judged is what the last <tag> ... </tag> holds; empty: all text."""
    train_prompts: int | None = None
    """Of ``gym`` and ``hub``: prompts to train on, at most; null: all (a gym has no end)."""
    weight: float = 1.0
    """Of a part of a mixture: its share of the prompts trained on, beside the other parts'."""
    parts: dict[str, Task] = field(default_factory=dict)
    """Of a mixture: its tasks by name."""
    chat: bool = False
    """Whether a prompt is given through the tokenizer's chat template, as a user's message."""
    end_of_thinking: str = ""
    """What ends the thinking in a completion; only what follows is judged. Empty: no thinking."""
    max_prompt_tokens: int = 2048
    """Longer prompts are left out of the data. Those of digits are of one length."""
    max_completion_tokens: int = 6
    """New tokens a completion may have; one that needs more counts as truncated."""
    temperature: float = 1.0
    eval_prompts: int = 256
    """Held-out prompts, never trained on; of a mixture, so many from each part."""
    eval_samples: int = 4
    """k of mean@k: completions sampled for each held-out prompt."""

    def __post_init__(self) -> None:
        if not DOTTED.fullmatch(self.name):
            one_of("task.name", self.name, (*TASKS, "module:function"))
        at_least("task.max_prompt_tokens", self.max_prompt_tokens, 1)
        at_least("task.max_completion_tokens", self.max_completion_tokens, 1)
        at_least("task.temperature", self.temperature, 0, strictly=True)
        at_least("task.eval_prompts", self.eval_prompts, 2)
        at_least("task.eval_samples", self.eval_samples, 1)
        at_least("task.weight", self.weight, 0, strictly=True)
        if (self.name == "mixture") != bool(self.parts):
            allowed = "one task or more" if self.name == "mixture" else "none"
            given = ", ".join(self.parts)
            raise ConfigError("task.parts", given, f"{allowed}, with task.name={self.name}")
        if self.name == "digits":
            between("task.min_digits", self.min_digits, 1, 9)
            between("task.max_digits", self.max_digits, self.min_digits, 9)
        if self.name in ("gym", "hub"):
            self._check_data_set()
        self.parts = {name: self._part(name, part) for name, part in self.parts.items()}

    def check(self) -> None:
        """Refuses values that do not go together, once a part has its mixture's."""
        for name, part in self.parts.items():
            try:
                part.check()
            except ConfigError as error:
                key = error.name.replace("task.", f"task.parts.{name}.", 1)
                raise ConfigError(key, error.given, error.allowed) from None
        if self.name == "digits":
            self._check_digits()

    def _check_digits(self) -> None:
        if self.max_completion_tokens <= self.max_digits + len(self.end_of_thinking):
            allowed = f"more than task.max_digits = {self.max_digits}, for the end token"
            raise ConfigError("task.max_completion_tokens", self.max_completion_tokens, allowed)
        half = (self.prompts or 0) // 2
        if self.eval_prompts > half:
            allowed = f"a number from 2 to {half}, half of the prompts there are"
            raise ConfigError("task.eval_prompts", self.eval_prompts, allowed)

    def _check_data_set(self) -> None:
        if not self.dataset:
            allowed = "a data set of reasoning-gym" if self.name == "gym" else "an id or a path"
            raise ConfigError("task.dataset", self.dataset, allowed)
        one_of("task.verifier", self.verifier, VERIFIERS)
        if QUESTION not in self.template:
            raise ConfigError("task.template", self.template, f"a text with {QUESTION} in it")
        if self.name == "gym" and self.train_prompts is None:
            raise ConfigError("task.train_prompts", None, "a number, with task.name=gym")
        if self.train_prompts is not None:
            at_least("task.train_prompts", self.train_prompts, 1)

    def _part(self, name: str, part: Task | dict[str, Any]) -> Task:
        """A part with what is the same for all of them."""
        if not re.fullmatch(r"[\w-]+", name):
            raise ConfigError("task.parts", name, "names of letters, digits, _ and -")
        typed = Task(**part) if isinstance(part, dict) else part
        if typed.name == "mixture":
            raise ConfigError(f"task.parts.{name}.name", typed.name, "no mixture in a mixture")
        return replace(typed, **{key: getattr(self, key) for key in OF_ALL_PARTS})

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the longest prompt."""
        return self.max_digits + 1 if self.name == "digits" else self.max_prompt_tokens

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt and completion."""
        return self.prompt_tokens + self.max_completion_tokens

    @property
    def prompts(self) -> int | None:
        """Prompts there are, to train on and held out; None if only loading them tells."""
        if self.name != "digits":
            return None
        strings: int = sum(10**digits for digits in range(self.min_digits, self.max_digits + 1))
        return strings
