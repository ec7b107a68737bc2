"""A private PostgreSQL: a fresh cluster in a folder of its own, on loopback, with a password."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import psycopg

START_TIMEOUT_S = 60


def binaries() -> Path | None:
    """Where PostgreSQL's programs are: Debian keeps each version's in a folder of its own."""
    found = shutil.which("initdb")
    if found:
        return Path(found).parent
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return versions[-1].parent if versions else None


def free_port() -> int:
    """A port of loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class PrivatePostgres:
    """Starts when entered, and is gone afterwards. `uri` has the password in it."""

    def __init__(self) -> None:
        programs = binaries()
        assert programs is not None
        self._programs = programs
        self.folder = Path(tempfile.mkdtemp(prefix="postgres-"))
        self.port = free_port()
        self.password = "s3cret-of-postgres"
        self.uri = f"postgresql://shortlist:{self.password}@127.0.0.1:{self.port}/postgres"
        self._process: subprocess.Popen[bytes] | None = None
        # It refuses to run as root.
        as_postgres = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
        self._user = as_postgres if os.geteuid() == 0 else []

    def __enter__(self) -> PrivatePostgres:
        secret = self.folder / "password"
        secret.write_text(self.password)
        if self._user:
            for path in (self.folder, secret):
                shutil.chown(path, "postgres", "postgres")
        data = self.folder / "data"
        make = ["--auth=scram-sha-256", "--username=shortlist", f"--pwfile={secret}", "--no-sync"]
        self._run("initdb", *make, "--pgdata", str(data))
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        shutil.rmtree(self.folder)

    def start(self) -> None:
        """Starts the server, and waits until it answers."""
        listen = [f"-p{self.port}", "-clisten_addresses=127.0.0.1", f"-k{self.folder}"]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *self._command("postgres"),
                    "-D",
                    str(self.folder / "data"),
                    *listen,
                    "-cfsync=off",
                ],
                stdout=log,
                stderr=log,
                cwd=self.folder,
            )
        end = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                psycopg.connect(self.uri).close()
            except psycopg.OperationalError:
                if time.monotonic() > end:
                    self.stop()
                    raise
                time.sleep(0.1)
            else:
                return

    def stop(self) -> None:
        """Stops the server; what it was asked to do is undone or done."""
        if self._process:
            self._process.send_signal(signal.SIGINT)  # PostgreSQL's "fast" shutdown
            self._process.wait(30)
            self._process = None

    def _command(self, program: str) -> list[str]:
        return [*self._user, str(self._programs / program)]

    def _run(self, program: str, *arguments: str) -> None:
        command = [*self._command(program), *arguments]
        subprocess.run(command, check=True, capture_output=True, cwd=self.folder)
