"""TRL's GRPOTrainer with our optimizer batches, meter, evaluation and checkpoints.

Everything else is TRL's: rollouts, advantages, losses, the optimizer and the loop.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from trl import GRPOTrainer
from trl.trainer.utils import split_tensor_dict

from recipes.arguments import arguments
from recipes.batches import OptimizerBatches
from recipes.checkpoints import Checkpoints
from recipes.config import RunConfig
from recipes.evaluate import evaluate
from recipes.progress import Progress
from recipes.rewards import Rewards
from recipes.rollout import roll_out
from recipes.staleness import Rows
from recipes.tasks import TaskData


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
        self.config, self.data = config, data
        self.checkpoints, self.progress = checkpoints, progress
        self._rewards = Rewards(config, data)
        self._micro_batches: list[Rows] = []
        # With an FP32 head TRL casts a tied embedding's output back, by a name that not all models
        # give it. Weights are FP32 here, so there is nothing to cast.
        tied = model.config.tie_word_embeddings
        model.config.tie_word_embeddings = False
        super().__init__(
            model=model,
            reward_funcs=self._rewards,
            args=arguments(config, checkpoints.aside, evaluate_first=progress.meter.steps == 0),
            train_dataset=Dataset.from_list([{"prompt": ""}]),  # not read: see `_prepare_inputs`
            processing_class=tokenizer,
            rollout_func=roll_out,
            callbacks=[progress],
        )
        model.config.tie_word_embeddings = tied
        self.batches = OptimizerBatches(
            config,
            data,
            progress,
            self.accelerator,
            self._rewards,
            self._generate_and_score_completions,
            tokenizer.pad_token_id,
        )
        if config.precision.fp32_head:
            # TRL 1.16 casts the head's operands, which autocast casts back when it generates.
            head = model.get_output_embeddings()  # type: ignore[no-untyped-call]
            without_autocast = torch.autocast(self.accelerator.device.type, enabled=False)
            head.forward = without_autocast(head.forward)

    def get_train_dataloader(self) -> Any:  # noqa: ANN401
        """Turns without end, one a micro-batch: `_prepare_inputs` makes what is trained on."""
        return itertools.repeat({})

    def _prepare_inputs(self, _: object) -> Rows:
        """The next micro-batch, of a new optimizer batch where one begins."""
        if not self._micro_batches:
            batch = self.batches.next()
            self.progress.began(batch)
            rows = dict(batch.rows)
            # TRL's token means divide by the tokens of all that was generated at once.
            accumulation = self.args.gradient_accumulation_steps
            tokens = rows.pop("own_tokens") * self.args.steps_per_generation / accumulation
            self._micro_batches = split_tensor_dict(rows, accumulation)
            for micro_batch in self._micro_batches:
                micro_batch["num_items_in_batch"] = tokens
        return self._micro_batches.pop(0)

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
        written = self.checkpoints.aside / f"checkpoint-{self.state.global_step}"
        torch.save(self.batches.state(), self._batches_file(written))
        self._publish()

    def _publish(self) -> None:
        """The first process does, once all have written their part."""
        step = self.state.global_step
        self.accelerator.wait_for_everyone()
        if self.accelerator.is_main_process:
            self.progress.saving()
            written = self.checkpoints.aside / f"checkpoint-{step}"
            self.checkpoints.publish(written, step, self.progress.state())
            self.progress.saved(step)
        self.accelerator.wait_for_everyone()

    def go_on(self, checkpoint: Path | None) -> None:
        """Trains until `progress` says to stop, from a checkpoint or from the beginning."""
        if checkpoint:
            self.batches.restore(torch.load(self._batches_file(checkpoint), weights_only=True))
        self.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)

    def _batches_file(self, checkpoint: Path) -> Path:
        return checkpoint / f"batches_{self.accelerator.process_index}.pt"

    def create_model_card(self, *_: object, **__: object) -> None:
        """None: a checkpoint is not published."""

    def floating_point_ops(self, inputs: object) -> int:
        """None: `recipes.meter` counts them, and for a generated batch transformers cannot."""
        return 0
