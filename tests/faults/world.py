"""A small world in which processes are killed: they are real, and so is the tracking store."""

from __future__ import annotations

import os
import random
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from pipelines import lane, slurm, submit
from pipelines.config import Cluster, Tracking
from pipelines.launch import launch
from pipelines.ledger import Ledger, RunFiles
from pipelines.tracking import open_store, read_curves, sync
from tests.fake_slurm import FakeSlurm
from tests.fakes import eval_points, make_plan, tiny_config
from tests.faults.killer import Killer, Plan

STEPS = 20
RUNS = 3
PASSES = 200
"""A run that is not complete after so many passes without a kill is stuck."""


class World:
    """A sweep, and one who launches it again and again while processes are killed."""

    def __init__(self, root: Path, scheduler: FakeSlurm, seed: int, kills: int) -> None:
        self.ledger = Ledger(root)
        self.slurm = scheduler
        self.draw = random.Random(seed)
        self.wanted = kills
        self.log = root / "kills"
        kind = "slurm" if seed % 3 else "local"
        configs = [tiny_config(steps=STEPS, seed=number) for number in range(RUNS)]
        self.plan = make_plan(root, configs, cluster=Cluster(kind=kind, parallel=2))

    @property
    def runs(self) -> list[RunFiles]:
        return [self.ledger.run(run.run_id) for run in self.plan.runs]

    def kills(self) -> Counter[str]:
        """How often a process was killed, by step and when."""
        return Counter(self.log.read_text().splitlines() if self.log.exists() else [])

    def play(self) -> None:
        """Until all is complete, with as many kills as wanted; or until it seems stuck."""
        for _ in range(PASSES):
            self._forked("launcher", lambda: launch(self.plan, self.ledger))
            self._work()
            if all(run.history().turn == "finished" for run in self.runs):
                return

    def _work(self) -> None:
        """Has jobs run at once that have been submitted, and waits for them and what they left."""
        if self.plan.settings.cluster.kind == "local":
            lanes = sorted(self.ledger.root.glob("lane-*"))
            for request in lanes:
                request.unlink()
            jobs = [
                self._start("job", lambda slot=slot: self._lane(slot))
                for slot, _ in enumerate(lanes)
            ]
        else:
            waiting = self.slurm.queue()[:2]
            jobs = [self._start("job", lambda line=line: self._job(*line)) for line in waiting]
        for process in jobs:
            os.waitpid(process, 0)
        end = time.monotonic() + 60
        while any(run.running() for run in self.runs) and time.monotonic() < end:
            time.sleep(0.01)
        if self.plan.settings.cluster.kind == "slurm":
            # One that was killed is put back by Slurm, or not: its node failed, or it did.
            kept = [line for line in waiting if self.draw.random() < 0.5]
            self.slurm.set_queue(kept + self.slurm.queue()[len(waiting) :])

    def _job(self, number: str, status: str, reason: str, name: str) -> None:
        array, task = number.split("_")
        os.environ.update(
            SLURM_JOB_ID="9", SLURM_ARRAY_JOB_ID=array, SLURM_ARRAY_TASK_ID=task, SLURM_PROCID="0"
        )
        slurm.work(str(self.ledger.root), name)

    def _lane(self, slot: int) -> None:
        request = self.runs[0].history().request
        assert request is not None
        lane.CODE = self.ledger.snapshots / request["snapshot"]
        lane.work(str(self.ledger.root), slot)

    def _forked(self, kind: str, action: Callable[[], object]) -> None:
        os.waitpid(self._start(kind, action), 0)

    def _start(self, kind: str, action: Callable[[], object]) -> int:
        """Does it in a process of its own, which is killed if kills are left."""
        spare = sum(self.kills().values()) < self.wanted
        plan = Plan.drawn(self.draw, kind, self.log) if spare and self.draw.random() < 0.8 else None
        process = os.fork()
        if process:
            return process
        submit._start_lane = lambda ledger, cluster, slot, code: (  # type: ignore[assignment]
            self.ledger.root / f"lane-{slot}"
        ).touch()
        status = 1
        with suppress(BaseException):
            if plan:
                Killer(plan).arm()
            try:
                action()
                status = 0
            except BaseException:
                (self.ledger.root / "errors").open("a").write(traceback.format_exc())
        os._exit(status)

    def errors(self) -> str:
        """What processes ended with that were not killed."""
        path = self.ledger.root / "errors"
        return path.read_text() if path.exists() else ""

    def counts(self) -> dict[str, int]:
        """What must be 0."""
        run_ids = [run.run_id for run in self.runs]
        sync(self.ledger, run_ids)
        store = open_store(self.ledger, Tracking())
        logged = read_curves(store, run_ids, ("eval/pass_rate",), "flops")
        counts = Counter(twice=0, lost=0, doubled=0, stuck=0)
        expected = [
            (step, 1e6 * step, 0.2 + 0.6 * step / (step + 20)) for step in range(0, STEPS + 1, 5)
        ]
        for run in self.runs:
            counts["stuck"] += run.result() is None or run.history().turn != "finished"
            counts["twice"] += _trained_twice(run)
            for curve in (run.points(), logged.get(run.run_id, [])):
                points = Counter(eval_points(curve))
                counts["lost"] += sum(point not in points for point in expected)
                counts["doubled"] += sum((points - Counter(expected)).values())
        entries = store.client.search_runs([store.experiment_id])
        counts["doubled"] += len(entries) - len(
            {item.data.tags["shortlist.run_id"] for item in entries}
        )
        return dict(counts)


def _trained_twice(run: RunFiles) -> bool:
    """Whether it was trained again when it was done, or by two processes at once."""
    attempts = [point["attempt"] for point in run.points_since(0)[0]]
    done = run.result()
    last = max(
        (item["attempt"] for item in run.history().events if item["event"] == "started"), default=0
    )
    again = done is not None and last > done["attempt"]
    return again or attempts != sorted(attempts)
