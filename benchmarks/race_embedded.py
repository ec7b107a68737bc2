"""A race on the embedded model, for real: its compute and its winner beside the full grid's.

Races the recipes of `conf/sweep/race.yaml`, then trains all of them to the end, in the same folder:
the grid continues what the race had stopped, so that both are of the same runs. Takes minutes.
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from common import keep

SWEEP = "race"


def shortlist(root: Path, command: str) -> dict[str, Any]:
    """The JSON document that a command prints."""
    words = [sys.executable, "-m", "pipelines.cli", *shlex.split(command), "--json"]
    environment = {**os.environ, "SHORTLIST_ROOT": str(root)}
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True, env=environment)
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def best(root: Path) -> tuple[str, dict[str, float]]:
    """The winner by rank, and every recipe's ceiling, where it is resolved."""
    ranked = shortlist(root, f"rank {SWEEP}")
    return ranked["order"][0], {f["run"]: f["A"] for f in ranked["fits"]}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, help="folder of runs; default: a temporary one")
    parser.add_argument("overrides", nargs="*", help="of the sweep, such as cluster.parallel=4")
    arguments = parser.parse_intermixed_args()
    root = arguments.root or Path(mkdtemp(prefix="race-"))
    overrides = shlex.join(arguments.overrides)
    raced = shortlist(root, f"race {SWEEP} {overrides} --follow")
    winner, _ = best(root)
    shortlist(root, f"retry {SWEEP} {overrides} --follow")
    full = shortlist(root, f"plan {SWEEP} {overrides}")
    grid_winner, ceilings = best(root)
    last = {run["label"]: run["pass_rate"] for run in full["runs"]}
    spent = {
        item["axis"]: {"race": item["spent"], "grid": whole["spent"]}
        for item, whole in zip(raced["spending"], full["spending"], strict=True)
    }
    for item in spent.values():
        item["share"] = item["race"] / item["grid"]
    stopped = [r["label"] for r in raced["recipes"] if r["stopped"]]
    keep(
        "race_embedded",
        {
            "recipes": len(raced["recipes"]),
            "stopped": len(stopped),
            "spent": spent,
            "winner of the race": winner,
            "winner of the grid": grid_winner,
            "same": winner == grid_winner,
            "last pass rates": last,
            "ceilings": ceilings,
            "race": [{k: r[k] for k in ("label", "done", "stopped")} for r in raced["recipes"]],
        },
    )
