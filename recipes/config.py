"""The configuration of one run: a typed dataclass for every axis, checked before anything starts.

Nothing heavy is imported here, so that planning a thousand runs stays cheap. Each class is a Hydra
schema too: OmegaConf knows no ``Literal``, so a field that takes one of a few words is a ``str``
checked against the tuple beside it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from recipes.checks import ConfigError as ConfigError
from recipes.checks import at_least, between, one_of
from recipes.task_config import Task as Task

LOSSES = ("grpo", "dapo", "cispo", "dr_grpo", "bnpo", "sapo", "luspo", "vespo")
"""TRL 1.16's ``loss_type`` values (trl/trainer/grpo_config.py)."""
RATIOS = ("token", "sequence")
AGGREGATIONS = ("native", "sample", "prompt", "token")
ADVANTAGES = ("prompt", "batch", "none")
DTYPES = ("fp32", "bf16", "fp16")
ZERO_VARIANCE = ("keep", "drop", "resample")
LENGTHS = ("truncate", "penalty", "interrupt")
STALENESS = ("on_policy", "ppo", "pipeline")
SCHEDULES = ("constant", "linear", "cosine")
ROLLOUTS = ("transformers", "vllm_colocate", "vllm_server", "async")
VLLM = (
    "server_base_url",
    "server_host",
    "server_port",
    "server_timeout",
    "group_port",
    "tensor_parallel_size",
    "gpu_memory_utilization",
    "max_model_length",
    "enable_sleep_mode",
    "model_impl",
)
"""TRL 1.16's ``vllm_`` arguments that change no result (trl/trainer/grpo_config.py)."""
FSDP = (
    "version",
    "reshard_after_forward",
    "cpu_offload",
    "activation_checkpointing",
    "cpu_ram_efficient_loading",
    "state_dict_type",
    "auto_wrap_policy",
    "transformer_layer_cls_to_wrap",
    "min_num_params",
)
"""Keys of transformers 5's ``fsdp_config`` (transformers/training_args.py)."""
COMPUTE_AXES = ("steps", "tokens", "flops", "gpu_hours")
FIXED_AGGREGATION = ("dr_grpo", "luspo")
"""Losses that are an aggregation themselves, so that no other can be put on top."""


@dataclass
class Loss:
    """The policy-gradient loss of a token or sequence; how tokens are averaged is `Aggregation`."""

    name: str = "grpo"
    """TRL's ``loss_type``, one of `LOSSES`."""
    ratio: str = "token"
    """Level of the importance ratio: ``token``, or ``sequence`` (GSPO, arXiv 2507.18071)."""
    epsilon_low: float = 0.2
    """Lower clip: ratios under 1 - epsilon_low are clipped."""
    epsilon_high: float = 0.2
    """Upper clip: 1 + epsilon_high; for CISPO the bound of the ratio itself."""

    def __post_init__(self) -> None:
        one_of("loss.name", self.name, LOSSES)
        one_of("loss.ratio", self.ratio, RATIOS)
        between("loss.epsilon_low", self.epsilon_low, 0, 1)
        at_least("loss.epsilon_high", self.epsilon_high, 0, strictly=True)
        if self.name == "luspo" and self.ratio != "sequence":
            raise ConfigError("loss.ratio", self.ratio, "sequence, with loss.name=luspo")
        if self.name == "vespo" and self.ratio != "token":
            raise ConfigError("loss.ratio", self.ratio, "token, with loss.name=vespo")


@dataclass
class Aggregation:
    """How token losses of one optimizer batch become one number."""

    over: str = "native"
    """``sample``, ``prompt`` or ``token`` means (arXiv 2510.13786, section 3.2), or ``native``:
    TRL's own for the loss."""

    def __post_init__(self) -> None:
        one_of("aggregation.over", self.over, AGGREGATIONS)


@dataclass
class Advantage:
    """The reward less its group's mean, divided by the standard deviation named here."""

    scale: str = "prompt"
    """``prompt``: of the prompt's group; ``batch``: of the whole batch; ``none``: centred only."""

    def __post_init__(self) -> None:
        one_of("advantage.scale", self.scale, ADVANTAGES)


@dataclass
class Precision:
    """Number format of training and generation."""

    dtype: str = "fp32"
    """``bf16`` and ``fp16`` are autocast over FP32 weights; ``fp16`` needs a GPU."""
    fp32_head: bool = False
    """Compute the logits in FP32; an embedding that the LM head is tied to stays as it is."""

    def __post_init__(self) -> None:
        one_of("precision.dtype", self.dtype, DTYPES)


@dataclass
class Batch:
    """One optimizer step's rollouts: ``prompts * generations`` completions, however it is split."""

    prompts: int = 8
    generations: int = 16
    """Completions for each prompt (the group size G)."""

    def __post_init__(self) -> None:
        at_least("batch.prompts", self.prompts, 1)
        at_least("batch.generations", self.generations, 2)

    @property
    def size(self) -> int:
        """Completions in one optimizer batch."""
        return self.prompts * self.generations


@dataclass
class Filtering:
    """Which rollouts enter the loss."""

    zero_variance: str = "keep"
    """Groups with equal rewards: ``keep``; ``drop`` from the loss and its denominators; or
    ``resample``: drop, and generate until the batch is full again (DAPO, arXiv 2503.14476)."""
    rounds: int = 10
    """Batches generated for one optimizer batch, at most, with ``resample``; what is still missing
    then is dropped."""
    max_pass_rate: float | None = None
    """Prompts that passed this share of the time or more, over the run so far, are left out of
    later epochs; null: none (0.9 in arXiv 2510.13786, no-positive-resampling)."""

    def __post_init__(self) -> None:
        one_of("filtering.zero_variance", self.zero_variance, ZERO_VARIANCE)
        at_least("filtering.rounds", self.rounds, 1)
        if self.max_pass_rate is not None and not 0 < self.max_pass_rate <= 1:
            allowed = "null, or a number above 0 and at most 1"
            raise ConfigError("filtering.max_pass_rate", self.max_pass_rate, allowed)


@dataclass
class Length:
    """What happens to long completions. Lengths are shares of `task.max_completion_tokens`.

    The paper's are 10k, 12k and 2k of 14k tokens (arXiv 2510.13786), so they scale with the task.
    """

    kind: str = "truncate"
    """``truncate``: cut off, and so wrong; ``penalty``: a right one loses up to 1 as it nears the
    limit; ``interrupt``: thinking is ended at a random point and an answer asked for."""
    cache: float = 0.142857142857
    """With ``penalty``: the last share of the limit, over which the penalty goes from 0 to -1."""
    earliest: float = 0.714285714286
    """With ``interrupt``: thinking is ended at this share of the limit at the earliest,"""
    latest: float = 0.857142857143
    """at this at the latest; what is left of the limit then is for the answer."""

    def __post_init__(self) -> None:
        one_of("length.kind", self.kind, LENGTHS)
        between("length.cache", self.cache, 0, 1)
        if not self.cache:
            raise ConfigError("length.cache", self.cache, "a number above 0 and at most 1")
        between("length.latest", self.latest, 0, 1)
        between("length.earliest", self.earliest, 0, self.latest)


@dataclass
class Staleness:
    """How many updates old the policy is that generated what is trained on."""

    kind: str = "on_policy"
    """``on_policy``; ``ppo``: `updates` optimizer batches are generated at once, and trained on
    one after the other; ``pipeline``: rollouts are trained on `updates` steps after they were
    generated (PipelineRL, arXiv 2509.19128)."""
    updates: int = 1
    """k of PPO-off-policy-k and PipelineRL-k."""

    def __post_init__(self) -> None:
        one_of("staleness.kind", self.kind, STALENESS)
        at_least("staleness.updates", self.updates, 1)
        if self.kind == "on_policy" and self.updates != 1:
            raise ConfigError("staleness.updates", self.updates, "1, with staleness.kind=on_policy")

    @property
    def at_once(self) -> int:
        """Optimizer batches of one policy, at most; with more than one, some get stale."""
        return self.updates + (self.kind == "pipeline")


@dataclass
class Optimizer:
    """AdamW and its schedule."""

    lr: float = 2e-4
    """Learning rate after warm-up."""
    warmup_steps: int = 20
    schedule: str = "constant"
    """``constant`` can go on past any budget; ``linear``, ``cosine`` decay over `total_steps`."""
    total_steps: int | None = None
    """Length of a decaying schedule in optimizer steps: part of the run's identity."""
    weight_decay: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    max_grad_norm: float = 1.0

    def __post_init__(self) -> None:
        at_least("optimizer.lr", self.lr, 0, strictly=True)
        at_least("optimizer.warmup_steps", self.warmup_steps, 0)
        at_least("optimizer.weight_decay", self.weight_decay, 0)
        between("optimizer.beta1", self.beta1, 0, 0.9999999)
        between("optimizer.beta2", self.beta2, 0, 0.9999999)
        at_least("optimizer.eps", self.eps, 0, strictly=True)
        at_least("optimizer.max_grad_norm", self.max_grad_norm, 0, strictly=True)
        one_of("optimizer.schedule", self.schedule, SCHEDULES)
        if (self.schedule == "constant") != (self.total_steps is None):
            allowed = "null" if self.schedule == "constant" else "a number of steps"
            raise ConfigError(
                "optimizer.total_steps",
                self.total_steps,
                f"{allowed}, with {self.schedule} schedule",
            )
        if self.total_steps is not None:
            at_least("optimizer.total_steps", self.total_steps, self.warmup_steps, strictly=True)


@dataclass
class Model:
    """The policy: the embedded one, built on the spot, or any Hugging Face causal LM."""

    path: str = "embedded"
    """``embedded``, or a Hugging Face id or folder."""
    revision: str | None = None
    hidden_size: int = 64
    """Width of the embedded model (its other sizes follow; ignored for a Hugging Face path)."""
    layers: int = 3
    """Depth of the embedded model."""
    warm_start_batches: int | None = None
    """Supervised batches of 128 that the embedded model begins with; null: as many as bring it to a
    pass rate of 0.2 to 0.3 on digits."""
    lora_rank: int = 0
    """Rank of LoRA adapters (arXiv 2106.09685), which alone are then trained; 0: none."""
    lora_alpha: float = 32.0
    """Adapters are scaled by lora_alpha / lora_rank."""
    lora_targets: list[str] = field(default_factory=lambda: ["all-linear"])
    """Names of the matrices that are adapted; ``all-linear``: all of them but the LM head."""

    def __post_init__(self) -> None:
        at_least("model.lora_rank", self.lora_rank, 0)
        at_least("model.lora_alpha", self.lora_alpha, 0, strictly=True)
        if not self.lora_targets or any(name.endswith("lm_head") for name in self.lora_targets):
            # TRL multiplies with the head's weight itself, which an adapter beside it is not in.
            allowed = "[all-linear], or names of matrices, the LM head not among them"
            raise ConfigError("model.lora_targets", self.lora_targets, allowed)
        at_least("model.hidden_size", self.hidden_size, 16)
        at_least("model.layers", self.layers, 1)
        at_least("model.warm_start_batches", self.warm_start_batches or 0, 0)
        if self.path == "embedded" and self.hidden_size % 16:
            raise ConfigError("model.hidden_size", self.hidden_size, "a multiple of 16")

    @property
    def embedded(self) -> bool:
        """Whether the policy is the built-in one."""
        return self.path == "embedded"


@dataclass
class Budget:
    """How far a run goes. Not part of its identity: a larger budget continues the run."""

    axis: str = "steps"
    """Compute axis of `amount`: one of `COMPUTE_AXES`."""
    amount: float = 400
    eval_every: int = 25
    """Optimizer steps between evaluations; a checkpoint follows each."""
    log_every: int = 5
    """Optimizer steps between logged training metrics."""

    def __post_init__(self) -> None:
        one_of("budget.axis", self.axis, COMPUTE_AXES)
        at_least("budget.amount", self.amount, 0, strictly=True)
        if self.axis == "steps" and self.amount != int(self.amount):
            raise ConfigError(
                "budget.amount", self.amount, "a whole number, with budget.axis=steps"
            )
        at_least("budget.eval_every", self.eval_every, 1)
        at_least("budget.log_every", self.log_every, 1)


@dataclass
class Execution:
    """How the run is laid out on its machine. Changes no result beyond floating-point order."""

    micro_batch: int | None = None
    """Sequences in one forward and backward pass of a process; null: its whole share."""
    threads: int | None = None
    """CPU threads of the training process; null: PyTorch's choice."""
    keep_checkpoints: int = 2
    """Complete checkpoints kept; older ones are deleted."""
    gradient_checkpointing: bool | None = None
    """Activations are computed again in the backward pass, which saves
    memory for a third more time; null: for all models but the embedded one."""
    rollouts: str = "transformers"
    """Who generates: ``transformers``; ``vllm_colocate``: vLLM on the training devices;
    ``vllm_server``: vLLM on others; ``async``: a vLLM server that generates while the trainer
    trains (TRL's AsyncGRPOTrainer), with staleness.kind=pipeline."""
    vllm: dict[str, Any] = field(default_factory=dict)
    """TRL's arguments on vLLM by their names without ``vllm_``, of `VLLM`."""
    fsdp: bool = False
    """Whether weights, gradients and optimizer state are sharded over the processes (FSDP2)."""
    fsdp_config: dict[str, Any] = field(default_factory=dict)
    """Hugging Face's keys on it by name, of `FSDP`."""
    deepspeed: str | None = None
    """A DeepSpeed configuration file, handed on as it is."""

    def __post_init__(self) -> None:
        one_of("execution.rollouts", self.rollouts, ROLLOUTS)
        for name, given, known in (
            ("execution.vllm", self.vllm, VLLM),
            ("execution.fsdp_config", self.fsdp_config, FSDP),
        ):
            for key in given:
                one_of(f"{name}'s key", key, known)
        if self.vllm and self.rollouts == "transformers":
            raise ConfigError(
                "execution.vllm", self.vllm, "{}, with execution.rollouts=transformers"
            )
        if self.fsdp_config and not self.fsdp:
            raise ConfigError(
                "execution.fsdp_config", self.fsdp_config, "{}, without execution.fsdp"
            )
        if self.fsdp and self.deepspeed is not None:
            raise ConfigError("execution.deepspeed", self.deepspeed, "null, with execution.fsdp")
        if self.micro_batch is not None:
            at_least("execution.micro_batch", self.micro_batch, 1)
        if self.threads is not None:
            at_least("execution.threads", self.threads, 1)
        at_least("execution.keep_checkpoints", self.keep_checkpoints, 1)


@dataclass
class RunConfig:
    """Everything one run is made of. `IDENTITY` names the fields its ``run_id`` is a hash of."""

    loss: Loss = field(default_factory=Loss)
    aggregation: Aggregation = field(default_factory=Aggregation)
    advantage: Advantage = field(default_factory=Advantage)
    precision: Precision = field(default_factory=Precision)
    batch: Batch = field(default_factory=Batch)
    filtering: Filtering = field(default_factory=Filtering)
    length: Length = field(default_factory=Length)
    staleness: Staleness = field(default_factory=Staleness)
    model: Model = field(default_factory=Model)
    task: Task = field(default_factory=Task)
    optimizer: Optimizer = field(default_factory=Optimizer)
    seed: int = 0
    budget: Budget = field(default_factory=Budget)
    execution: Execution = field(default_factory=Execution)

    def __post_init__(self) -> None:
        between("seed", self.seed, 0, 2**31 - 1)
        if self.loss.name in FIXED_AGGREGATION and self.aggregation.over != "native":
            allowed = f"native, with loss.name={self.loss.name}"
            raise ConfigError("aggregation.over", self.aggregation.over, allowed)
        self.task.check()
        if self.task.prompts is not None:
            self.check_prompts(self.task.prompts - self.task.eval_prompts)
        if self.task.chat and self.model.embedded:
            raise ConfigError("task.chat", True, "false, with model.path=embedded")
        self._check_schedule()
        self._check_micro_batch()
        if self.length.kind == "interrupt" and not self.task.end_of_thinking:
            allowed = "truncate | penalty, with a task that has no end_of_thinking (digits has one)"
            raise ConfigError("length.kind", self.length.kind, allowed)
        if self.execution.rollouts == "async":
            self._check_asynchronous()

    def _check_asynchronous(self) -> None:
        """Refuses what TRL 1.16's AsyncGRPOTrainer does not have (its `compute_loss`)."""
        loss, over = self.loss, self.aggregation.over
        for name, given, allowed in (
            ("staleness.kind", self.staleness.kind, ("pipeline",)),
            ("loss.name", loss.name, ("grpo", "dapo")),
            ("loss.ratio", loss.ratio, ("token",)),
            ("aggregation.over", over, ("token", "native")[: 1 + (loss.name == "dapo")]),
            ("advantage.scale", self.advantage.scale, ("prompt",)),
            ("filtering.zero_variance", self.filtering.zero_variance, ("keep",)),
            ("filtering.max_pass_rate", self.filtering.max_pass_rate, (None,)),
            ("length.kind", self.length.kind, ("truncate",)),
            ("precision.fp32_head", self.precision.fp32_head, (False,)),
            ("optimizer.schedule", self.optimizer.schedule, ("constant",)),
            ("task.chat", self.task.chat, (True,)),
        ):
            if given not in allowed:
                words = " | ".join(map(str, allowed))
                raise ConfigError(name, given, f"{words}, with execution.rollouts=async")

    def check_prompts(self, train: int) -> None:
        """Refuses a task with fewer than a batch of prompts to train on, once that is known."""
        if self.batch.prompts > train:
            allowed = f"at most {train}, the prompts to train on"
            raise ConfigError("batch.prompts", self.batch.prompts, allowed)

    def _check_schedule(self) -> None:
        """A decayed schedule cannot be gone on past: its length is the longest budget."""
        total = self.optimizer.total_steps
        if total is not None and self.budget.axis == "steps" and self.budget.amount > total:
            allowed = f"at most optimizer.total_steps = {total}"
            raise ConfigError("budget.amount", self.budget.amount, allowed)

    def _check_micro_batch(self) -> None:
        micro = self.execution.micro_batch
        if micro is not None and self.batch.size % micro:
            size = self.batch.size
            allowed = f"a divisor of batch.prompts x batch.generations = {size}"
            raise ConfigError("execution.micro_batch", micro, allowed)


AXES = (
    "loss",
    "aggregation",
    "advantage",
    "precision",
    "batch",
    "filtering",
    "length",
    "staleness",
    "model",
    "task",
    "optimizer",
)
"""The axes of a recipe, each a group of choices in ``conf/``."""

IDENTITY = (*AXES, "seed")
"""What a run's identity is made of. Left out: budget, execution, cluster, tracking."""


def identity(config: dict[str, Any]) -> dict[str, Any]:
    """The part of a resolved run configuration that decides what is trained."""
    return {name: config[name] for name in IDENTITY}
