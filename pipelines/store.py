"""One experiment of an MLflow store. The only module that imports MLflow."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from itertools import islice
from pathlib import Path
from time import time
from typing import Any

# Before MLflow is imported: it reads them then. No statistics to anyone, and a store that does not
# answer is given up after seconds, since `tracking.sync` can always catch up.
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "15")

import mlflow.store.db.utils
import mlflow.store.tracking.sqlalchemy_store  # 0.3 s, as a job starts and not as it trains
from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunTag
from mlflow.exceptions import MlflowException
from mlflow.store.tracking.dbmodels.models import SqlMetric
from mlflow.utils.rest_utils import http_request, verify_rest_response
from sqlalchemy.exc import SQLAlchemyError

from pipelines import files
from pipelines.config import Tracking
from pipelines.errors import ServiceError, UserError
from pipelines.files import Record
from pipelines.ledger import Ledger
from pipelines.redact import shown

RUN_TAG = "shortlist.run_id"
SWEEP_TAG = "shortlist.sweep"
EXPERIMENT_TAGS = {"mlflow.experimentKind": "custom_model_development"}
"""Has MLflow's web page open on training runs, rather than on traces of language models."""
BATCH = 1000
"""Metrics in one request: the most that MLflow takes (mlflow/utils/validation.py)."""
PAGE = 1000
"""Runs in one answer: the most that MLflow gives."""
LINE = 120
"""Characters of a store's own words that are shown."""
BULK = "/ajax-api/2.0/mlflow/metrics/get-history-bulk"
BULK_RUNS, BULK_POINTS = 100, 25_000
"""Runs in one request of `BULK`, and points in its answer (mlflow/server/handlers.py)."""
IDS = 500
"""Runs in one database query: SQLite takes 32,766 variables, older ones 999."""

Value = tuple[str, int, int, float]
"""MLflow's id of a run, step, milliseconds since 1970, and the value of a metric."""

mlflow.store.db.utils.MAX_RETRY_COUNT = 4  # 1 s; its own 10 are 100 s, for an address that is wrong


class Store:
    """One experiment of one MLflow store."""

    def __init__(
        self, ledger: Ledger, tracking: Tracking, experiment_id: str | None = None
    ) -> None:
        """Opens the store and, without `experiment_id`, finds or makes the experiment."""
        self.uri = tracking.uri or f"sqlite:///{ledger.store}"
        self._known: set[str] = set()
        self._lock = ledger.store_lock
        # One at a time: opening a fresh SQLite store makes its tables.
        with files.locked(ledger.store_lock):
            self.client = MlflowClient(tracking_uri=self.uri)
            self._backend: Any = self.client._tracking_client.store
            artifacts = None if tracking.uri else ledger.artifacts.as_uri()
            self.experiment_id = experiment_id or self._experiment(tracking.experiment, artifacts)

    def _experiment(self, name: str, artifacts: str | None) -> str:
        """The id of the experiment; of those who make it at once, one succeeds."""
        found = self.client.get_experiment_by_name(name)
        if found is None:
            try:
                return str(self.client.create_experiment(name, artifacts, EXPERIMENT_TAGS))
            except MlflowException as error:
                if error.error_code != "RESOURCE_ALREADY_EXISTS":
                    raise
                found = self.client.get_experiment_by_name(name)
        if found.lifecycle_stage != "active":
            allowed = "another name, or restore it in MLflow"
            raise UserError(f"tracking.experiment: got {name!r}, which was deleted; {allowed}")
        return str(found.experiment_id)

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Waits for the other processes that write to the same SQLite file, and has them wait.

        SQLite itself gives up ("database is locked") where dozens write at once.
        """
        with files.locked(self._lock) if self.uri.startswith("sqlite") else nullcontext():
            yield

    def has(self, entry: str) -> bool:
        """Whether there is a run with MLflow's id `entry`; asked once."""
        if entry not in self._known:
            try:
                info = self.client.get_run(entry).info
                if info.lifecycle_stage != "active":  # deleted in MLflow: it takes nothing more
                    return False
                self._known.add(info.run_id)
            except MlflowException as error:
                if error.error_code == "RESOURCE_DOES_NOT_EXIST":
                    return False
                raise
        return True

    def find(self, tag: str, value: str) -> str | None:
        """MLflow's id of the run with this tag, or None."""
        wanted = f"tags.`{tag}` = '{value}'"
        found = self.client.search_runs([self.experiment_id], wanted, max_results=1)
        return str(found[0].info.run_id) if found else None

    def create(
        self,
        name: str,
        tags: Mapping[str, str],
        params: Mapping[str, object] | None = None,
        start: float | None = None,
    ) -> str:
        """Makes a run, begun at `start` (seconds since 1970), and returns MLflow's id of it."""
        began = None if start is None else _milliseconds(start)
        made = self.client.create_run(self.experiment_id, began, dict(tags), run_name=name)
        given = [Param(key, str(value)) for key, value in (params or {}).items()]
        self.client.log_batch(made.info.run_id, params=given)
        return str(made.info.run_id)

    def log(self, entry: str, points: Sequence[Record]) -> None:
        """Adds points; each keeps the time of its record, so that one sent twice is there once."""
        metrics = _metrics(points)
        while batch := list(islice(metrics, BATCH)):
            self.client.log_batch(entry, metrics=batch)

    def annotate(self, entry: str, values: Mapping[str, object]) -> None:
        """Puts numbers on a run as metrics ``fit/<name>``, and words as tags."""
        numbers = {key: value for key, value in values.items() if isinstance(value, int | float)}
        now = _milliseconds(time())
        metrics = [Metric(f"fit/{key}", value, now, 0) for key, value in numbers.items()]
        tags = [RunTag(key, str(value)) for key, value in values.items() if key not in numbers]
        self.client.log_batch(entry, metrics=metrics, tags=tags)

    def set_status(self, entry: str, status: str, moment: float) -> None:
        """Sets MLflow's status of a run; one that says it is over ends at `moment`."""
        if status in ("RUNNING", "SCHEDULED"):
            self.client.update_run(entry, status=status)
        else:
            self.client.set_terminated(entry, status, _milliseconds(moment))

    def set_tag(self, entry: str, tag: str, value: str) -> None:
        """Sets one tag."""
        self.client.set_tag(entry, tag, value)

    def attach(self, entry: str, paths: Iterable[Path]) -> None:
        """Adds files as artifacts."""
        for path in paths:
            self.client.log_artifact(entry, str(path))

    def entries(self) -> dict[str, str]:
        """run_id to MLflow's id, for every run of the experiment."""
        entries: dict[str, str] = {}
        token = None
        while True:
            wanted = f"tags.`{RUN_TAG}` != ''"
            page = self.client.search_runs(
                [self.experiment_id], wanted, max_results=PAGE, page_token=token
            )
            entries.update({item.data.tags[RUN_TAG]: item.info.run_id for item in page})
            token = page.token
            if not token:
                self._known.update(entries.values())
                return entries

    def history(self, entries: Sequence[str], metric: str) -> Iterator[Value]:
        """Every value of `metric` of these runs, in bulk."""
        of_database = hasattr(self._backend, "ManagedSessionMaker")
        size, read = (IDS, self._rows) if of_database else (BULK_RUNS, self._answers)
        for start in range(0, len(entries), size):
            yield from read(entries[start : start + size], metric)

    def _rows(self, entries: Sequence[str], metric: str) -> Iterator[Value]:
        """From a database, by MLflow's own query, but without an object for each value."""
        table = SqlMetric
        columns = (table.run_uuid, table.step, table.timestamp, table.value, table.is_nan)
        with self._backend.ManagedSessionMaker() as session:
            found = session.query(*columns).filter(table.key == metric, table.run_uuid.in_(entries))
            for entry, step, moment, value, is_nan in found.all():
                yield entry, step, moment, math.nan if is_nan else value

    def _answers(self, entries: Sequence[str], metric: str) -> Iterator[Value]:
        """From a server, as MLflow's web page reads it: its client has no call for that."""
        runs = [("run_id", entry) for entry in entries]
        wanted = [*runs, ("metric_key", metric), ("max_results", BULK_POINTS)]
        answer = http_request(self._backend.get_host_creds(), BULK, "GET", params=wanted)
        found = verify_rest_response(answer, BULK).json()["metrics"]
        if len(found) < BULK_POINTS:
            for item in found:
                yield item["run_id"], item["step"], item["timestamp"], float(item["value"])
        elif len(entries) > 1:  # the answer was cut off
            half = len(entries) // 2
            yield from self._answers(entries[:half], metric)
            yield from self._answers(entries[half:], metric)
        else:
            for item in self.client.get_metric_history(entries[0], metric):
                yield entries[0], item.step, item.timestamp, item.value


@contextmanager
def reached(uri: str) -> Iterator[None]:
    """Tells what a store raises as one clear line.

    Raises:
        ServiceError: In its place.
        UserError: A driver that the address needs is not installed.
    """
    try:
        yield
    except (MlflowException, SQLAlchemyError, OSError) as error:
        raise ServiceError(f"tracking.uri: {shown(uri)} is out of reach: {told(error)}") from error
    except ModuleNotFoundError as error:  # PostgreSQL's driver is an extra
        raise UserError(f"tracking.uri: {shown(uri)}: {error} (pip install .[server])") from error


def told(error: Exception) -> str:
    """What a store says, as it may be shown: the beginning, without a name and password."""
    line, *_ = str(error).strip().splitlines() or [type(error).__name__]
    return shown(line)[:LINE]


def _metrics(points: Sequence[Record]) -> Iterator[Metric]:
    for point in points:
        moment, step = _milliseconds(point["time"]), point["step"]
        yield Metric("attempt", point["attempt"], moment, step)
        for axis, value in point["compute"].items():
            yield Metric(f"compute/{axis}", float(value), moment, step)
        for name, value in point["metrics"].items():
            yield Metric(name, float(value), moment, step)


def _milliseconds(moment: float) -> int:
    return round(moment * 1000)
