from __future__ import annotations

import io
import os
import sys
import threading
from pathlib import Path

import pytest

from pipelines import files, logs
from pipelines.ledger import Ledger, RunFiles
from tests.fakes import wait
from tests.pipelines.test_status import ROW


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path)


@pytest.fixture
def run(ledger: Ledger) -> RunFiles:
    made = ledger.run("abc")
    made.create({})
    made.event("planned", cluster="local", budget=ROW["budget"], sweep="a")
    made.event("started", attempt=1)
    return made


def test_log_is_followed_until_the_run_ends(
    ledger: Ledger,
    run: RunFiles,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = io.StringIO()  # pytest's own loses what another thread writes while it is read
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(logs, "POLL_S", 0.02)
    run.log(1).write_text("one\ntwo\nthree\n")
    held = files.lock(run.lock_file)
    assert held is not None
    followed = threading.Thread(target=logs.follow, args=(ledger, [ROW], 2))
    followed.start()
    for seen, line in (("three\n", "four\n"), ("four\n", "five\n")):
        wait(lambda seen=seen: out.getvalue().endswith(seen))
        with run.log(1).open("a") as file:
            file.write(line)
    run.event("failed", attempt=1, error="no")
    os.close(held)
    followed.join(300)
    assert not followed.is_alive()
    assert out.getvalue() == "==> abc attempt-1.log <==\ntwo\nthree\nfour\nfive\n"


def test_job_that_never_came_to_training_shows_what_slurm_has(
    ledger: Ledger, run: RunFiles
) -> None:
    run.event("submitted", job="7_1")
    assert logs.text_of(logs.log_of(ledger, run)) == ""
    ledger.submissions.mkdir()
    (ledger.submissions / "7_1_0_log.err").write_text("srun: error: no such image\n")
    (ledger.submissions / "7_10_0_log.err").write_text("another's\n")
    assert logs.text_of(logs.log_of(ledger, run)) == "srun: error: no such image\n"
