"""Generation, the same in training and in evaluation, and thinking that is ended from outside.

TRL generates, with transformers or vLLM; what is here is one pass of it, or two where
``length=interrupt``: what still thinks at its own random cut gets the end of its thinking forced on
it, and goes on to an answer. Forced tokens are told from the model's own, and so stay out of the
loss (arXiv 2510.13786).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from recipes.config import ConfigError, Length

if TYPE_CHECKING:
    from recipes.trainer import AblationTrainer


@dataclass
class Completion:
    """One completion as far as it has come."""

    ids: list[int]
    own: list[int]
    """1 for each token that the model chose, 0 for each that was forced on it."""
    logprobs: list[float] | None
    """Of the generator, where it tells them (vLLM); of no meaning for forced tokens."""

    def go_on(self, ids: list[int], logprobs: list[float] | None, *, own: bool = True) -> None:
        """Appends tokens."""
        self.ids = [*self.ids, *ids]
        self.own = [*self.own, *[int(own)] * len(ids)]
        if self.logprobs is not None:
            self.logprobs = [*self.logprobs, *(logprobs or [0.0] * len(ids))]

    def cut(self, tokens: int) -> None:
        """Keeps the first `tokens`: exact, for a token is drawn from those before it alone."""
        self.ids, self.own = self.ids[:tokens], self.own[:tokens]
        self.logprobs = self.logprobs and self.logprobs[:tokens]


def roll_out(prompts: list[str], trainer: AblationTrainer) -> dict[str, Any]:
    """Completions of `prompts`, in which each is there as often as it is to be completed.

    Returns:
        What TRL takes from a ``rollout_func``: ``prompt_ids`` and ``completion_ids``, a list of
        tokens each; ``logprobs``, a list each or None; and, with ``length=interrupt``,
        ``env_mask``: 1 for each token of the model's own, 0 for each that was forced on it.
    """
    given: list[Any] = prompts
    if trainer.config.task.chat:
        given = [[{"role": "user", "content": prompt}] for prompt in prompts]
    prompt_ids, *_ = trainer._tokenize_prompts(given)
    training = trainer.model.training
    generations = trainer.num_generations if training else trainer.num_generations_eval
    if trainer.config.length.kind != "interrupt":
        ids, logprobs = trainer._generate_single_turn(prompt_ids, None, {}, generations)
        return {"prompt_ids": prompt_ids, "completion_ids": ids, "logprobs": logprobs}
    completions = _interrupted(trainer, prompt_ids, generations)
    logprobs = [item.logprobs for item in completions]
    return {
        "prompt_ids": prompt_ids,
        "completion_ids": [item.ids for item in completions],
        "logprobs": None if None in logprobs else logprobs,
        "env_mask": [item.own for item in completions],
    }


def interruption(length: Length, limit: int) -> tuple[int, int, int]:
    """Tokens, of `limit` in all: the earliest and the latest cut, and those for the answer."""
    latest = round(length.latest * limit)
    return round(length.earliest * limit), latest, limit - latest


def _interrupted(
    trainer: AblationTrainer, prompt_ids: list[list[int]], generations: int
) -> list[Completion]:
    """Thinks up to a cut drawn for each completion, and answers in what is left for it."""
    limit, end = trainer.max_completion_length, trainer.config.task.end_of_thinking
    earliest, latest, answer = interruption(trainer.config.length, limit)
    forced = trainer.processing_class(text=end, add_special_tokens=False)["input_ids"]
    if len(forced) >= answer:
        allowed = f"less than the {answer} tokens that length.latest leaves for it and an answer"
        raise ConfigError("task.end_of_thinking", end, allowed)
    completions = _generate(trainer, prompt_ids, generations, latest)
    cuts = torch.randint(earliest, latest + 1, (len(completions),)).tolist()
    for completion, tokens in zip(completions, cuts, strict=True):
        if _thinks_on(trainer, completion.ids, tokens):
            completion.cut(tokens)
            completion.go_on(forced, None, own=False)
    unfinished = [
        index
        for index, item in enumerate(completions)
        if len(item.ids) < limit and item.ids[-1] not in trainer.eos_token_ids
    ]
    begun = [[*prompt_ids[index], *completions[index].ids] for index in unfinished]
    answers = _generate_some(trainer, begun, prompt_ids[0], answer)
    for index, more in zip(unfinished, answers, strict=True):
        more.cut(limit - len(completions[index].ids))
        completions[index].go_on(more.ids, more.logprobs)
    return completions


def _thinks_on(trainer: AblationTrainer, ids: list[int], tokens: int) -> bool:
    """Whether a completion has neither ended nor ended its thinking in its first `tokens`."""
    if len(ids) <= tokens and ids[-1] in trainer.eos_token_ids:
        return False
    text: str = trainer.processing_class.decode(ids[:tokens], skip_special_tokens=False)
    return trainer.config.task.end_of_thinking not in text


def _generate_some(
    trainer: AblationTrainer, begun: list[list[int]], filler: list[int], limit: int
) -> list[Completion]:
    """Goes on with texts, of which processes can have different numbers, or none.

    Generation can be collective (sharded weights, a server), so all processes take part, with as
    many texts as the one that has most, if any of them has one.
    """
    count = torch.tensor([len(begun)], device=trainer.accelerator.device)
    most = int(trainer.accelerator.gather(count).max())
    if not most:
        return []
    padded = [*begun, *[filler] * (most - len(begun))]
    return _generate(trainer, padded, 1, limit)[: len(begun)]


def _generate(
    trainer: AblationTrainer, prompt_ids: list[list[int]], generations: int, limit: int
) -> list[Completion]:
    with _at_most(trainer, limit):
        found, logprobs = trainer._generate_single_turn(prompt_ids, None, {}, generations)
    told = logprobs or [None] * len(found)
    return [Completion([*ids], [1] * len(ids), of) for ids, of in zip(found, told, strict=True)]


@contextmanager
def _at_most(trainer: AblationTrainer, tokens: int) -> Iterator[None]:
    """Limits the new tokens of a completion, where TRL's two ways of generating look for it."""
    name = "max_completion_length" if trainer.use_vllm else "max_new_tokens"
    holder = trainer.vllm_generation if trainer.use_vllm else trainer.generation_config
    before = getattr(holder, name)
    setattr(holder, name, tokens)
    try:
        yield
    finally:
        setattr(holder, name, before)
