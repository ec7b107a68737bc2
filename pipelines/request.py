"""What is to be promoted and to what, as a command line says it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from analysis.ranking import Options
from pipelines.compose import parse, quoted
from pipelines.config import metric_name
from pipelines.display import program
from pipelines.errors import UserError
from pipelines.files import Record
from pipelines.ledger import Ledger, PromotionFiles
from pipelines.manifest import manifest_of
from pipelines.plan import Plan, plan, single
from pipelines.rank import DEFAULT_ROOT, metric_of
from pipelines.winner import Winner, winner_of
from recipes.config import RunConfig

INHERITED = ("cluster", "tracking", "execution")
"""Overrides of a sweep that hold for its promotion too, unless given anew."""


@dataclass(frozen=True)
class Request:
    """What is to be promoted, and to what."""

    ledger: Ledger
    sweep: str
    name: str
    settings: list[str]
    """Hydra overrides that the large run is given beside its recipe."""
    seed: int | None
    """None: that of the winner, whose run then goes on."""
    config_dirs: list[Path]
    options: Options
    force: bool = False
    metric: str | None = None
    """Pass rate to judge by; None: the sweep's."""

    @property
    def files(self) -> PromotionFiles:
        """Where it is written."""
        return self.ledger.promotion(self.name)

    @property
    def next_command(self) -> str:
        """How its run is held against the forecast."""
        default = self.ledger.root == Path(DEFAULT_ROOT).absolute()
        root = [] if default else ["--root", str(self.ledger.root)]
        return shlex.join([program(), "verify", self.name, *root])

    def planned(self, folder: Path) -> Plan:
        """The sweep of its name in `folder`, as a plan."""
        dirs = [item for item in self.config_dirs if item.absolute() != self.files.folder]
        return plan(self.name, [f"root={quoted(str(self.ledger.root))}"], [*dirs, folder])

    @property
    def large(self) -> RunConfig:
        """A run with the target's budget, whatever its recipe."""
        return single(self.settings, self.config_dirs)[1]

    @property
    def manifest(self) -> Record:
        """Of its sweep."""
        return manifest_of(self.ledger, self.sweep)

    @property
    def judged_by(self) -> Record:
        """The compute axis and the pass rate, as a sweep names them."""
        manifest = self.manifest
        return {"compute": manifest["compute"], "metric": metric_of(manifest, self.metric)}

    def winner(self) -> Winner:
        """Of its sweep, see `winner_of`."""
        return winner_of(self.ledger, self.manifest, self.large, self.options, self.metric)


def ask(
    ledger: Ledger,
    sweep: str,
    overrides: Sequence[str],
    config_dirs: Sequence[Path],
    options: Options,
    name: str | None = None,
    *,
    force: bool = False,
    metric: str | None = None,
) -> Request:
    """The request that a command line stands for.

    Where runs go and how they are tracked is the sweep's, and the budget ``large``, unless
    `overrides` say otherwise.

    Raises:
        UserError: No such sweep, overrides outside the grammar, or a name that is taken.
    """
    manifest = manifest_of(ledger, sweep)
    name = name or f"{sweep.replace('/', '-')}-promoted"
    if not re.fullmatch(r"\w[\w.-]*", name):
        raise UserError(f"--name: got {name!r}, allowed: letters, digits, '.', '_' and '-'")
    files_of = ledger.promotion(name)
    if ledger.sweep(name).manifest() is not None and not files_of.evidence.exists():
        raise UserError(f"--name: got {name!r}, allowed: another than that of a sweep")
    given = {key_of(item) for item in overrides}
    groups = {_group(key) for key in given}
    inherited = [
        item
        for item in manifest["overrides"]
        if (group := _group(key_of(item))) in INHERITED and group not in groups
    ]
    budget = [] if "budget" in given else ["budget=large"]
    rest = [item for item in overrides if key_of(item) not in ("seed", "root")]
    dirs = [Path(item) for item in manifest.get("config_dirs", [])]
    return Request(
        ledger,
        sweep,
        name,
        [*budget, *inherited, *rest],
        _seed(overrides),
        list(dict.fromkeys([*dirs, *config_dirs])),
        options,
        force,
        metric and metric_name(metric),
    )


def root_of(overrides: Sequence[str]) -> str:
    """The root that `overrides` name, or the default one."""
    return str(_last("root", overrides, DEFAULT_ROOT))


def _seed(overrides: Sequence[str]) -> int | None:
    seed = _last("seed", overrides)
    if not isinstance(seed, int | None):
        raise UserError(f"seed: got {seed!r}, allowed: a whole number")
    return seed


def _last(key: str, overrides: Sequence[str], otherwise: object = None) -> object:
    values = [item.value() for item in parse(overrides) if item.key_or_group == key]
    return values[-1] if values else otherwise


def key_of(override: str) -> str:
    """The group or key that an override is of."""
    return str(parse([override])[0].key_or_group)


def _group(key: str) -> str:
    return key.partition(".")[0]
