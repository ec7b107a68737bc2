"""How the token losses of an optimizer batch are averaged, as a factor on each advantage.

Every loss of TRL's is positively homogeneous in the advantage: ``loss(c A) = c loss(A)`` for
c >= 0. So multiplying a sequence's advantage by (weight wanted) / (weight TRL gives its tokens)
changes the aggregation exactly, whatever TRL's loss and however the batch is split into
micro-batches, without touching TRL's loss. Dropping a group is the weight 0, with the others'
denominators counting kept groups only. Definitions: arXiv 2510.13786, section 3.2.
"""

from __future__ import annotations

import torch
from torch import Tensor

NATIVE = {
    "grpo": "sample",
    "sapo": "sample",
    "dapo": "token",
    "cispo": "token",
    "vespo": "token",
    "bnpo": "micro_batch",
    "dr_grpo": "sequence",
    "luspo": "sequence",
}
"""What TRL 1.16 averages each ``loss_type`` over (trl/trainer/grpo_trainer.py, `_compute_loss`)."""
STD_EPSILON = 1e-4
"""What TRL 1.16 adds to a standard deviation of rewards (`_generate_and_score_completions`)."""


def token_weights(over: str, lengths: Tensor, generations: int, kept: Tensor) -> Tensor:
    """The weight of each token of each sequence in the loss of one optimizer batch.

    With n sequences, P prompts and N tokens kept, |o_i| tokens in sequence i and T_p in prompt p:
    ``sample`` 1 / (n |o_i|), ``prompt`` 1 / (P T_p), ``token`` 1 / N, and ``sequence`` 1 / n, for
    losses that sum over a sequence.

    Args:
        over: the name of the mean.
        lengths: (sequences,) tokens of each sequence, groups of `generations` together.
        generations: sequences of one prompt.
        kept: (sequences,) bool, the same for all sequences of a prompt.

    Returns:
        (sequences,) weights in the dtype of `lengths` as float; 0 where a sequence is not kept.
    """
    counted = lengths.float() * kept
    sequences = kept.sum().clamp(min=1).float()
    if over == "sample":
        weights = 1 / (sequences * lengths.clamp(min=1))
    elif over == "prompt":
        of_prompt = counted.view(-1, generations).sum(1).clamp(min=1)
        weights = (generations / (sequences * of_prompt)).repeat_interleave(generations)
    elif over == "token":
        weights = (1 / counted.sum().clamp(min=1)).expand_as(counted)
    else:
        weights = (1 / sequences).expand_as(counted)
    return weights * kept


def advantage_scale(
    loss: str, over: str, lengths: Tensor, generations: int, kept: Tensor, micro: int
) -> Tensor:
    """What each sequence's advantage is multiplied by to be averaged `over` the kept sequences.

    Args:
        loss: TRL's ``loss_type``.
        over: ``sample``, ``prompt``, ``token``, or ``native``: as TRL does for `loss`, and for
            ``bnpo``, whose mean is over a micro-batch, over the tokens of the batch.
        lengths: (sequences,) tokens in the loss of each sequence of the *whole* optimizer batch.
        generations: sequences of one prompt; they are adjacent.
        kept: (sequences,) bool, the same for all sequences of a prompt.
        micro: sequences in a micro-batch; those of one are adjacent.

    Returns:
        (sequences,) factors >= 0; all 1 for TRL's own mean with nothing dropped.
    """
    native = NATIVE[loss]
    if over == "native":
        over = "token" if native == "micro_batch" else native
    wanted = token_weights(over, lengths, generations, kept)
    if native == "micro_batch":
        tokens = lengths.float().view(-1, micro).sum(1).clamp(min=1)
        return wanted * (len(tokens) * tokens).repeat_interleave(micro)
    return wanted / token_weights(native, lengths, generations, torch.ones_like(kept))


def overlong_penalty(length: int, limit: int, cache: int) -> float:
    """What a right completion of `length` tokens loses: clip((limit - length) / cache - 1, -1, 0).

    0 up to `limit` - `cache` tokens, -1 from `limit` on (DAPO, arXiv 2503.14476, section 3.4; on
    right completions only and with these constants in arXiv 2510.13786).
    """
    return min(0.0, max(-1.0, (limit - length) / cache - 1))


def batch_scaled(advantages: Tensor, rewards: Tensor) -> Tensor:
    """Centred advantages, divided by the standard deviation of the rewards of their batch.

    TRL's is over all that one call of it generates, which is several batches where rollouts are
    stale, and a handful of groups where a batch is refilled.

    Args:
        advantages: (sequences,) of one optimizer batch.
        rewards: (sequences,) of the same; NaN where one could not be judged.
    """
    judged = rewards[~rewards.isnan()]
    return advantages / (judged.std() + STD_EPSILON) if len(judged) > 1 else advantages


def varied_groups(rewards: Tensor, generations: int) -> Tensor:
    """Which groups have any difference in reward.

    Args:
        rewards: (sequences,); NaN, where one could not be judged, is different from nothing.
        generations: sequences of one prompt; they are adjacent.

    Returns:
        (sequences,) bool, the same for all sequences of a prompt.
    """
    groups = rewards.view(-1, generations)
    most, least = groups.nan_to_num(-torch.inf).amax(1), groups.nan_to_num(torch.inf).amin(1)
    return (most > least).repeat_interleave(generations)
