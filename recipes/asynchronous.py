"""Staleness ``pipeline`` on GPUs: a vLLM server generates while TRL's AsyncGRPOTrainer trains.

The one place that knows of that trainer, which TRL calls experimental. Samples more than
`staleness.updates` updates old are not trained on; what the trainer lacks is refused when a run is
planned (`recipes.config`). Not exact on resuming, as a queue filled by another process cannot be.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import fmean
from typing import Any

import requests
import torch
from datasets import Dataset
from requests.adapters import HTTPAdapter
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer
from urllib3 import Retry

from recipes import models
from recipes.arguments import arguments
from recipes.checkpoints import Checkpoints
from recipes.config import RunConfig
from recipes.progress import Progress
from recipes.rewards import Rewards
from recipes.staleness import Batch
from recipes.tasks import Row, TaskData
from recipes.trainer import AblationTrainer

SHARED = (
    "output_dir",
    "seed",
    "epsilon",
    "epsilon_high",
    "num_generations",
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "max_completion_length",
    "temperature",
    "learning_rate",
    "lr_scheduler_type",
    "warmup_steps",
    "weight_decay",
    "adam_beta1",
    "adam_beta2",
    "adam_epsilon",
    "max_grad_norm",
    "max_steps",
    "use_cpu",
    "bf16",
    "fp16",
    "activation_checkpointing",
    "fsdp",
    "fsdp_config",
    "eval_on_start",
    "logging_steps",
    "logging_nan_inf_filter",
    "eval_strategy",
    "save_strategy",
    "report_to",
    "disable_tqdm",
    "dataloader_pin_memory",
)
"""What the two trainers call by the same name, and mean the same by."""
REQUEST_S = 3600.0
"""For one held-out prompt's completions; a server that takes longer is stuck."""
AT_ONCE = 64
"""Held-out prompts that the server is asked to complete at the same time."""
TRIES = Retry(total=5, backoff_factor=1, status_forcelist=(502, 503, 504), allowed_methods=None)
"""A completion can be asked for again: one connection lost is no reason to end a training."""


def asynchronous_arguments(config: RunConfig, folder: Path, first: bool = False) -> AsyncGRPOConfig:
    """The configuration in the asynchronous trainer's words.

    Samples are counted, not tokens, so that a batch is as many as it is configured to be.
    """
    known = arguments(config, folder, evaluate_first=first)
    shared = {name: getattr(known, name) for name in SHARED}
    server = {f"vllm_{name}": value for name, value in config.execution.vllm.items()}
    revision = {"revision": config.model.revision or "main"}
    return AsyncGRPOConfig(
        **shared,
        **server,
        max_staleness=config.staleness.updates,
        token_budget=0,
        model_init_kwargs=revision,
    )


class WorkerRewards(Rewards):
    """The reward as the rollout process calls it: on conversations."""

    def __call__(
        self,
        completions: Sequence[Any],
        completion_ids: Sequence[Sequence[int]],
        row: Sequence[Row],
        **_: object,
    ) -> list[float]:
        """As `Rewards`, of the last message of each."""
        texts = [conversation[-1]["content"] for conversation in completions]
        return super().__call__(texts, completion_ids, row)


class AsynchronousTrainer(AsyncGRPOTrainer):  # type: ignore[misc]
    """TRL's asynchronous trainer with our meter, evaluation and checkpoints."""

    def __init__(
        self,
        config: RunConfig,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        data: TaskData,
        checkpoints: Checkpoints,
        progress: Progress,
        **backends: Any,  # noqa: ANN401
    ) -> None:
        """`model` says which, and is loaded anew; `backends`: TRL's own two are replaced by."""
        self.config, self.data = config, data
        self.checkpoints, self.progress = checkpoints, progress
        first = progress.meter.steps == 0
        rows = [
            {"prompt": [{"role": "user", "content": row["prompt"]}], "row": row}
            for row in data.train
        ]
        super().__init__(
            model=model.name_or_path,
            reward_funcs=WorkerRewards(config, data),
            args=asynchronous_arguments(config, checkpoints.aside, first),
            train_dataset=Dataset.from_list(rows).shuffle(config.seed),
            processing_class=tokenizer,
            callbacks=[progress],
            peft_config=models.adapters(config.model),
            **backends,
        )
        self._server = _patient()
        self.use_vllm = True
        self.num_generations = config.batch.generations
        self.num_generations_eval = config.task.eval_samples

    evaluate = AblationTrainer.evaluate
    create_model_card = AblationTrainer.create_model_card
    floating_point_ops = AblationTrainer.floating_point_ops
    _publish = AblationTrainer._publish

    def compute_loss(self, model: torch.nn.Module, inputs: Any, **options: Any) -> Any:  # noqa: ANN401
        """Counts each micro-batch: a prompt that completions share is processed once for them."""
        loss = super().compute_loss(model, inputs, **options)
        tokens, own = (
            int(inputs[name][0]) for name in ("global_n_forward_tokens", "global_n_tokens")
        )
        self.progress.generated(tokens - own, own, scored=False)
        age = fmean(self._metrics["train"].get("sample/staleness_mean") or [0.0])
        step = self.progress.meter.steps - round(age)
        self.progress.began(Batch({}, int(self._step_forward_tokens), step))
        return loss

    def _tokenize_prompts(self, prompts: list[Any]) -> tuple[list[list[int]], None, dict[str, Any]]:
        """As GRPOTrainer, of which `recipes.rollout` asks it."""
        found = self.processing_class.apply_chat_template(
            prompts, add_generation_prompt=True, tokenize=True, return_dict=True
        )
        return found["input_ids"], None, {}

    def _generate_single_turn(
        self, prompt_ids: list[list[int]], _: None, __: dict[str, Any], generations: int
    ) -> tuple[list[list[int]], None]:
        """Completions by the server, whose weights follow each optimizer step."""
        with ThreadPoolExecutor(max_workers=AT_ONCE) as pool:
            found = pool.map(self._complete, prompt_ids[::generations])
        return [ids for completions in found for ids in completions], None

    def _complete(self, prompt: list[int]) -> list[list[int]]:
        """The completions of one held-out prompt."""
        asked = {
            "model": self.rollout_model(),
            "prompt": prompt,
            "n": self.num_generations_eval,
            "max_tokens": self.args.max_completion_length,
            "temperature": self.temperature,
            "return_token_ids": True,
        }
        url = f"{self.args.vllm_server_base_url}/v1/completions"
        answer = self._server.post(url, json=asked, timeout=REQUEST_S)
        answer.raise_for_status()
        return [choice["token_ids"] for choice in answer.json()["choices"]]

    def rollout_model(self) -> str:
        """The name by which the server knows the policy as it is."""
        name = f"{self._lora_name}-v{self.model_version}" if self._lora_sync else None
        return name or str(self.model.name_or_path)

    def _save_checkpoint(self, model: torch.nn.Module, trial: object) -> None:
        """As `AblationTrainer`: written aside, then published."""
        super()._save_checkpoint(model, trial)
        self._publish()

    def go_on(self, checkpoint: Path | None) -> None:
        """Trains until `progress` says to stop, from a checkpoint or from the beginning."""
        self.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)


def _patient() -> requests.Session:
    """Requests that are made again when the connection or the server fails for a moment."""
    session = requests.Session()
    for scheme in ("http://", "https://"):
        session.mount(scheme, HTTPAdapter(pool_maxsize=AT_ONCE, max_retries=TRIES))
    return session
