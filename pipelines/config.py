"""Schemas of what is not a run: where runs go, where they are logged, and the sweep itself."""

from __future__ import annotations

import re
import shlex
from dataclasses import asdict, dataclass, field
from typing import Any

from pipelines.redact import WITH_PASSWORD, redacted, secrets_in, shown, withheld
from recipes.config import AXES, COMPUTE_AXES, ConfigError, RunConfig

STRATEGIES = ("grid", "one_at_a_time", "leave_one_out", "adaptive")
COMPARED = ("one_at_a_time", "leave_one_out")
"""Strategies whose base is what every other recipe is compared with."""
RUNGS = (0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.7, 0.8, 0.9, 1.0)
OBJECTIVES = ("forecast", "A_and_B")
PASS_RATE = "eval/pass_rate"
"""Of all held-out prompts."""
CLUSTERS = ("local", "slurm")
POSITIVE = (
    "parallel",
    "time_min",
    "signal_delay_s",
    "nodes",
    "processes",
    "cpus_per_task",
    "mem_gb",
)
WORDS = ("partition", "account", "qos", "constraint", "gres", "container", "python")
"""What becomes a word of the batch script."""
OURS = ("array", "dependency", "error", "job_name", "open_mode", "output", "requeue", "signal")
"""Options of sbatch that are not a site's to set: runs are found, stopped and requeued by them."""


def metric_name(given: str) -> str:
    """The full name of a pass rate; `given` may be the part of a mixture that it is of."""
    return given if "/" in given else f"eval/{given}/pass_rate"


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
    retries: int = 0
    """How often a run that ends with an error is tried again. Preemptions, time limits and nodes
    that fail are no errors of the run: after those it goes on, however often."""
    nodes: int = 1
    processes: int | None = None
    """Processes of a run on each node, which train it together; null: one for each GPU, or one."""
    gpus_per_node: int = 0
    cpus_per_task: int = 1
    """CPUs of each process."""
    mem_gb: float | None = None
    """Memory of each node."""
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    gres: str | None = None
    """Generic resources of each node, where `gpus_per_node` does not say it: ``gpu:h100:4``."""
    exclusive: bool = False
    """Whether nodes are shared with no other job."""
    setup: list[str] = field(default_factory=list)
    """Shell lines run before the job: module loads, exports."""
    container: str | None = None
    """Command that runs another in a container: ``apptainer exec --nv /images/rl.sif``."""
    python: str | None = None
    """Python of the jobs, such as a container's own; null: the one that launches."""
    srun: list[str] = field(default_factory=list)
    """Further options of srun, each a word: ``--container-image=nvcr.io/nvidia/pytorch``."""
    extra: dict[str, Any] = field(default_factory=dict)
    """Further sbatch options by their long names (``reservation: friday``)."""

    @property
    def tasks_per_node(self) -> int:
        """Processes of a run on each node."""
        return self.processes or self.gpus_per_node or 1

    def __post_init__(self) -> None:
        if self.kind not in CLUSTERS:
            raise ConfigError("cluster.kind", self.kind, " | ".join(CLUSTERS))
        for name in POSITIVE:
            _positive(f"cluster.{name}", getattr(self, name))
        for name in ("gpus_per_node", "retries"):
            if getattr(self, name) < 0:
                raise ConfigError(f"cluster.{name}", getattr(self, name), "a number >= 0")
        if self.signal_delay_s >= 60 * self.time_min:
            allowed = f"less than cluster.time_min = {self.time_min} min"
            raise ConfigError("cluster.signal_delay_s", self.signal_delay_s, allowed)
        if self.kind == "local" and (self.processes or 1) > 1:
            raise ConfigError("cluster.processes", self.processes, "1, where cluster.kind is local")
        self._check_words()

    def _check_words(self) -> None:
        """A line break would end a line of the batch script, and begin one of its own."""
        given = {name: getattr(self, name) for name in WORDS}
        given.update({f"extra.{key}": value for key, value in self.extra.items()})
        given.update({f"srun[{place}]": word for place, word in enumerate(self.srun)})
        for name, value in given.items():
            if isinstance(value, str) and not value.isprintable():
                raise ConfigError(f"cluster.{name}", value, "printable characters, on one line")
        try:
            shlex.split(self.container or "")
        except ValueError as error:
            raise ConfigError("cluster.container", self.container, f"a command ({error})") from None
        for key, value in self.extra.items():
            if key.replace("-", "_") in OURS or not re.fullmatch(r"[a-z][a-z0-9_-]*", key):
                allowed = f"long names of sbatch options but {', '.join(OURS)}"
                raise ConfigError("cluster.extra", key, allowed)
            if not isinstance(value, str | int | float):
                raise ConfigError(f"cluster.extra.{key}", value, "a word, a number or true")


@dataclass
class Tracking:
    """Where MLflow keeps the curves."""

    uri: str | None = None
    """An MLflow tracking address; null: a SQLite file, ``mlflow.db``, under `Settings.root`."""
    experiment: str = "shortlist"

    def __post_init__(self) -> None:
        """A password in the address goes to the environment, and so nowhere else."""
        if self.uri is None:
            return
        self.uri = withheld(self.uri)
        if shown(self.uri) != self.uri and WITH_PASSWORD.search(self.uri):
            raise ConfigError("tracking.uri", shown(self.uri), "an address without a password")


@dataclass
class Settings(RunConfig):
    """A resolved configuration: one run, and where it goes. Mirrors ``conf/config.yaml``."""

    root: str = "outputs"
    """Folder of runs, sweeps, snapshots and the default store; on a cluster, seen by all nodes."""
    cluster: Cluster = field(default_factory=Cluster)
    tracking: Tracking = field(default_factory=Tracking)

    def __post_init__(self) -> None:
        """What is in a configuration gets into many files; see `pipelines.redact`."""
        super().__post_init__()
        if redacted(text := repr(self)) != text:
            for name, value in secrets_in(asdict(self)):
                allowed = "no secrets: jobs inherit the environment of who launches them"
                raise ConfigError(name, value, allowed)


@dataclass
class Race:
    """When a race judges the runs, and whom it stops (`analysis.racing`)."""

    rungs: list[float] = field(default_factory=lambda: list(RUNGS))
    """Shares of the budget at which the runs still in are judged, ascending; the last is 1. The
    first should see a dozen evaluations: before that, chances say little (docs/notes.md)."""
    threshold: float = 0.045
    """A recipe less likely than this to be the best, or within `margin` of it, is stopped."""
    together: int | None = 3
    """Recipes that go on to their next rung at the same time, the likeliest; null: all still in."""
    margin: float = 0.0

    def __post_init__(self) -> None:
        steps = self.rungs
        if not steps or steps[-1] != 1 or steps[0] <= 0 or steps != sorted(set(steps)):
            raise ConfigError("sweep.race.rungs", steps, "ascending shares of the budget, up to 1")
        if not 0 < self.threshold < 1:
            raise ConfigError("sweep.race.threshold", self.threshold, "between 0 and 1")
        if self.together is not None:
            _positive("sweep.race.together", self.together)
        if self.margin < 0:
            raise ConfigError("sweep.race.margin", self.margin, "a number >= 0")


@dataclass
class Search:
    """How far an adaptive sweep goes, and what it looks for (`pipelines.search`)."""

    trials: int = 20
    """Recipes asked for, in all."""
    objective: str = "forecast"
    """``forecast``: at `Sweep.target`, or the ceiling A; ``A_and_B``: both, as a Pareto front."""

    def __post_init__(self) -> None:
        _positive("sweep.search.trials", self.trials)
        if self.objective not in OBJECTIVES:
            raise ConfigError("sweep.search.objective", self.objective, " | ".join(OBJECTIVES))


@dataclass
class Sweep:
    """A named set of runs and the strategy that generates them: a file in ``conf/sweep/``."""

    strategy: str = "grid"
    """``grid``: the product of the axes; ``one_at_a_time``: the base, and each alternative alone;
    ``leave_one_out``: the base, and each axis put back to the choice given; ``adaptive``: the base,
    then combinations that Optuna proposes from what the runs so far have shown."""
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
    metric: str = PASS_RATE
    """The pass rate they are judged by, or the part of a mixture that it is of."""
    target: float | None = None
    """Compute, on that axis, at which a race and a search forecast; null: they go by ceilings."""
    when: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Axis to a condition (axis: choice, or list of choices) without which it is not varied."""
    max_gpu_hours: float | None = None
    """What all runs together may spend, at most."""
    race: Race = field(default_factory=Race)
    search: Search = field(default_factory=Search)

    def __post_init__(self) -> None:
        self.metric = metric_name(self.metric)
        if self.strategy not in STRATEGIES:
            raise ConfigError("sweep.strategy", self.strategy, " | ".join(STRATEGIES))
        if not self.axes:
            raise ConfigError(
                "sweep.axes", self.axes, f"at least one of {', '.join(AXES)}, or a key"
            )
        if self.compute not in COMPUTE_AXES:
            raise ConfigError("sweep.compute", self.compute, " | ".join(COMPUTE_AXES))
        _positive("sweep.target", self.target)
        _positive("sweep.max_gpu_hours", self.max_gpu_hours)
        if not set(self.when) <= set(self.axes):
            raise ConfigError("sweep.when", sorted(set(self.when) - set(self.axes)), "its axes")
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise ConfigError("sweep.seeds", self.seeds, "one or more different whole numbers")
        for axis, choices in self.axes.items():
            if choices is not None and not choices:
                raise ConfigError(f"sweep.axes.{axis}", choices, "a list of at least one choice")
