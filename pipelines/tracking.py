"""Curves into MLflow and out of it.

``metrics.jsonl`` is the truth; the store is a copy that is brought up to date from it, off the
training loop's path.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from threading import Event, Thread
from time import monotonic, sleep, time
from typing import Any

from pipelines import files
from pipelines.config import Tracking
from pipelines.files import Record
from pipelines.jobs import Jobs
from pipelines.ledger import History, Ledger, RunFiles, latest
from pipelines.store import RUN_TAG, SWEEP_TAG, Store, reached, told
from recipes.config import identity

SWEEPS_TAG = "shortlist.sweeps"
NOTE_TAG = "mlflow.note.content"
"""What MLflow's web page shows as the description of a run."""
PERIOD_S = 15.0
"""How often a training process sends what is new; most of what that costs is per batch."""
FLUSH_S = 10.0
"""How long the end of a run waits for the store; what is left is for `sync`."""
STATUS = {
    "started": "RUNNING",
    "finished": "FINISHED",
    "failed": "FAILED",
    "died": "KILLED",
    "interrupted": "KILLED",
    "cancelled": "KILLED",
    "requeued": "SCHEDULED",
}
"""Event to MLflow's status of a run."""

AT_WORK = ("pending", "running", "unknown")
"""States in which what a run said last of itself stands."""

logger = logging.getLogger(__name__)


def ship(run: RunFiles, store: Store, *, at_work: bool = True) -> int:
    """Sends `store` what it lacks of `run`, and the run's status.

    Args:
        run: The run.
        store: Where to.
        at_work: False where nobody trains it, whatever it said last.

    Returns:
        Number of points sent.

    Raises:
        Exception: Whatever MLflow raises; nothing is lost.
    """
    with files.locked(run.tracking_lock), store.turn():
        cursor = files.read_json(run.tracking_file, expendable=True) or {}
        before = dict(cursor)
        history = run.history()
        entry = _entry(run, history, store, cursor)
        if (cursor.get("uri"), cursor.get("entry")) != (store.uri, entry):
            cursor = {"uri": store.uri, "entry": entry, "offset": 0}
        points, cursor["offset"] = run.points_since(cursor["offset"])
        store.log(entry, points)
        status = _status(run, history, at_work=at_work)
        if status and cursor.get("status") != status:
            store.set_status(entry, *status)
            cursor["status"] = status
        if cursor.get("sweeps") != history.sweeps:
            store.set_tag(entry, SWEEPS_TAG, ", ".join(history.sweeps))
            cursor["sweeps"] = history.sweeps
        if cursor != before:
            files.write_json(run.tracking_file, cursor)
        return len(points)


def _status(run: RunFiles, history: History, *, at_work: bool) -> list[Any] | None:
    """MLflow's status of a run and since when, from what it said last; None before it started."""
    last = next((item for item in reversed(history.events) if item["event"] in STATUS), None)
    if last is None:
        return None
    if last["event"] == "started" and not at_work:  # its process, lane or machine was killed
        points = run.last_points()
        return ["KILLED", max([last["time"], *(point["time"] for point in points[-1:])])]
    return [STATUS[last["event"]], last["time"]]


def _entry(run: RunFiles, history: History, store: Store, cursor: Record) -> str:
    """MLflow's id of a run: the one used so far, one that others made, or a new one."""
    known = cursor.get("entry")
    if known and cursor["uri"] == store.uri and store.has(known):
        return str(known)
    request = history.request
    assert request is not None
    seed = f" seed={request['seed']}" if request["seed"] else ""
    started = (item for item in history.events if item["event"] == "started")
    choices = {f"axis.{axis}": choice for axis, choice in request["choices"].items()}
    return store.find(RUN_TAG, run.run_id) or store.create(
        name=request["label"] + seed,
        tags={RUN_TAG: run.run_id, **choices},
        params=dict(_flat(identity(run.config()))),
        start=next(started, history.events[0])["time"],
    )


class Shipper:
    """Sends a run's points while it trains, from a thread of its own; never in its way."""

    def __init__(self, ledger: Ledger, run: RunFiles, request: Record) -> None:
        self._ledger, self._run, self._request = ledger, run, request
        self._end = Event()
        self._thread = Thread(target=self._work, name="tracking", daemon=True)

    def __enter__(self) -> Shipper:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join(FLUSH_S)

    def _work(self) -> None:
        store: Store | None = None
        deadline = float("inf")
        trouble = ""
        while monotonic() < deadline:
            if self._end.wait(PERIOD_S) and deadline == float("inf"):
                deadline = monotonic() + FLUSH_S
            try:
                store = store or self._open()
                ship(self._run, store)
            except Exception as error:  # whatever the store does, training goes on
                if told(error) != trouble:  # said once, not all weekend
                    trouble = told(error)
                    logger.warning("tracking store: %s (training goes on)", trouble)
                store = None
                sleep(0.2)
            else:
                trouble = ""
                if deadline < float("inf"):
                    return

    def _open(self) -> Store:
        experiment_id = self._request["tracking"]["experiment_id"]
        return Store(self._ledger, tracking_of(self._request), experiment_id)


def sync(ledger: Ledger, run_ids: Iterable[str]) -> int:
    """Sends each run's store what it lacks, and closes there those that died without a word.

    Returns:
        Number of points sent.

    Raises:
        ServiceError: A store is out of reach.
    """
    stores: dict[tuple[str | None, str], Store] = {}
    jobs = Jobs(ledger)
    sent = 0
    for run_id in run_ids:
        run = ledger.run(run_id)
        history = run.history()
        started = history.attempts or run.metrics_file.exists()
        if history.request is None or history.budget is None or not started:
            continue
        tracking = tracking_of(history.request)
        key = (tracking.uri, tracking.experiment)
        if key not in stores:
            stores[key] = open_store(ledger, tracking)
            with reached(stores[key].uri):
                stores[key].entries()  # in one request, rather than one for each run
        at_work = jobs.state(run, history, history.budget) in AT_WORK
        with reached(stores[key].uri):
            sent += ship(run, stores[key], at_work=at_work)
    return sent


def tracking_of(request: Record) -> Tracking:
    """Where a run asked to be logged."""
    return Tracking(request["tracking"]["uri"], request["tracking"]["experiment"])


def open_store(ledger: Ledger, tracking: Tracking) -> Store:
    """The store, with its tables and its experiment made.

    Raises:
        ServiceError: The store is out of reach.
    """
    with reached(tracking.uri or f"sqlite:///{ledger.store}"):
        return Store(ledger, tracking)


def read_curves(
    store: Store, run_ids: Iterable[str], metrics: Sequence[str], axis: str
) -> dict[str, list[Record]]:
    """Curves as the store has them, read in bulk, so that they can be judged without our files.

    Returns:
        For each run a list of points by ascending step, with the keys of ``metrics.jsonl``.

    Raises:
        ServiceError: The store is out of reach.
    """
    compute = f"compute/{axis}"
    points: dict[tuple[str, int, int], dict[str, float]] = {}
    with reached(store.uri):
        entries = store.entries()
        names = {entries[run_id]: run_id for run_id in run_ids if run_id in entries}
        for key in (compute, "attempt", *metrics):
            for entry, step, moment, value in store.history(list(names), key):
                points.setdefault((entry, step, moment), {})[key] = value
    curves: dict[str, list[Record]] = {run_id: [] for run_id in names.values()}
    for (entry, step, moment), values in points.items():
        wanted = {key: values[key] for key in metrics if key in values}
        if wanted:
            point: Record = {"attempt": int(values["attempt"]), "step": step, "time": moment / 1000}
            point["compute"] = {axis: values[compute]}
            point["metrics"] = wanted
            curves[names[entry]].append(point)
    return {run_id: latest(curve) for run_id, curve in curves.items()}


def log_ranking(
    ledger: Ledger, tracking: Tracking, sweep: str, fitted: Mapping[str, Mapping[str, Any]]
) -> None:
    """Puts what was fitted on each run, and the sweep's report on a run of its own.

    Args:
        ledger: Where the sweep is.
        tracking: Where to put it.
        sweep: Name of the sweep and of the report's run; the files of its folder become artifacts.
        fitted: For each run_id names and values: numbers become metrics ``fit/<name>``, words tags.

    Raises:
        ServiceError: The store is out of reach.
    """
    store = open_store(ledger, tracking)
    with reached(store.uri):
        entries = store.entries()
        for run_id in fitted.keys() & entries.keys():
            store.annotate(entries[run_id], fitted[run_id])
        tags = {
            SWEEP_TAG: sweep,
            NOTE_TAG: f"The ranking of sweep {sweep}: report.html in Artifacts",
        }
        report = store.find(SWEEP_TAG, sweep) or store.create(sweep, tags)
        paths = sorted(ledger.sweep(sweep).folder.glob("[!.]*"))
        store.attach(report, [path for path in paths if path.is_file()])
        store.set_status(report, "FINISHED", time())


def _flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value
