"""Becomes an MLflow server that a whole cluster logs to: MLflow's own, safe by default."""

from __future__ import annotations

import os
import secrets
import socket
import sys
from collections.abc import Mapping
from typing import NoReturn

from pipelines import files
from pipelines.errors import UserError
from pipelines.ledger import PRIVATE, Ledger
from pipelines.redact import WITH_PASSWORD, shown, withheld

LOOPBACK = ("127.0.0.1", "localhost", "::1")
PRIVATE_NETWORKS = ("10.*", "192.168.*", *(f"172.{number}.*" for number in range(16, 32)))
SHORTEST_PASSWORD = 12
"""MLflow's own rule (mlflow/utils/validation.py)."""
PASSWORD_HELP = (
    f"MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD ({SHORTEST_PASSWORD} characters or "
    "more) in the environment, here and where runs are launched"
)
AUTH = """# Written by `shortlist server`. Passwords are in the database, hashed.
[mlflow]
default_permission = READ
database_uri = {database}
# Hashing at every request is slow; a changed password counts after a minute.
auth_cache_ttl_seconds = 60
"""


def serve(ledger: Ledger, host: str, port: int, store: str | None, workers: int) -> NoReturn:
    """Becomes the server.

    Raises:
        UserError: It would be open to others, without a password.
    """
    command, environment = prepare(ledger, host, port, store, workers, os.environ)
    os.dup2(2, 1)  # what it prints is no answer
    os.execve(sys.executable, command, environment)


def prepare(
    ledger: Ledger,
    host: str,
    port: int,
    store: str | None,
    workers: int,
    environment: Mapping[str, str],
) -> tuple[list[str], dict[str, str]]:
    """The command and environment of a server; secrets are in the environment alone.

    Args:
        ledger: Where its own files go, and the store if there is no other.
        host: Address to listen at.
        port: Its port.
        store: Database address; None: ``MLFLOW_BACKEND_STORE_URI``, or the store of the ledger.
        workers: Server processes.
        environment: Of the caller.

    Raises:
        UserError: It would be open to others, without a password.
    """
    password = environment.get("MLFLOW_TRACKING_PASSWORD", "")
    if (host not in LOOPBACK and not password) or 0 < len(password) < SHORTEST_PASSWORD:
        raise UserError(f"--host: got {host} without a password, allowed: {PASSWORD_HELP}")
    given = store or environment.get("MLFLOW_BACKEND_STORE_URI") or f"sqlite:///{ledger.store}"
    store = withheld(given)
    if WITH_PASSWORD.search(store):  # its driver reads no environment, and it would be written down
        raise UserError(f"--store: got {shown(store)!r}, allowed: an address without a password")
    ledger.root.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
    ledger.server.mkdir(exist_ok=True)
    name = socket.gethostname()
    names = dict.fromkeys([*LOOPBACK, host, name, socket.getfqdn()])
    allowed = [*(item for name in names for item in (name, f"{name}:*")), *PRIVATE_NETWORKS]
    made = {
        **environment,
        **{key: os.environ[key] for key in ("PGPASSWORD",) if key in os.environ},
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # of language model applications
        "MLFLOW_BACKEND_STORE_URI": store,
        "MLFLOW_ARTIFACTS_DESTINATION": str(ledger.artifacts),
        "MLFLOW_SERVER_ALLOWED_HOSTS": ",".join(allowed),
    }
    command = [sys.executable, "-m", "mlflow", "server", "--host", host, "--port", str(port)]
    command += ["--workers", str(workers)]
    if password:
        database = f"sqlite:///{ledger.server / 'users.db'}" if _is_sqlite(store) else store
        config = ledger.server / "auth.ini"
        files.write(config, AUTH.format(database=database.replace("%", "%%")))
        command += ["--app-name", "basic-auth"]
        made |= {
            "MLFLOW_AUTH_CONFIG_PATH": str(config),
            "MLFLOW_AUTH_ADMIN_USERNAME": environment.get("MLFLOW_TRACKING_USERNAME", "admin"),
            "MLFLOW_AUTH_ADMIN_PASSWORD": password,
            "MLFLOW_FLASK_SERVER_SECRET_KEY": secrets.token_hex(32),
        }
    return command, made


def _is_sqlite(store: str) -> bool:
    return store.startswith("sqlite")
