"""Hydra, composed once per base and once per choice, then merged with OmegaConf.

Composing every run through Hydra would cost about 0.2 s a run; a merge costs milliseconds.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, flag_override, open_dict
from omegaconf.errors import OmegaConfBaseException

from pipelines.config import Settings, Sweep
from pipelines.errors import UserError
from recipes.config import AXES, ConfigError

CONF = Path(__file__).resolve().parents[1] / "conf"
GROUPS = (*AXES, "recipe", "budget", "cluster", "tracking")
AXIS_TYPES = {axis: get_type_hints(Settings)[axis] for axis in AXES}
Schema = TypeVar("Schema", Settings, Sweep)

# Named in conf/config.yaml: under a schema every field exists and is typed, whatever files omit.
ConfigStore.instance().store(name="schema", node=Settings)


@dataclass(frozen=True)
class Base:
    """A composed configuration, and the option that each group was composed from."""

    config: DictConfig
    choices: dict[str, str]


class Composer:
    """Composes configurations from ``conf/`` and from the user's own folders, with a cache."""

    def __init__(self, config_dirs: Sequence[Path] = ()) -> None:
        for folder in config_dirs:
            if not folder.is_dir():
                raise UserError(f"--config-dir: got {str(folder)!r}, allowed: an existing folder")
        _no_clash([CONF, *config_dirs])
        found = ",".join(quoted(f"file://{folder.resolve()}") for folder in config_dirs)
        self._searchpath = [f"hydra.searchpath=[{found}]"] if found else []
        self._choices: dict[tuple[str, str], DictConfig] = {}

    def base(self, overrides: Sequence[str]) -> Base:
        """The configuration of one run under `overrides`, Hydra's own grammar.

        Raises:
            UserError: An override that does not parse, or names an unknown key or option.
        """
        self._check(overrides)
        config = self._compose("config", overrides)
        choices = {group: str(config.hydra.runtime.choices[group]) for group in GROUPS}
        with open_dict(config):
            del config["hydra"]
        return Base(config, choices)

    def choice(self, group: str, option: str) -> DictConfig:
        """The content of one option of an axis, composed once; the schema gives what it omits."""
        key = (group, option)
        if key not in self._choices:
            self._known(group, option)
            content = self._content(group, option)
            with _hydra_errors(f"{group}."):
                typed = OmegaConf.structured(AXIS_TYPES[group])
                node = OmegaConf.merge(typed, content)
            assert isinstance(node, DictConfig)
            self._choices[key] = node
        return self._choices[key]

    def sweep(self, name: str, overrides: Sequence[str]) -> Sweep:
        """The sweep `name`, under the overrides that begin with ``sweep.``."""
        self._known("sweep", name)
        parse(overrides)
        content = self._content("sweep", name, *(f"++{item.lstrip('+')}" for item in overrides))
        return schema(Sweep, content, prefix="sweep.")

    def options(self, group: str) -> list[str]:
        """The options of a group, by name."""
        with self._hydra():
            loader = GlobalHydra.instance().config_loader()
            found = loader.get_group_options(group, config_name=None, overrides=self._searchpath)
        return list(found)

    def _known(self, group: str, option: str) -> None:
        options = self.options(group)
        if option not in options:
            allowed = " | ".join(options)
            raise UserError(f"{group}: got {option!r}, allowed: {allowed}")

    def _check(self, overrides: Sequence[str]) -> None:
        for override in parse(overrides):
            name, given = str(override.key_or_group), override.input_line
            if override.is_sweep_override():
                raise UserError(
                    f"{name}: got {given!r}, allowed: one value (choices go in a sweep)"
                )
            if override.is_delete():
                raise UserError(f"{name}: got {given!r}, allowed: {name}=value")
            if name in GROUPS:
                self._known(name, str(override.value()))

    def _content(self, group: str, option: str, *overrides: str) -> DictConfig:
        config = self._compose(None, [f"+{group}={quoted(option)}", *overrides])
        content = config.get(group)
        if not isinstance(content, DictConfig):
            allowed = "keys of its own, and no '# @package' line"
            raise UserError(f"{group}/{option}.yaml: defines no {group}, allowed: {allowed}")
        return content

    def _compose(self, name: str | None, overrides: Sequence[str]) -> DictConfig:
        with self._hydra():
            return compose(name, [*self._searchpath, *overrides], return_hydra_config=True)

    @contextmanager
    def _hydra(self) -> Iterator[None]:
        with _hydra_errors(), initialize_config_dir(str(CONF), version_base="1.3"):
            yield


def parse(overrides: Sequence[str]) -> list[Override]:
    """Command-line overrides, parsed by Hydra's own grammar.

    Raises:
        UserError: An override outside the grammar.
    """
    parser = OverridesParser.create()
    parsed = []
    for text in overrides:
        if not isinstance(text, str):
            raise UserError(f"sweep.set: got {text!r}, allowed: texts such as 'loss=cispo'")
        try:
            parsed.append(parser.parse_override(text))
        except HydraException as error:
            raise UserError(
                f"override: got {text!r}, allowed: key=value, as Hydra reads it"
            ) from error
    return parsed


def changed(base: Base, nodes: dict[str, DictConfig], values: dict[str, Any]) -> Settings:
    """`base` with whole groups replaced by `nodes`, then single keys set to `values`.

    A base is typed already, so that nothing is merged with the schema; and only what changes is
    copied: it is set in the base itself, and then put back.

    Raises:
        UserError, ConfigError: As `schema`.
    """
    config = base.config
    touched = {*nodes, *(key.partition(".")[0] for key in values)} & {str(key) for key in config}
    before = {key: copy.deepcopy(config[key]) for key in touched}
    with _hydra_errors(), open_dict(config):
        try:
            for group, node in nodes.items():
                config[group] = node  # which copies it
            for key, value in values.items():
                _set(config, key, value)
            settings = OmegaConf.to_object(config)
        finally:
            with flag_override(config, "no_deepcopy_set_nodes", True):
                for key, value in before.items():
                    config[key] = value
    assert isinstance(settings, Settings)
    return settings


def _set(config: DictConfig, key: str, value: Any) -> None:  # noqa: ANN401
    if OmegaConf.select(config, key, default=...) is ...:
        parent = OmegaConf.select(config, key.rpartition(".")[0], default=None)
        known = parent if isinstance(parent, DictConfig) else config
        raise UserError(f"{key}: no such key, allowed: {' | '.join(map(str, known))}")
    OmegaConf.update(config, key, value)


def schema(kind: type[Schema], config: DictConfig, prefix: str = "") -> Schema:
    """`config` as the typed dataclass `kind`.

    Raises:
        UserError: A key that the schema lacks, or a value of another type.
        ConfigError: A value that the schema's own checks refuse.
    """
    with _hydra_errors(prefix):
        plain = OmegaConf.to_container(config, resolve=True)
        result = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(kind), plain))
    assert isinstance(result, kind)
    return result


def _no_clash(folders: Sequence[Path]) -> None:
    """Refuses two different files of one name: Hydra would take the first without a word."""
    seen: dict[Path, Path] = {}
    for folder in folders:
        for path in (
            item for group in (*GROUPS, "sweep") for item in folder.glob(f"{group}/*.yaml")
        ):
            name = path.relative_to(folder)
            first = seen.setdefault(name, path)
            if first.read_bytes() != path.read_bytes():
                raise UserError(
                    f"--config-dir: {path}: got the name of {first}, allowed: another name"
                )


def quoted(text: str) -> str:
    """`text` as Hydra's grammar takes any text."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _one_line(error: OmegaConfBaseException, prefix: str = "") -> str:
    """OmegaConf's messages run over several lines; a person gets the key and the reason."""
    key = (error.full_key or "").removeprefix(prefix)
    key = f"{prefix}{key}".rstrip(".") or "configuration"
    if isinstance(error, KeyError | AttributeError):
        kind = error.object_type
        typed = [item.name for item in fields(kind)] if kind and is_dataclass(kind) else []
        names = typed or [f"+{key}=value"]
        return f"{key}: no such key, allowed: {' | '.join(names)}"
    reason = str(error.msg or error).splitlines()[0]
    mistyped = re.match(r"Value (.*) of type .* could not be converted to (\w+)", reason)
    if mistyped:
        words = {"Integer": "a whole number", "Float": "a number", "Boolean": "true | false"}
        given, wanted = mistyped.groups()
        return f"{key}: got {given}, allowed: {words.get(wanted, wanted)}"
    return f"{key}: {reason}"


@contextmanager
def _hydra_errors(prefix: str = "") -> Iterator[None]:
    """Tells in one line, as a `UserError`, what is wrong with a configuration or its file."""
    try:
        yield
    except ConfigError:
        raise
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None) or getattr(error, "start_mark", None)
        where = f"{mark.name}, line {mark.line + 1}" if mark else "configuration"
        reason = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise UserError(f"{where}: not YAML: {reason}") from error
    except (HydraException, OmegaConfBaseException) as error:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, OmegaConfBaseException):
            cause = cause.__cause__
        if cause is not None:
            raise UserError(_one_line(cause, prefix)) from error
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise UserError("; ".join(lines[:2])) from error
    except (ValueError, OSError, RecursionError, OverflowError) as error:
        reason = str(error).splitlines()[0][:200]
        raise UserError(f"{prefix.rstrip('.') or 'configuration'}: {reason}") from error
