"""From a sweep to its runs: pure, validated, and without anything heavy imported."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from pipelines import own_code
from pipelines.compose import GROUPS, Base, Composer, changed, parse, schema
from pipelines.config import PASS_RATE, Race, Search, Settings, Sweep, metric_name
from pipelines.errors import UserError
from pipelines.ledger import component
from recipes.config import AXES, ConfigError, RunConfig, identity

SWEPT_GROUPS = (*AXES, "recipe")
Combination = dict[str, Any]
"""Axis or key to choice, for the axes that differ from the base."""


@dataclass(frozen=True)
class PlannedRun:
    """One run a sweep asks for."""

    run_id: str
    """First 12 hex digits of the SHA-256 of what is trained (`run_id_of`)."""
    label: str
    """What tells it from the others of its sweep, seed left out: ``loss=cispo``, or ``base``."""
    choices: dict[str, str]
    """The choice on every axis, and the value of every key the sweep varies."""
    seed: int
    config: RunConfig
    resolved: dict[str, Any]
    """The run's part of the resolved configuration, as plain data."""


@dataclass(frozen=True)
class Plan:
    """A sweep's runs, and where they go."""

    sweep: str
    strategy: str
    compute: str
    """Compute axis the curves are judged on."""
    base: dict[str, str]
    """The base recipe's choices, on every axis and every varied key."""
    varied: list[str]
    """Axes and keys that differ between runs, joined by commas where they move together."""
    runs: list[PlannedRun]
    settings: Settings
    overrides: list[str]
    config_dirs: list[str] = field(default_factory=list)
    metric: str = PASS_RATE
    """Pass rate the curves are judged by."""
    target: float | None = None
    """Compute on `compute` to forecast at."""
    max_gpu_hours: float | None = None
    race: Race = field(default_factory=Race)
    search: Search = field(default_factory=Search)
    space: Space | None = None
    """What an adaptive sweep chooses from; its `runs` are those asked for so far."""

    def rows(self) -> list[dict[str, Any]]:
        """The runs as a manifest keeps them."""
        return [
            {
                "run_id": run.run_id,
                "label": run.label,
                "choices": run.choices,
                "seed": run.seed,
                "budget": run.resolved["budget"],
            }
            for run in self.runs
        ]


def plan(name: str, overrides: Sequence[str] = (), config_dirs: Sequence[Path] = ()) -> Plan:
    """The runs of sweep `name` under Hydra `overrides` (those of ``sweep.`` change the sweep).

    Raises:
        UserError: An unknown sweep, axis, choice or key.
        ConfigError: A value that TRL or the schema refuses.
    """
    composer = Composer(config_dirs)
    component("sweep", name)  # it will be a folder
    of_sweep = [item for item in overrides if item.lstrip("+~").startswith("sweep.")]
    of_run = [item for item in overrides if item not in of_sweep]
    sweep = composer.sweep(name, of_sweep)
    expander = Space(composer, sweep, [*sweep.set, *of_run])
    pairs = itertools.product(expander.combinations, sweep.seeds)
    runs = _unique(expander.run(combination, seed) for combination, seed in pairs)
    if not runs:
        raise UserError(
            f"sweep.where, sweep.exclude: leave no run of {name!r}, allowed: at least one"
        )
    parts = {part for run in runs for part in run.config.task.parts}
    metrics = [PASS_RATE, *map(metric_name, sorted(parts))]
    if sweep.metric not in metrics:
        raise ConfigError("sweep.metric", sweep.metric, " | ".join(metrics))
    own_code.find((run.config for run in runs), config_dirs)
    return Plan(
        sweep=name,
        strategy=sweep.strategy,
        compute=sweep.compute,
        base=expander.choices({}, expander.base),
        varied=list(sweep.axes),
        runs=runs,
        settings=expander.settings,
        overrides=list(overrides),
        config_dirs=[str(folder) for folder in config_dirs],
        metric=sweep.metric,
        target=sweep.target,
        max_gpu_hours=sweep.max_gpu_hours,
        race=sweep.race,
        search=sweep.search,
        space=expander if sweep.strategy == "adaptive" else None,
    )


def single(
    overrides: Sequence[str] = (), config_dirs: Sequence[Path] = ()
) -> tuple[PlannedRun, Settings]:
    """The one run that `overrides` describe, and its whole resolved configuration."""
    base = Composer(config_dirs).base(overrides)
    settings = schema(Settings, base.config)
    choices = {axis: base.choices[axis] for axis in AXES}
    return _planned(settings, "base", choices), settings


def run_id_of(resolved: Mapping[str, Any]) -> str:
    """First 12 hex digits of SHA-256 over canonical JSON of what decides the training."""
    text = json.dumps(identity(dict(resolved)), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _planned(settings: Settings, label: str, choices: dict[str, str]) -> PlannedRun:
    names = [item.name for item in fields(RunConfig)]
    config = RunConfig(**{name: getattr(settings, name) for name in names})
    resolved = asdict(config)
    return PlannedRun(run_id_of(resolved), label, choices, config.seed, config, resolved)


class Space:
    """What one sweep varies, over one base, and the runs that come of it."""

    def __init__(self, composer: Composer, sweep: Sweep, overrides: list[str]) -> None:
        self._composer, self._sweep, self._overrides = composer, sweep, overrides
        self._values = {
            str(item.key_or_group).lstrip("+"): item.value()
            for item in parse(overrides)
            if str(item.key_or_group) not in GROUPS
        }
        self._bases: dict[str, Base] = {}
        self.base = composer.base(overrides)
        self._bases[self.base.choices["recipe"]] = self.base
        self.settings = schema(Settings, self.base.config)
        self._keys = [key for axis in sweep.axes for key in axis.split(",")]
        self._check_axes()
        self.seeds, self.conditional = list(sweep.seeds), set(sweep.when)
        self.options = {axis: self._options(axis) for axis in sweep.axes}
        """Axis to the combinations that its choices are."""
        self.combinations = [combo for combo in self._expand() if self.kept(combo)]

    def run(self, combination: Combination, seed: int) -> PlannedRun:
        """The run that a combination of choices and a seed stand for."""
        base = self._base_of(combination)
        nodes = {
            axis: self._composer.choice(axis, str(choice))
            for axis, choice in combination.items()
            if axis in AXES
        }
        kept = {key: value for key, value in self._values.items() if key.partition(".")[0] in nodes}
        keys = {key: value for key, value in combination.items() if key not in SWEPT_GROUPS}
        settings = changed(base, nodes, {**kept, **keys, "seed": seed})
        return _planned(settings, self._label(combination), self.choices(combination, base))

    def choices(self, combination: Combination, base: Base) -> dict[str, str]:
        """The choice on every axis and on every key that the sweep varies."""
        named = {axis: base.choices[axis] for axis in AXES}
        if "recipe" in self._keys:
            named["recipe"] = base.choices["recipe"]
        for key in self._keys:
            if key not in SWEPT_GROUPS:
                named[key] = _text(OmegaConf.select(base.config, key))
        return {**named, **{axis: _text(choice) for axis, choice in combination.items()}}

    def _label(self, combination: Combination) -> str:
        if self._sweep.strategy == "adaptive" and not combination:  # told as proposals are
            combination = self.combine(self.parts(self.choices({}, self.base)) or {})
        if self._sweep.strategy == "adaptive":  # the base by its choices, as what is proposed
            base = self.parts(self.choices({}, self.base)) or {}
            combination = combination or self.combine(base)
        return " ".join(f"{axis}={_text(choice)}" for axis, choice in combination.items()) or "base"

    def _base_of(self, combination: Combination) -> Base:
        recipe = str(combination.get("recipe", self.base.choices["recipe"]))
        if recipe not in self._bases:
            others = [item for item in self._overrides if not item.startswith("recipe=")]
            self._bases[recipe] = self._composer.base([*others, f"recipe={recipe}"])
        return self._bases[recipe]

    def varies(self, axis: str, parts: Mapping[str, Combination]) -> bool:
        """Whether `axis` is varied where the other axes are at `parts`."""
        condition = self._sweep.when.get(axis)
        if condition is None:
            return True
        others = _joined(part for other, part in parts.items() if other != axis)
        return _matches(self.choices(others, self._base_of(others)), condition)

    def combine(self, parts: Mapping[str, Combination]) -> Combination:
        """A choice on each axis as one combination, without the axes that are not varied there."""
        return _joined(part for axis, part in parts.items() if self.varies(axis, parts))

    def parts(self, choices: Mapping[str, str]) -> dict[str, Combination] | None:
        """The options, on the axes varied there, that a run's `choices` are; None outside."""
        found = {
            axis: part
            for axis, options in self.options.items()
            for part in options
            if all(choices.get(key) == _text(value) for key, value in part.items())
        }
        found = {axis: part for axis, part in found.items() if self.varies(axis, found)}
        needed = [axis for axis in self.options if self.varies(axis, found)]
        return found if all(axis in found for axis in needed) else None

    def _expand(self) -> Iterator[Combination]:
        if self._sweep.strategy == "grid":
            for product in itertools.product(*self.options.values()):
                yield self.combine(dict(zip(self.options, product, strict=True)))
            return
        yield {}
        if self._sweep.strategy == "adaptive":
            return
        base = self.choices({}, self.base)
        for axis, parts in self.options.items():
            for part in parts:
                changes = any(_text(value) != base[key] for key, value in part.items())
                if changes and self.varies(axis, {axis: part}):
                    yield part

    def _options(self, axis: str) -> list[Combination]:
        """The choices of one axis, or of several that move together."""
        found = self._listed(axis)
        if self._sweep.strategy == "adaptive":  # the base is one of what there is to choose from
            choices = self.choices({}, self.base)
            base = {key: choices[key] for key in axis.split(",")}
            known = [{key: _text(value) for key, value in part.items()} for part in found]
            return found if base in known else [base, *found]
        return found

    def _listed(self, axis: str) -> list[Combination]:
        keys = axis.split(",")
        choices = self._sweep.axes[axis]
        if choices is None:
            reference = self._composer.base([f"recipe={self._sweep.reference}"])
            return [{axis: reference.choices[axis]}]
        if len(keys) == 1:
            return [{axis: choice} for choice in choices]
        for choice in choices:
            if not isinstance(choice, list) or len(choice) != len(keys):
                allowed = f"lists of {len(keys)} choices, one each for {', '.join(keys)}"
                raise ConfigError(f"sweep.axes.{axis}", choice, allowed)
        return [dict(zip(keys, choice, strict=True)) for choice in choices]

    def _check_axes(self) -> None:
        repeated = {key for key in self._keys if self._keys.count(key) > 1}
        if repeated:
            raise ConfigError("sweep.axes", sorted(repeated), "each axis once")
        for key in self._keys:
            axis, dot, _ = key.partition(".")
            if key not in SWEPT_GROUPS and not (dot and axis in AXES):
                allowed = f"{' | '.join(SWEPT_GROUPS)}, or a key of one, such as optimizer.lr"
                raise ConfigError("sweep.axes", key, allowed)
        if "seed" in self._values:
            raise ConfigError("seed", self._values["seed"], "sweep.seeds=[...], in a sweep")
        for axis, choices in self._sweep.axes.items():
            if choices is None and axis not in AXES:
                raise ConfigError(f"sweep.axes.{axis}", None, "a list of choices")
        self._check_conditions()
        if self._sweep.strategy != "grid":
            return
        given = {str(item.key_or_group) for item in parse(self._overrides)} & set(self._keys)
        if given:
            key = sorted(given)[0]
            allowed = f"sweep.axes.{key}=[...], since the sweep varies it"
            raise ConfigError(key, "an override of an axis of the grid", allowed)

    def _check_conditions(self) -> None:
        sweep, known = self._sweep, self.choices({}, self.base)
        fields = {"sweep.where, sweep.exclude": [*sweep.where, *sweep.exclude]}
        for named, conditions in {**fields, "sweep.when": [*sweep.when.values()]}.items():
            unknown = sorted({key for condition in conditions for key in condition} - set(known))
            if unknown:
                raise ConfigError(named, unknown[0], " | ".join(known))

    def kept(self, combination: Combination) -> bool:
        """Whether `where` and `exclude` keep it."""
        # Conditions are about what differs from the base, so the base itself always stays.
        if not combination and self._sweep.strategy != "grid":
            return True
        choices = self.choices(combination, self._base_of(combination))
        sweep = self._sweep
        wanted = not sweep.where or any(_matches(choices, item) for item in sweep.where)
        return wanted and not any(_matches(choices, item) for item in sweep.exclude)


def _matches(choices: Mapping[str, str], condition: Mapping[str, Any]) -> bool:
    def allowed(wanted: object) -> set[str]:
        return {_text(item) for item in (wanted if isinstance(wanted, list) else [wanted])}

    return all(choices[axis] in allowed(wanted) for axis, wanted in condition.items())


def _joined(parts: Iterable[Combination]) -> Combination:
    return {key: value for part in parts for key, value in part.items()}


def _text(choice: object) -> str:
    """A choice as it is shown and compared: YAML's 1e-4 and 0.0001 are one choice."""
    if isinstance(choice, DictConfig) or choice is None:
        return "null" if choice is None else str(OmegaConf.to_container(choice))
    return str(choice)


def _unique(runs: Iterable[PlannedRun]) -> list[PlannedRun]:
    """The first of each identity, so that one run reached two ways is trained once."""
    return list({run.run_id: run for run in reversed(list(runs))}.values())[::-1]
