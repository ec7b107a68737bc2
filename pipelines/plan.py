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

from pipelines.compose import GROUPS, Base, Composer, changed, parse, schema
from pipelines.config import Settings, Sweep
from pipelines.errors import UserError
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
    of_sweep = [item for item in overrides if item.lstrip("+~").startswith("sweep.")]
    of_run = [item for item in overrides if item not in of_sweep]
    sweep = composer.sweep(name, of_sweep)
    expander = _Expander(composer, sweep, [*sweep.set, *of_run])
    pairs = itertools.product(expander.combinations, sweep.seeds)
    runs = _unique(expander.run(combination, seed) for combination, seed in pairs)
    if not runs:
        raise UserError(
            f"sweep.where, sweep.exclude: leave no run of {name!r}, allowed: at least one"
        )
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


class _Expander:
    """Expands one sweep over one set of overrides."""

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
        self.combinations = [combo for combo in self._expand() if self._kept(combo)]

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
        return " ".join(f"{axis}={_text(choice)}" for axis, choice in combination.items()) or "base"

    def _base_of(self, combination: Combination) -> Base:
        recipe = str(combination.get("recipe", self.base.choices["recipe"]))
        if recipe not in self._bases:
            others = [item for item in self._overrides if not item.startswith("recipe=")]
            self._bases[recipe] = self._composer.base([*others, f"recipe={recipe}"])
        return self._bases[recipe]

    def _expand(self) -> Iterator[Combination]:
        options = {axis: self._options(axis) for axis in self._sweep.axes}
        if self._sweep.strategy == "grid":
            for product in itertools.product(*options.values()):
                yield {key: value for part in product for key, value in part.items()}
            return
        base = self.choices({}, self.base)
        yield {}
        for parts in options.values():
            for part in parts:
                if any(_text(value) != base[key] for key, value in part.items()):
                    yield part

    def _options(self, axis: str) -> list[Combination]:
        """The choices of one axis, or of several that move together."""
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
        if self._sweep.strategy != "grid":
            return
        given = {str(item.key_or_group) for item in parse(self._overrides)} & set(self._keys)
        if given:
            key = sorted(given)[0]
            allowed = f"sweep.axes.{key}=[...], since the sweep varies it"
            raise ConfigError(key, "an override of an axis of the grid", allowed)

    def _kept(self, combination: Combination) -> bool:
        # Conditions are about what differs from the base, so the base itself always stays.
        if not combination and self._sweep.strategy != "grid":
            return True
        choices = self.choices(combination, self._base_of(combination))
        sweep = self._sweep
        for condition in [*sweep.where, *sweep.exclude]:
            unknown = set(condition) - set(choices)
            if unknown:
                allowed = " | ".join(choices)
                raise ConfigError("sweep.where, sweep.exclude", sorted(unknown)[0], allowed)
        wanted = not sweep.where or any(_matches(choices, item) for item in sweep.where)
        return wanted and not any(_matches(choices, item) for item in sweep.exclude)


def _matches(choices: Mapping[str, str], condition: Mapping[str, Any]) -> bool:
    def allowed(wanted: object) -> set[str]:
        return {_text(item) for item in (wanted if isinstance(wanted, list) else [wanted])}

    return all(choices[axis] in allowed(wanted) for axis, wanted in condition.items())


def _text(choice: object) -> str:
    """A choice as it is shown and compared: YAML's 1e-4 and 0.0001 are one choice."""
    if isinstance(choice, DictConfig) or choice is None:
        return "null" if choice is None else str(OmegaConf.to_container(choice))
    return str(choice)


def _unique(runs: Iterable[PlannedRun]) -> list[PlannedRun]:
    """The first of each identity, so that one run reached two ways is trained once."""
    return list({run.run_id: run for run in reversed(list(runs))}.values())[::-1]
