from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.services.postgres import PrivatePostgres, binaries, free_port

START_TIMEOUT_S = 180


class Server:
    """`shortlist server` on a database of its own; `address` has no password in it."""

    def __init__(self, root: Path, database: PrivatePostgres) -> None:
        self.root = root
        self.database = database
        self.name, self.password = "me", "s3cret-of-mlflow"
        self.port = free_port()
        self.address = f"http://127.0.0.1:{self.port}"
        self.log = root / "server.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts it, and waits until it answers."""
        command = [sys.executable, "-m", "pipelines.cli", "server", "--port", str(self.port)]
        command += ["--root", str(self.root), "--workers", "2", "--store", self.database.uri]
        login = {
            "MLFLOW_TRACKING_USERNAME": self.name,
            "MLFLOW_TRACKING_PASSWORD": self.password,
        }
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, env={**os.environ, **login}
            )
        end = time.monotonic() + START_TIMEOUT_S
        while not self.answers():
            assert self._process.poll() is None, self.log.read_text()
            assert time.monotonic() < end, self.log.read_text()
            time.sleep(0.2)

    def answers(self) -> bool:
        try:
            urllib.request.urlopen(f"{self.address}/health", timeout=5).close()
        except OSError:
            return False
        return True

    def stop(self) -> None:
        if self._process:
            self._process.terminate()
            self._process.wait(60)
            self._process = None


@pytest.fixture(scope="session")
def database() -> Iterator[PrivatePostgres]:
    if binaries() is None:
        pytest.skip("PostgreSQL is not installed (make test-services installs it)")
    with PrivatePostgres() as made:
        yield made


@pytest.fixture(scope="session")
def server(database: PrivatePostgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    made = Server(tmp_path_factory.mktemp("server"), database)
    try:
        made.start()
        yield made
    finally:
        made.stop()


@pytest.fixture
def login(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The password in the environment, where clients and the jobs they start find it."""
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", server.name)
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", server.password)
