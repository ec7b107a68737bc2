"""What is on disk about runs: every path, what happened to a run, and the points of its curve.

Nothing here is a stored state: what a run *is* follows from its events, its lock and its result.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from socket import gethostname
from time import time
from typing import Any

import yaml

from pipelines import files
from pipelines.errors import UserError
from pipelines.files import Record
from recipes.config import Budget

Dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
"""The C one, where PyYAML has it: a thousand runs are written in seconds less."""
Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
TURNS = (
    "planned",
    "submitted",
    "started",
    "finished",
    "failed",
    "died",
    "interrupted",
    "requeued",
    "cancelled",
)
"""Events that say where a run stands; the last one counts. Others (checkpoint) are news."""
ENDS = TURNS[3:]
"""Those with which training ends."""
Kinds = Mapping[str, type | tuple[type, ...]]
"""What every record of a kind has; one that lacks it was damaged."""
NUMBER = (int, float)
EVENT: Kinds = {"event": str, "time": NUMBER}
POINT: Kinds = {"attempt": int, "step": int, "time": NUMBER, "compute": dict, "metrics": dict}
RESULT: Kinds = {"compute": dict}
HEARTBEAT_S = 10.0
"""How often a process that trains a run says that it lives."""
HEARTBEAT_LOST_S = 6 * HEARTBEAT_S
"""After so long without a sign, it does not."""
PRIVATE = 0o700
"""Mode of a root made here; one that exists keeps its own, so that a group can share it."""
LONGEST = 100
"""Characters of a name: of a sweep, say, which becomes a folder and part of a job's name."""
LAST = 10
"""Points at the end of a curve that tell how it goes."""
LANE_START_S = 15.0
"""How long a local lane may take to start, before another is started in its place."""


class Ledger:
    """Everything under one root. The only place that knows its paths."""

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root).absolute()
        self.runs = self.root / "runs"
        self.models = self.root / "models"
        self.snapshots = self.root / "snapshots"
        self.submissions = self.root / "submissions"
        """What each array of jobs is to do, its batch script, and what its jobs print."""
        self.store = self.root / "mlflow.db"
        self.artifacts = self.root / "mlartifacts"
        self.server = self.root / "server"
        """What `shortlist server` keeps beside the store."""
        self.launch_lock = self.root / "launch.lock"
        self.claim_lock = self.root / "claim.lock"
        self.store_lock = self.root / "mlflow.lock"
        self.lanes = self.root / "lanes"

    def run(self, run_id: str) -> RunFiles:
        """The files of one run, whether they exist or not."""
        return RunFiles(self.runs / component("run", run_id))

    def known_runs(self) -> list[RunFiles]:
        """Every run there is anything about."""
        return [RunFiles(path) for path in sorted(self.runs.glob("*")) if path.is_dir()]

    def sweep(self, name: str) -> SweepFiles:
        """The files of one sweep, whether they exist or not."""
        return SweepFiles(self.root / "sweeps" / component("sweep", name))

    def promotion(self, name: str) -> PromotionFiles:
        """The files of one promotion, whether they exist or not."""
        return PromotionFiles(self.root / "promoted", component("promotion", name))

    def submission(self, name: str) -> Path:
        """What the array of jobs with this name is to do."""
        return self.submissions / f"{name}.json"

    def last_said(self) -> str:
        """The last line that jobs wrote to their standard errors before any run was theirs."""
        logs = sorted(self.submissions.glob("*_log.err"), key=lambda path: path.stat().st_mtime)
        return files.last_line(logs[-1]) if logs else ""

    def known_sweeps(self) -> list[str]:
        """Names of the sweeps that were launched here."""
        return sorted(path.parent.name for path in self.root.glob("sweeps/*/manifest.json"))

    def known_promotions(self) -> list[str]:
        """Names of the promotions that were made here."""
        suffix = ".evidence.json"
        return sorted(p.name.removesuffix(suffix) for p in self.root.glob(f"promoted/*{suffix}"))

    def clear_if_empty(self) -> None:
        """Removes the root, if it has nothing but locks."""
        locks = {self.launch_lock, self.claim_lock, self.store_lock}
        if self.root.is_dir() and set(self.root.iterdir()) <= locks:
            for path in locks:
                path.unlink(missing_ok=True)
            self.root.rmdir()

    def lane(self, slot: int) -> Path:
        """The lock of local lane `slot`: held while one of its runs is being trained."""
        return self.lanes / f"{slot}.lock"

    def at_work(self, lane: Path) -> bool:
        """Whether the lane with this lock is at work, or was started moments ago."""
        try:
            started = lane.stat().st_mtime
        except FileNotFoundError:
            return False
        # Clocks are set back, too.
        return abs(time() - started) < LANE_START_S or files.is_locked(lane)

    def any_lane(self) -> bool:
        """Whether any local lane is at work."""
        return any(self.at_work(lane) for lane in self.lanes.glob("*.lock"))


class SweepFiles:
    """The folder of one sweep."""

    def __init__(self, folder: Path) -> None:
        self.name = folder.name
        self.folder = folder
        self.manifest_file = folder / "manifest.json"
        self.study = folder / "study.log"
        """Optuna's journal of an adaptive sweep."""
        self.pass_lock = folder / "pass.lock"
        """Held while a race or a search decides."""

    def manifest(self) -> Record | None:
        """What was launched under this name, or None.

        Raises:
            ServiceError: The file is damaged.
        """
        return files.read_json(self.manifest_file)


class PromotionFiles:
    """A promotion in a folder that is laid out like ``conf/``, for ``--config-dir``."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self.recipe = folder / f"{name}.yaml"
        self.linked = folder / "recipe" / f"{name}.yaml"
        """A link to `recipe`, where Hydra looks for it."""
        self.sweep = folder / "sweep" / f"{name}.yaml"
        self.evidence = folder / f"{name}.evidence.json"


class RunFiles:
    """The folder of one run."""

    def __init__(self, folder: Path) -> None:
        self.run_id = folder.name
        self.folder = folder
        self.config_file = folder / "config.yaml"
        self.events_file = folder / "events.jsonl"
        self.metrics_file = folder / "metrics.jsonl"
        self.result_file = folder / "result.json"
        self.tracking_file = folder / "tracking.json"
        """How much of `metrics_file` the tracking store has."""
        self.tracking_lock = folder / "tracking.lock"
        self.lock_file = folder / "lock"
        """Held while the run is being trained; has the process id of the last who did."""
        self.heartbeat_file = folder / "heartbeat"
        """Touched while the run is being trained; has the name of the machine that does."""
        self.logs = folder / "logs"

    def log(self, attempt: int) -> Path:
        """What attempt number `attempt` printed."""
        return self.logs / f"attempt-{attempt}.log"

    def create(self, resolved: Mapping[str, Any]) -> None:
        """Makes the folder, with its resolved configuration; what exists is left as it is."""
        self.logs.mkdir(parents=True, exist_ok=True)
        if not self.config_file.exists():
            text = yaml.dump(dict(resolved), Dumper=Dumper, sort_keys=False)
            files.write(self.config_file, text)

    def config(self) -> dict[str, Any]:
        """The resolved configuration the run was created with."""
        config: dict[str, Any] = yaml.load(self.config_file.read_text(), Loader=Loader)
        return config

    def event(self, name: str, **fields: object) -> None:
        """Writes down that something happened; on the disk when this returns."""
        files.append(self.events_file, {"event": name, "time": time(), **fields}, sync=True)

    def remark(self, name: str, **fields: object) -> None:
        """Writes down what can be found out again, without waiting for the disk."""
        files.append(self.events_file, {"event": name, "time": time(), **fields})

    def history(self) -> History:
        """What happened so far."""
        return History(_whole(files.read(self.events_file)[0], EVENT))

    def events_since(self, offset: int) -> tuple[list[Record], int]:
        """The events from byte `offset` on, and the offset after the last."""
        events, end = files.read(self.events_file, offset)
        return _whole(events, EVENT), end

    def point(
        self, attempt: int, step: int, compute: Mapping[str, float], metrics: Mapping[str, float]
    ) -> None:
        """Adds a point of the curve.

        With an evaluation, all until then is on the disk when this returns: a checkpoint follows,
        and what came before it is not trained again.
        """
        record = {"attempt": attempt, "step": step, "time": time(), "compute": compute}
        evaluated = "eval/pass_rate" in metrics
        files.append(self.metrics_file, {**record, "metrics": metrics}, sync=evaluated)

    def points(self) -> list[Record]:
        """Every point once, by ascending step, with numbers as floats (see `latest`)."""
        return latest(self.points_since(0)[0])

    def points_since(self, offset: int) -> tuple[list[Record], int]:
        """The points from byte `offset` on as they were written, and the offset after the last."""
        points, end = files.read(self.metrics_file, offset)
        return _whole(points, POINT), end

    def last_points(self) -> list[Record]:
        """Of the points at the end of the file the last `LAST`, evaluations, and the first.

        As they were written; in a fraction of the time that all of them take.
        """
        return _whole(files.tail(self.metrics_file, b'"eval/', LAST), POINT)

    def result(self) -> Record | None:
        """What the run ended with, once it reached a budget; without it, it is trained again."""
        result = files.read_json(self.result_file, expendable=True)
        return next(iter(_whole([result or {}], RESULT)), None)

    def running(self) -> bool:
        """Whether a process trains it, as its lock tells, or its heartbeat from where locks do not.

        For show, and to submit nothing twice; what a process may write, its `job.Tenure` says.
        """
        return files.is_locked(self.lock_file) or self.beats_elsewhere()

    def beats_elsewhere(self) -> bool:
        """Whether a process on another machine trains it; as right as the machines' clocks are."""
        beat = files.modified(self.heartbeat_file)
        if beat is None or abs(time() - beat) > HEARTBEAT_LOST_S:
            return False
        return self.trained_on() not in (None, gethostname())

    def trained_on(self) -> str | None:
        """Name of the machine that trains it; None if it left, or never was."""
        try:
            return self.heartbeat_file.read_text()
        except OSError:
            return None


@dataclass(frozen=True)
class History:
    """The events of one run, oldest first."""

    events: Sequence[Record]

    @property
    def last(self) -> Record | None:
        """The event that says where the run stands; a cancellation, until it is planned again."""
        jobs = {item.get("job") for item in self.events if item["event"] == "started"}
        last = None
        for item in reversed(self.events):
            if item["event"] == "cancelled":  # and the process saved and went after that
                return item
            # A job can start before the launcher has written down that it submitted it.
            late = item["event"] == "submitted" and item["job"] in jobs
            if item["event"] in TURNS and not late:
                last = last or item
            if item["event"] == "planned":
                break
        return last

    @property
    def turn(self) -> str | None:
        """Name of `last`."""
        return self.last["event"] if self.last else None

    @property
    def attempts(self) -> int:
        """How often training was started."""
        return sum(item["event"] == "started" for item in self.events)

    @property
    def fruitless(self) -> int:
        """How often training was started, or was to start, since it last wrote a checkpoint."""
        asked = started = 0
        for item in reversed(self.events):
            if item["event"] == "checkpoint":
                break
            local = item["event"] == "planned" and item["cluster"] == "local"
            asked += local or item["event"] == "submitted"
            started += item["event"] == "started"
        return max(asked, started)

    @property
    def ends(self) -> Counter[str]:
        """How often training ended early, by why.

        Returns:
            Numbers by ``time limit``, ``preempted``, ``failed`` (an error), ``filesystem`` (a disk
            that was full or away) and ``lost`` (without a word: killed, or its node failed).
        """
        ends: Counter[str] = Counter()
        under_way = False
        for item in self.events:
            name = item["event"]
            if name == "started" and under_way:
                ends["lost"] += 1
            elif name == "died":
                ends[item.get("reason", "lost")] += 1
            elif name == "requeued" and item["reason"] not in ("error", "filesystem"):
                ends[item["reason"]] += 1
            elif name == "failed":
                ends["failed"] += 1
            under_way = name == "started" or (under_way and name not in ENDS)
        return ends

    @property
    def errors(self) -> int:
        """How often it ended with an error since a person last had it tried again."""
        count = 0
        for item in reversed(self.events):
            if item["event"] == "planned" and item.get("retry"):
                break
            count += item["event"] == "failed"
        return count

    @property
    def retries(self) -> int:
        """How many errors are no reason to stop."""
        return int((self.request or {}).get("retries", 0))

    @property
    def request(self) -> Record | None:
        """What was asked for last: budget, execution, snapshot, tracking, sweep, choices."""
        return next((item for item in reversed(self.events) if item["event"] == "planned"), None)

    @property
    def sweeps(self) -> list[str]:
        """Every sweep that asked for the run."""
        asked = (item for item in self.events if item["event"] in ("planned", "reused"))
        return list(dict.fromkeys(item["sweep"] for item in asked))

    @property
    def budget(self) -> Budget | None:
        """The budget asked for last, or the largest of its axis: sweeps share a run."""
        asked = [Budget(**item["budget"]) for item in self.events if item["event"] == "planned"]
        if not asked:
            return None
        amount = max(item.amount for item in asked if item.axis == asked[-1].axis)
        last = asked[-1]
        return Budget(last.axis, amount, last.eval_every, last.log_every)

    @property
    def error(self) -> str | None:
        """Why the run does not go on: the last lines of an error, or how its process ended."""
        last = self.last
        return str(last["error"]) if last and last["event"] in ("failed", "died") else None


def component(what: str, name: str) -> str:
    """`name`, which can be no more than the name of one file or folder.

    Raises:
        UserError: It would lead elsewhere, hide, or be taken for an option.
    """
    if not name.isprintable() or "/" in name or name[:1] in ("", ".", "-") or len(name) > LONGEST:
        allowed = f"up to {LONGEST} printable characters, no '/', and no '.' or '-' before them"
        raise UserError(f"{what}: got {name!r}, allowed: {allowed}")
    return name


def reaches(compute: Mapping[str, float], budget: Budget) -> bool:
    """Whether `compute` spent is all of `budget`."""
    return float(compute.get(budget.axis, 0.0)) >= budget.amount


def _whole(records: Iterable[Record], kinds: Kinds) -> list[Record]:
    """Those of `records` that have what `kinds` says."""
    return [
        record
        for record in records
        if all(isinstance(record.get(key), kind) for key, kind in kinds.items())
    ]


def latest(points: Sequence[Record]) -> list[Record]:
    """`points` as one curve: where attempts overlap, the later one's.

    An attempt goes on from a checkpoint, so from its first step on it replaces what earlier
    attempts saw, also beyond the step that it has come to itself. Of two of one step and attempt
    with the same metrics the last counts: two processes that began at once share a number.
    """
    first: dict[int, int] = {}
    for point in points:
        attempt = point["attempt"]
        first[attempt] = min(point["step"], first.get(attempt, point["step"]))
    once = {(point["attempt"], point["step"], *sorted(point["metrics"])): point for point in points}
    kept = [
        {
            **point,
            "compute": {axis: float(value) for axis, value in point["compute"].items()},
            "metrics": {name: float(value) for name, value in point["metrics"].items()},
        }
        for point in once.values()
        if all(point["step"] < step for later, step in first.items() if later > point["attempt"])
    ]
    return sorted(kept, key=lambda point: int(point["step"]))
