"""Schemas of what is not a run: where runs go, where they are logged, and the sweep itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from recipes.config import AXES, COMPUTE_AXES, ConfigError, RunConfig

STRATEGIES = ("grid", "one_at_a_time", "leave_one_out")
CLUSTERS = ("local", "slurm")


def _positive(name: str, given: float | None) -> None:
    if given is not None and given <= 0:
        raise ConfigError(name, given, "a number > 0")


@dataclass
class Cluster:
    """Where runs are trained."""

    kind: str = "local"
    """``local``: this machine; ``slurm``: job arrays through submitit."""
    parallel: int = 2
    """Runs at the same time, at most."""
    time_min: int = 24 * 60
    """Time limit of a job; a run that needs more is checkpointed and requeued."""
    signal_delay_s: int = 120
    """How long before the time limit a job is told to checkpoint."""
    nodes: int = 1
    gpus_per_node: int = 0
    cpus_per_task: int = 1
    mem_gb: float | None = None
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    setup: list[str] = field(default_factory=list)
    """Shell lines run before the job: module loads, exports."""
    extra: dict[str, Any] = field(default_factory=dict)
    """Further sbatch options by their long names (``gres: gpu:2``)."""

    def __post_init__(self) -> None:
        if self.kind not in CLUSTERS:
            raise ConfigError("cluster.kind", self.kind, " | ".join(CLUSTERS))
        for name in ("parallel", "time_min", "signal_delay_s", "nodes", "cpus_per_task", "mem_gb"):
            _positive(f"cluster.{name}", getattr(self, name))
        if self.gpus_per_node < 0:
            raise ConfigError("cluster.gpus_per_node", self.gpus_per_node, "a number >= 0")
        if self.signal_delay_s >= 60 * self.time_min:
            allowed = f"less than cluster.time_min = {self.time_min} min"
            raise ConfigError("cluster.signal_delay_s", self.signal_delay_s, allowed)


@dataclass
class Tracking:
    """Where MLflow keeps the curves."""

    uri: str | None = None
    """An MLflow tracking address; null: a SQLite file, ``mlflow.db``, under `Settings.root`."""
    experiment: str = "shortlist"


@dataclass
class Settings(RunConfig):
    """A resolved configuration: one run, and where it goes. Mirrors ``conf/config.yaml``."""

    root: str = "outputs"
    """Folder of runs, sweeps, snapshots and the default store; on a cluster, seen by all nodes."""
    cluster: Cluster = field(default_factory=Cluster)
    tracking: Tracking = field(default_factory=Tracking)


@dataclass
class Sweep:
    """A named set of runs and the strategy that generates them: a file in ``conf/sweep/``."""

    strategy: str = "grid"
    """``grid``: the product of the axes; ``one_at_a_time``: the base, and each alternative alone;
    ``leave_one_out``: the base, and each axis put back to the choice given."""
    axes: dict[str, list[Any] | None] = field(default_factory=dict)
    """Axis to choices. An axis is a group (``loss``), a key (``optimizer.lr``), or several joined
    by commas, whose choices are lists that move together. null: the choice of `reference`."""
    reference: str = "baseline"
    """The recipe whose choice stands where an axis names none."""
    set: list[str] = field(default_factory=list)
    """Hydra overrides of the base, before those of the command line."""
    where: list[dict[str, Any]] = field(default_factory=list)
    """Keep only combinations that match one of these (axis: choice, or list of choices)."""
    exclude: list[dict[str, Any]] = field(default_factory=list)
    """Leave out combinations that match one of these."""
    seeds: list[int] = field(default_factory=lambda: [0])
    compute: str = "flops"
    """The compute axis its curves are judged on."""

    def __post_init__(self) -> None:
        if self.strategy not in STRATEGIES:
            raise ConfigError("sweep.strategy", self.strategy, " | ".join(STRATEGIES))
        if not self.axes:
            raise ConfigError(
                "sweep.axes", self.axes, f"at least one of {', '.join(AXES)}, or a key"
            )
        if self.compute not in COMPUTE_AXES:
            raise ConfigError("sweep.compute", self.compute, " | ".join(COMPUTE_AXES))
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise ConfigError("sweep.seeds", self.seeds, "one or more different whole numbers")
        for axis, choices in self.axes.items():
            if choices is not None and not choices:
                raise ConfigError(f"sweep.axes.{axis}", choices, "a list of at least one choice")
