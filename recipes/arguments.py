"""A run's configuration in the words of TRL and accelerate."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from trl import GRPOConfig

from recipes.config import ConfigError, RunConfig

SCALE_REWARDS = {"prompt": "group", "batch": "none", "none": "none"}
"""TRL's ``scale_rewards``; a batch's standard deviation is that of `recipes.losses`."""
SCHEDULERS = {"constant": "constant_with_warmup", "linear": "linear", "cosine": "cosine"}
NEVER = 10**9
"""Steps: runs end by their budget, which is not TRL's to know, since a run can go on past it."""


def micro_batch(config: RunConfig) -> int:
    """Sequences that one process takes through a forward and backward pass at a time.

    Raises:
        ConfigError: The batch cannot be split so among the processes there are.
    """
    world = int(os.environ.get("WORLD_SIZE", "1"))
    size = config.batch.size
    if size % world:
        name, allowed = "batch.prompts x batch.generations", f"a multiple of {world} processes"
        raise ConfigError(name, size, allowed)
    micro = config.execution.micro_batch or size // world
    if size % (micro * world):
        allowed = f"a divisor of {size} / {world} processes"
        raise ConfigError("execution.micro_batch", micro, allowed)
    return micro


def arguments(config: RunConfig, folder: Path, evaluate_first: bool = False) -> GRPOConfig:
    """The configuration in TRL's words.

    Where more than one optimizer batch is generated at once, `steps_per_generation` says so, which
    makes TRL keep the behaviour policy's log-probabilities.

    Raises:
        ConfigError: As `micro_batch`.
    """
    micro = micro_batch(config)
    world = int(os.environ.get("WORLD_SIZE", "1"))
    accumulation = config.batch.size // (micro * world)
    optimizer = config.optimizer
    return GRPOConfig(
        output_dir=str(folder),
        seed=config.seed,
        loss_type=config.loss.name,
        importance_sampling_level=config.loss.ratio,
        epsilon=config.loss.epsilon_low,
        epsilon_high=config.loss.epsilon_high,
        scale_rewards=SCALE_REWARDS[config.advantage.scale],
        beta=0.0,  # no KL term in any recipe of the paper
        num_generations=config.batch.generations,
        num_generations_eval=config.task.eval_samples,
        per_device_train_batch_size=micro,
        gradient_accumulation_steps=accumulation,
        steps_per_generation=accumulation * config.staleness.at_once,
        max_completion_length=config.task.max_completion_tokens,
        temperature=config.task.temperature,
        learning_rate=optimizer.lr,
        lr_scheduler_type=SCHEDULERS[optimizer.schedule],
        warmup_steps=optimizer.warmup_steps,
        weight_decay=optimizer.weight_decay,
        adam_beta1=optimizer.beta1,
        adam_beta2=optimizer.beta2,
        adam_epsilon=optimizer.eps,
        max_grad_norm=optimizer.max_grad_norm,
        max_steps=NEVER,
        ignore_data_skip=True,  # `recipes.sampling` knows where the prompts stand
        use_cpu=not torch.cuda.is_available(),
        bf16=config.precision.dtype == "bf16",
        fp16=config.precision.dtype == "fp16",
        cast_lm_head_to_fp32=config.precision.fp32_head,
        **_layout(config),
        eval_on_start=evaluate_first,
        logging_steps=1,
        logging_nan_inf_filter=False,
        eval_strategy="no",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        dataloader_pin_memory=torch.cuda.is_available(),
    )


def _layout(config: RunConfig) -> dict[str, Any]:
    """How the run is laid out on its machines: what is sharded or computed twice, who generates."""
    given = config.execution
    recompute = (
        not config.model.embedded
        if given.gradient_checkpointing is None
        else given.gradient_checkpointing
    )
    layout: dict[str, Any] = {"activation_checkpointing": recompute, "deepspeed": given.deepspeed}
    if given.fsdp:  # which has its own way of computing again
        fsdp = {"activation_checkpointing": recompute, **given.fsdp_config}
        layout |= {"activation_checkpointing": False, "fsdp": True, "fsdp_config": fsdp}
    if given.rollouts in ("vllm_colocate", "vllm_server"):
        vllm = {"max_model_length": config.task.longest, **given.vllm}
        layout |= {f"vllm_{name}": value for name, value in vllm.items()}
        layout |= {"use_vllm": True, "vllm_mode": given.rollouts.removeprefix("vllm_")}
    return layout
