"""A promoted run held against its forecast, as its points arrive."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from analysis import report
from analysis.curves import Curve
from analysis.fits import Fit
from analysis.notation import amount, unit
from analysis.promise import WINDOW, Kept, Promise, keep
from analysis.ranking import Options, analyse
from pipelines import files
from pipelines.config import Tracking
from pipelines.display import note
from pipelines.errors import ServiceError, UserError
from pipelines.files import Record
from pipelines.ledger import Ledger
from pipelines.manifest import manifest_of
from pipelines.rank import curves_of
from pipelines.status import statuses


@dataclass(frozen=True)
class Verified:
    """How a promotion stands."""

    evidence: Record
    state: str
    """Of its run."""
    curve: Curve | None
    kept: Kept
    fit: Fit | None
    """Its own curve, refitted with all of its points."""
    page: Path

    @property
    def inside(self) -> bool:
        """Whether it kept to its forecast so far."""
        return self.kept.left is None

    def document(self) -> dict[str, Any]:
        """The JSON document of ``shortlist verify``."""
        kept, forecast, n = self.kept, self.evidence["forecast"], len(self.kept.mean)
        rows = zip(kept.compute, kept.low, kept.middle, kept.high, strict=True)
        return {
            "promotion": self.evidence["promotion"],
            "run_id": self.evidence["run_id"],
            "state": self.state,
            "inside": self.inside,
            "where": kept.where,
            "left_band_at": None if kept.left is None else float(kept.compute[kept.left]),
            "forecast": {
                key: forecast[key]
                for key in ("axis", "metric", "compute", "reward", "interval", "curve_interval")
                if key in forecast
            },
            "observed": None
            if n == 0
            else {
                "compute": float(kept.compute[n - 1]),
                "reward": float(kept.mean[-1]),
                "evaluations": n,
            },
            "refitted": self._refitted(),
            "changed": self.evidence["changed"],
            "notes": [] if self.fit is None else self.fit.notes,
            "band": [
                {"compute": c, "low": low, "middle": middle, "high": high}
                for c, low, middle, high in np.array(list(rows)).tolist()
            ],
        }

    def _refitted(self) -> dict[str, Any] | None:
        if self.fit is None or self.fit.draws is None:
            return None
        forecast = self.evidence["forecast"]
        promise = Promise([self.fit.draws], forecast["margin"], seen=self.fit.last_compute)
        there = promise.value(forecast["compute"], np.random.default_rng(0))
        return {"compute": forecast["compute"], "reward": there.middle, "interval": there.interval}

    def lines(self) -> list[str]:
        """The answer in a headline, and what it rests on, for a person."""
        document, axis = self.document(), self.evidence["forecast"]["axis"]
        seen, left, again = (document[key] for key in ("observed", "left_band_at", "refitted"))
        told = [
            f"Forecast: {_estimate(document['forecast'])} at {_place(document['forecast'], axis)}."
        ]
        told.append(f"The run is {self.state}.")
        if seen is None:
            return ["No evaluation yet that the forecast was not made from", *told]
        head = f"Keeps to its forecast so far, over {seen['evaluations']} evaluations"
        if left is not None:
            where = _place({"compute": left}, axis)
            head = f"Left the band of its forecast at {where}, {document['where']} it"
        mean = f"{seen['reward']:.3f} up to {_place(seen, axis)}"
        told.append(f"Observed: a mean of {mean}, over the last {WINDOW} evaluations.")
        if again is not None:
            told.append(f"Refitted with its own points: {_estimate(again)} there.")
        told += [] if self.fit is None else [f"{it}." for it in self.fit.health.problems]
        return [head, *told]


def _estimate(found: Record) -> str:
    low, high = found["interval"]
    return f"{found['reward']:.3f} ({low:.3f} to {high:.3f})"


def _place(found: Record, axis: str) -> str:
    return f"{amount(found['compute'])} {unit(axis)}"


def verify(ledger: Ledger, name: str) -> Verified:
    """Holds a promotion against its forecast; writes ``verify.json`` and ``verify.html``.

    Raises:
        UserError: Nothing of that name was promoted, or launched.
        ServiceError: What was written down is damaged.
    """
    evidence = files.read_json(ledger.promotion(name).evidence)
    if evidence is None:
        known = " | ".join(ledger.known_promotions()) or "none yet"
        raise UserError(f"promotion: got {name!r}, allowed in {ledger.root}: {known}")
    manifest, forecast = manifest_of(ledger, name), evidence["forecast"]
    curves = curves_of(ledger, manifest, forecast["axis"], metric=forecast.get("metric"))
    curve = next(iter(curves), None)
    (row,) = statuses(ledger, manifest["runs"])
    options = Options(
        at=forecast["compute"], margin=forecast["margin"], compute_axis=forecast["axis"]
    )
    fit = None if curve is None else analyse([curve], options).fits[0]
    page = ledger.sweep(name).folder / "verify.html"
    found = Verified(evidence, row.state, curve, _held(forecast, curve), fit, page)
    _write(ledger, name, manifest, found)
    return found


def _held(forecast: Record, curve: Curve | None) -> Kept:
    """What the forecast was not made from, held against it, with a band up to its compute."""
    promise, every, end = Promise.read(forecast), forecast["every"], forecast["compute"]
    seen, reward = (np.zeros(0), np.zeros(0)) if curve is None else (curve.compute, curve.reward)
    new = seen > promise.seen * (1 + 1e-9)
    done = float(seen.max(initial=promise.seen))
    ahead = np.arange(done + every, end * 1.001, every)
    if not new.any() and not len(ahead):
        ahead = np.array([end])
    return keep(promise, seen[new], reward[new], ahead)


def _write(ledger: Ledger, name: str, manifest: Record, found: Verified) -> None:
    from pipelines.tracking import log_ranking

    document = found.document()
    files.write_json(found.page.with_suffix(".json"), document)
    report.write_kept(found.page, found.kept, found.curve, found.evidence, found.lines(), document)
    try:
        log_ranking(ledger, Tracking(**manifest["tracking"]), name, {})
    except ServiceError as error:
        note(f"verify.html is on disk but not in MLflow: {error}")
