"""TRL's GRPOTrainer with our aggregation, filtering, meter, evaluation and checkpoints.

Everything else is TRL's: rollouts, rewards, advantages, losses, the optimizer and the loop.
"""

from __future__ import annotations

from typing import Any

import torch
from datasets import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from trl import GRPOTrainer
from trl.trainer.utils import RepeatSampler

from recipes.arguments import arguments
from recipes.checkpoints import Checkpoints
from recipes.config import RunConfig
from recipes.evaluate import evaluate
from recipes.losses import advantage_scale, varied_groups
from recipes.progress import Progress
from recipes.rollout import roll_out
from recipes.tasks import Row, TaskData


class EpochSampler(RepeatSampler):  # type: ignore[misc]
    """TRL's sampler, whose order in an epoch depends on the seed and the epoch alone.

    TRL's own draws each epoch's order from a generator that starts anew on resuming.
    """

    def set_epoch(self, epoch: int) -> None:
        """Called by accelerate before an epoch begins."""
        self.generator.manual_seed((self.seed << 20) + epoch)


class AblationTrainer(GRPOTrainer):  # type: ignore[misc]
    """Trains one run, reporting to `progress`, which also says when to evaluate, save and stop."""

    def __init__(
        self,
        config: RunConfig,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        data: TaskData,
        checkpoints: Checkpoints,
        progress: Progress,
    ) -> None:
        def reward(completions: list[str], **columns: list[str]) -> list[float]:
            names = ("prompts", "answer", "part")
            cells = zip(*(columns[name] for name in names), strict=True)
            rows = [Row(prompt=prompt, answer=answer, part=part) for prompt, answer, part in cells]
            return data.score(completions, rows).rewards

        self.config, self.data = config, data
        self.checkpoints, self.progress = checkpoints, progress
        super().__init__(
            model=model,
            reward_funcs=reward,
            args=arguments(config, checkpoints.aside, evaluate_first=progress.meter.steps == 0),
            train_dataset=Dataset.from_list(list(data.train)),
            processing_class=tokenizer,
            rollout_func=roll_out,
            callbacks=[progress],
        )
        if config.precision.fp32_head:
            # TRL 1.16 casts the head's operands, which autocast casts back when it generates.
            head = model.get_output_embeddings()  # type: ignore[no-untyped-call]
            without_autocast = torch.autocast(self.accelerator.device.type, enabled=False)
            head.forward = without_autocast(head.forward)

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        """Scales the advantages of the whole optimizer batch, before TRL shuffles and splits it."""
        output: dict[str, Any] = super()._generate_and_score_completions(inputs)
        gather = self.accelerator.gather
        lengths = gather(output["completion_mask"].sum(1))
        varied = varied_groups(gather(output["advantages"]), self.num_generations)
        kept = varied if self.config.filtering.zero_variance == "drop" else torch.ones_like(varied)
        scale = advantage_scale(
            self.loss_type, self.config.aggregation.over, lengths, self.num_generations, kept
        )
        local, rank = len(inputs), self.accelerator.process_index
        output["advantages"] = output["advantages"] * scale[rank * local : (rank + 1) * local]
        self._metrics["train"]["zero_variance_groups"].append(1 - varied.float().mean().item())
        prompt_tokens = gather(output["prompt_mask"].sum()).sum()
        self.progress.generated(int(prompt_tokens), int(lengths.sum()))
        return output

    def _get_train_sampler(self, dataset: Dataset | None = None) -> EpochSampler:
        return EpochSampler(
            data_source=self.train_dataset if dataset is None else dataset,
            mini_repeat_count=self.num_generations,
            batch_size=self.args.generation_batch_size // self.num_generations,
            repeat_count=self.num_iterations * self.args.steps_per_generation,
            seed=self.args.seed,
        )

    def create_scheduler(
        self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None
    ) -> torch.optim.lr_scheduler.LRScheduler:
        """Decays over the configured steps, which are part of the run, not over the budget's."""
        steps = self.config.optimizer.total_steps or num_training_steps
        scheduler: torch.optim.lr_scheduler.LRScheduler = super().create_scheduler(steps, optimizer)
        return scheduler

    def evaluate(self, *_: object, **__: object) -> dict[str, float]:
        """Held-out mean@k, in place of a pass over an evaluation data set."""
        step = self.state.global_step
        self.progress.evaluated(step, evaluate(self, self.data, step))
        self.control.should_evaluate = False  # as Trainer.evaluate does, else it is done twice
        return {}

    def _save_checkpoint(self, model: torch.nn.Module, trial: object) -> None:
        """TRL writes to the folder aside, its `output_dir`; complete, it becomes a checkpoint."""
        super()._save_checkpoint(model, trial)
        if self.accelerator.is_main_process:
            step = self.state.global_step
            written = self.checkpoints.aside / f"checkpoint-{step}"
            self.checkpoints.publish(written, step, self.progress.state())
            self.progress.saved(step)
        self.accelerator.wait_for_everyone()

    def create_model_card(self, *_: object, **__: object) -> None:
        """None: a checkpoint is not published."""

    def floating_point_ops(self, inputs: object) -> int:
        """None: `recipes.meter` counts them, and for a generated batch transformers cannot."""
        return 0
