"""The held-out pass rate: mean@k over a fixed set of prompts, with its standard error."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from recipes.tasks import TaskData


@dataclass(frozen=True)
class Evaluation:
    """One evaluation; rates are fractions of completions."""

    pass_rate: float
    stderr: float
    """Standard error of `pass_rate`, prompts being the independent draws (clustered by prompt)."""
    truncation_rate: float
    """Completions that did not end by themselves."""
    length: float
    """Mean tokens a completion."""

    def metrics(self) -> dict[str, float]:
        """The evaluation by the names it is logged under."""
        return {
            "eval/pass_rate": self.pass_rate,
            "eval/pass_rate_stderr": self.stderr,
            "eval/truncation_rate": self.truncation_rate,
            "eval/length": self.length,
        }


def evaluate(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    generation: GenerationConfig,
    data: TaskData,
    samples: int,
    batch: int,
    seed: int,
) -> Evaluation:
    """Samples `samples` completions of every held-out prompt, `batch` at a time, and scores them.

    Random numbers are its own, from `seed`, and the global generators are put back: evaluating, or
    not, changes nothing in training.
    """
    devices = [model.device] if model.device.type == "cuda" else []
    training = model.training
    model.train(False)
    with torch.random.fork_rng(devices=devices), torch.no_grad():
        torch.manual_seed(seed)
        rewards, lengths, truncated = _sample(model, tokenizer, generation, data, samples, batch)
    model.train(training)
    pass_rate, stderr = clustered_mean(rewards.view(-1, samples))
    return Evaluation(pass_rate, stderr, truncated.mean().item(), lengths.mean().item())


def evaluation_seed(seed: int, step: int) -> int:
    """The seed of the evaluation at `step` of runs with `seed`: recipes compared share it."""
    return int(np.random.SeedSequence([seed, step]).generate_state(1, np.uint64)[0])


def clustered_mean(rewards: torch.Tensor) -> tuple[float, float]:
    """Mean of (prompts, samples) rewards, and its standard error over prompts as drawn at random.

    The error is that of the mean of prompt means, s / sqrt(P): it holds the spread between prompts
    and that between the samples of one (Miller, arXiv 2411.00640, section 2.2).
    """
    means = rewards.double().mean(1)
    return means.mean().item(), (means.std(correction=1) / len(means) ** 0.5).item()


def _sample(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    generation: GenerationConfig,
    data: TaskData,
    samples: int,
    batch: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Reward, tokens, truncation of completions, prompt by prompt; all (prompts x samples,)."""
    rows = [row for row in data.held_out for _ in range(samples)]
    ends = torch.tensor(generation.eos_token_id, device=model.device)
    rewards, lengths, truncated = [], [], []
    for start in range(0, len(rows), batch):
        part = rows[start : start + batch]
        inputs = tokenizer([row["prompt"] for row in part], return_tensors="pt", padding=True)
        ids, mask = inputs["input_ids"].to(model.device), inputs["attention_mask"].to(model.device)
        output = model.generate(  # type: ignore[operator]
            input_ids=ids, attention_mask=mask, generation_config=generation
        )
        completions = output[:, ids.shape[1] :]
        ended = torch.isin(completions, ends)
        # Tokens up to and with the first end token: those with no end token before them.
        lengths.append((ended.cumsum(1) - ended.long() == 0).sum(1).double())
        truncated.append((~ended.any(1)).double())
        texts = tokenizer.batch_decode(completions, skip_special_tokens=True)
        rewards += data.score(texts, part).rewards
    return torch.tensor(rewards), torch.cat(lengths), torch.cat(truncated)
