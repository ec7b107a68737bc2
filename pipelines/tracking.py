"""Curves into MLflow and out of it. The only module that imports MLflow.

``metrics.jsonl`` is the truth; the store is a copy that is brought up to date from it, off the
training loop's path. Every metric keeps the time of its record, so what is sent twice is kept once.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from threading import Event, Thread
from time import monotonic, sleep, time
from types import TracebackType
from typing import Any

# Before MLflow is imported: it reads them then. No statistics to anyone, and a store that does not
# answer is given up after seconds, since `sync` can always catch up.
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "15")

import mlflow.store.db.utils
from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunTag
from mlflow.exceptions import MlflowException
from sqlalchemy.exc import SQLAlchemyError

from pipelines import files
from pipelines.config import Tracking
from pipelines.errors import ServiceError
from pipelines.files import Record
from pipelines.ledger import History, Ledger, RunFiles, latest
from recipes.config import identity

RUN_TAG = "shortlist.run_id"
SWEEP_TAG = "shortlist.sweep"
SWEEPS_TAG = "shortlist.sweeps"
BATCH = 1000
"""Metrics in one request: the most that MLflow takes (mlflow/utils/validation.py)."""
PERIOD_S = 5.0
"""How often a training process sends what is new."""
FLUSH_S = 10.0
"""How long the end of a run waits for the store; what is left is for `sync`."""
HISTORY = 25_000
"""Points of one metric of one run that are read at most (MLflow's own bound)."""
STATUS = {
    "started": "RUNNING",
    "finished": "FINISHED",
    "failed": "FAILED",
    "died": "KILLED",
    "interrupted": "KILLED",
    "stopped": "KILLED",
    "requeued": "SCHEDULED",
}
"""Event to MLflow's run status."""

logger = logging.getLogger(__name__)
mlflow.store.db.utils.MAX_RETRY_COUNT = 4  # 1 s; its own 10 are 100 s, for an address that is wrong


class Store:
    """One experiment of one MLflow store."""

    def __init__(
        self, ledger: Ledger, tracking: Tracking, experiment_id: str | None = None
    ) -> None:
        """Opens the store and, without `experiment_id`, finds or makes the experiment."""
        self.uri = tracking.uri or f"sqlite:///{ledger.store}"
        # One at a time: opening a fresh SQLite store makes its tables.
        with files.locked(ledger.store_lock):
            self.client = MlflowClient(tracking_uri=self.uri)
            artifacts = None if tracking.uri else ledger.artifacts.as_uri()
            self.experiment_id = experiment_id or self._experiment(tracking.experiment, artifacts)
        self._seen: set[str] = set()

    def _experiment(self, name: str, artifacts: str | None) -> str:
        found = self.client.get_experiment_by_name(name)
        if found is None:
            return str(self.client.create_experiment(name, artifacts))
        return str(found.experiment_id)

    def run_of(self, run: RunFiles, history: History, known: str | None) -> str:
        """MLflow's id of a run: the one `known`, one that others made, or a new one."""
        if known and (known in self._seen or self._exists(known)):
            self._seen.add(known)
            return known
        request = history.request
        assert request is not None
        wanted = f"tags.`{RUN_TAG}` = '{run.run_id}'"
        found = self.client.search_runs([self.experiment_id], wanted, max_results=1)
        made = found[0] if found else self._create(run, history, request)
        self._seen.add(made.info.run_id)
        return str(made.info.run_id)

    def _exists(self, known: str) -> bool:
        try:
            self.client.get_run(known)
        except MlflowException as error:
            if error.error_code == "RESOURCE_DOES_NOT_EXIST":
                return False
            raise
        return True

    def _create(self, run: RunFiles, history: History, request: Record) -> Any:  # noqa: ANN401
        made = self.client.create_run(
            self.experiment_id,
            start_time=_milliseconds(history.events[0]["time"]),
            run_name=request["label"] + (f" seed={request['seed']}" if request["seed"] else ""),
            tags={RUN_TAG: run.run_id, SWEEPS_TAG: ", ".join(history.sweeps)},
        )
        params = [Param(key, str(value)) for key, value in _flat(identity(run.config()))]
        tags = [RunTag(f"axis.{axis}", choice) for axis, choice in request["choices"].items()]
        self.client.log_batch(made.info.run_id, params=params, tags=tags)
        return made


def ship(run: RunFiles, store: Store) -> int:
    """Sends `store` what it lacks of `run`, and the run's status.

    Returns:
        Number of points sent.

    Raises:
        MlflowException, SQLAlchemyError, OSError: The store did not take them; nothing is lost.
    """
    with files.locked(run.tracking_lock):
        cursor = files.read_json(run.tracking_file) or {}
        if cursor.get("uri") != store.uri:
            cursor = {"uri": store.uri}
        history = run.history()
        found = store.run_of(run, history, cursor.get("run"))
        if found != cursor.get("run"):
            cursor = {"uri": store.uri, "run": found}
        points, offset = files.read(run.metrics_file, cursor.get("offset", 0))
        for batch in _batches(_metrics(points)):
            store.client.log_batch(found, metrics=batch)
        _set_status(store, found, history, cursor)
        _set_sweeps(store, found, history, cursor)
        files.write_json(run.tracking_file, {**cursor, "offset": offset})
        return len(points)


def _set_status(store: Store, found: str, history: History, cursor: Record) -> None:
    last = next((item for item in reversed(history.events) if item["event"] in STATUS), None)
    if last is None or cursor.get("as_of") == last["time"]:
        return
    status = STATUS[last["event"]]
    if status in ("RUNNING", "SCHEDULED"):
        store.client.update_run(found, status=status)
    else:
        store.client.set_terminated(found, status, _milliseconds(last["time"]))
    cursor["as_of"] = last["time"]


def _set_sweeps(store: Store, found: str, history: History, cursor: Record) -> None:
    sweeps = ", ".join(history.sweeps)
    if cursor.get("sweeps") != sweeps:
        store.client.set_tag(found, SWEEPS_TAG, sweeps)
        cursor["sweeps"] = sweeps


class Shipper:
    """Sends a run's points while it trains, from a thread of its own; never in its way."""

    def __init__(self, ledger: Ledger, run: RunFiles, request: Record) -> None:
        self._ledger, self._run = ledger, run
        self._tracking = tracking_of(request)
        self._experiment_id = request["tracking"]["experiment_id"]
        self._end = Event()
        self._thread = Thread(target=self._work, name="tracking", daemon=True)

    def __enter__(self) -> Shipper:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end.set()
        self._thread.join(FLUSH_S)

    def _work(self) -> None:
        store: Store | None = None
        deadline = float("inf")
        while monotonic() < deadline:
            if self._end.wait(PERIOD_S) and deadline == float("inf"):
                deadline = monotonic() + FLUSH_S
            try:
                store = store or Store(self._ledger, self._tracking, self._experiment_id)
                ship(self._run, store)
            except Exception as error:  # whatever the store does, training goes on
                logger.warning("tracking store: %s", _short(error))
                sleep(0.2)
            else:
                if deadline < float("inf"):
                    return


def sync(ledger: Ledger, run_ids: Iterable[str]) -> int:
    """Sends each run's store what it lacks.

    Returns:
        Number of points sent.

    Raises:
        ServiceError: A store is out of reach.
    """
    stores: dict[tuple[str | None, str], Store] = {}
    sent = 0
    for run_id in run_ids:
        run = ledger.run(run_id)
        request = run.history().request
        if request is None:
            continue
        tracking = tracking_of(request)
        key = (tracking.uri, tracking.experiment)
        if key not in stores:
            stores[key] = open_store(ledger, tracking)
        with _reached(stores[key].uri):
            sent += ship(run, stores[key])
    return sent


def tracking_of(request: Record) -> Tracking:
    """Where a run asked to be logged."""
    return Tracking(request["tracking"]["uri"], request["tracking"]["experiment"])


def open_store(ledger: Ledger, tracking: Tracking) -> Store:
    """The store, with its tables and its experiment made.

    Raises:
        ServiceError: The store is out of reach.
    """
    with _reached(tracking.uri or f"sqlite:///{ledger.store}"):
        return Store(ledger, tracking)


def read_curves(
    store: Store, run_ids: Iterable[str], metric: str, axis: str, stderr: str | None = None
) -> dict[str, list[Record]]:
    """Curves as the store has them, read in bulk, so that they can be judged without our files.

    Returns:
        For each run a list of points by ascending step, with the keys of ``metrics.jsonl``.

    Raises:
        ServiceError: The store is out of reach.
    """
    names = _runs_of(store)
    wanted = {names[run_id]: run_id for run_id in run_ids if run_id in names}
    keys = [metric, f"compute/{axis}", "attempt", *([stderr] if stderr else [])]
    points: dict[tuple[str, int, int], dict[str, float]] = {}
    with _reached(store.uri):
        backend = store.client._tracking_client.store
        for key in keys:
            for item in backend.get_metric_history_bulk_interval(
                list(wanted), key, HISTORY, None, None
            ):
                points.setdefault((item.run_id, item.step, item.timestamp), {})[key] = item.value
    curves: dict[str, list[Record]] = {run_id: [] for run_id in wanted.values()}
    for (found, step, moment), values in points.items():
        if metric in values:
            record = {"attempt": int(values.get("attempt", 1)), "step": step, "time": moment / 1000}
            compute = {axis: values[f"compute/{axis}"]}
            metrics = {key: values[key] for key in (metric, stderr) if key in values}
            curves[wanted[found]].append({**record, "compute": compute, "metrics": metrics})
    return {run_id: latest(curve) for run_id, curve in curves.items()}


def log_ranking(
    ledger: Ledger, tracking: Tracking, sweep: str, fitted: Mapping[str, Mapping[str, Any]]
) -> None:
    """Puts what was fitted on each run, and the sweep's report on a run of its own, named after it.

    Args:
        ledger: Where the sweep is.
        tracking: Where to put it.
        sweep: Name of the sweep; the files of its folder become artifacts.
        fitted: For each run_id names and values: numbers become metrics ``fit/<name>``, words tags.

    Raises:
        ServiceError: The store is out of reach.
    """
    store = open_store(ledger, tracking)
    with _reached(store.uri):
        names = _runs_of(store)
        now = _milliseconds(time())
        for run_id, values in fitted.items():
            if run_id not in names:
                continue
            numbers = {
                key: value for key, value in values.items() if isinstance(value, int | float)
            }
            metrics = [Metric(f"fit/{key}", value, now, 0) for key, value in numbers.items()]
            words = [RunTag(key, str(value)) for key, value in values.items() if key not in numbers]
            store.client.log_batch(names[run_id], metrics=metrics, tags=words)
        _log_report(store, sweep, ledger.sweep(sweep).folder)


def _log_report(store: Store, sweep: str, folder: Path) -> None:
    wanted = f"tags.`{SWEEP_TAG}` = '{sweep}'"
    found = store.client.search_runs([store.experiment_id], wanted, max_results=1)
    tags = {SWEEP_TAG: sweep}
    report = (
        found[0]
        if found
        else store.client.create_run(store.experiment_id, run_name=sweep, tags=tags)
    )
    for path in sorted(folder.glob("*")):
        if path.is_file() and not path.name.startswith("."):
            store.client.log_artifact(report.info.run_id, str(path))
    store.client.set_terminated(report.info.run_id, "FINISHED")


def _runs_of(store: Store) -> dict[str, str]:
    """run_id to MLflow's id, for every run of the experiment."""
    names: dict[str, str] = {}
    token = None
    with _reached(store.uri):
        while True:
            page = store.client.search_runs(
                [store.experiment_id], f"tags.`{RUN_TAG}` != ''", max_results=1000, page_token=token
            )
            names.update({item.data.tags[RUN_TAG]: item.info.run_id for item in page})
            token = page.token
            if not token:
                return names


def _metrics(points: Sequence[Record]) -> Iterator[Metric]:
    for point in points:
        moment, step = _milliseconds(point["time"]), point["step"]
        yield Metric("attempt", point["attempt"], moment, step)
        for axis, value in point["compute"].items():
            yield Metric(f"compute/{axis}", float(value), moment, step)
        for name, value in point["metrics"].items():
            yield Metric(name, float(value), moment, step)


def _batches(metrics: Iterator[Metric]) -> Iterator[list[Metric]]:
    while batch := list(islice(metrics, BATCH)):
        yield batch


def _flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


@contextmanager
def _reached(uri: str) -> Iterator[None]:
    """Tells what a store raises as one clear line."""
    try:
        yield
    except (MlflowException, SQLAlchemyError, OSError) as error:
        line = str(error).strip().splitlines()[0]
        raise ServiceError(f"tracking.uri: {uri} is out of reach: {line[:200]}") from error


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:200]


def _milliseconds(moment: float) -> int:
    return round(moment * 1000)
