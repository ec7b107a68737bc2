from __future__ import annotations

import socket
from configparser import ConfigParser
from pathlib import Path

import pytest

from pipelines.cli import main
from pipelines.errors import UserError
from pipelines.ledger import Ledger
from pipelines.server import prepare

LOGIN = {"MLFLOW_TRACKING_USERNAME": "me", "MLFLOW_TRACKING_PASSWORD": "long enough, this one"}


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path)


@pytest.mark.parametrize("host", ["0.0.0.0", "10.1.2.3", "login1"])
def test_server_open_to_others_wants_a_password(
    host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_PASSWORD", raising=False)
    assert main(["server", "--host", host, "--root", str(tmp_path)]) == 2
    told = capsys.readouterr().err.splitlines()[-1]
    assert told.startswith(f"shortlist: --host: got {host} without a password, allowed: MLFLOW_")
    assert not list(tmp_path.iterdir())


def test_short_password_is_refused_here_too(ledger: Ledger) -> None:
    with pytest.raises(UserError, match="12 characters or more"):
        prepare(ledger, "127.0.0.1", 5000, None, 1, {"MLFLOW_TRACKING_PASSWORD": "elevenchars"})


def test_server_on_loopback_serves_the_store_of_the_root(ledger: Ledger) -> None:
    command, environment = prepare(ledger, "127.0.0.1", 5001, None, 3, {})
    assert command[1:] == [
        "-m",
        "mlflow",
        "server",
        "--host",
        "127.0.0.1",
        "--port",
        "5001",
        "--workers",
        "3",
    ]
    assert environment["MLFLOW_BACKEND_STORE_URI"] == f"sqlite:///{ledger.store}"
    assert environment["MLFLOW_DISABLE_TELEMETRY"] == "true"
    assert "MLFLOW_AUTH_ADMIN_PASSWORD" not in environment


def test_secrets_are_in_the_environment_alone(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGPASSWORD", "")
    store = "postgresql://me:s3cret@db/mlflow"
    command, environment = prepare(ledger, "0.0.0.0", 5000, store, 1, LOGIN)
    assert environment["PGPASSWORD"] == "s3cret"
    assert environment["MLFLOW_BACKEND_STORE_URI"] == "postgresql://me@db/mlflow"
    assert environment["MLFLOW_AUTH_ADMIN_USERNAME"] == "me"
    assert environment["MLFLOW_AUTH_ADMIN_PASSWORD"] == LOGIN["MLFLOW_TRACKING_PASSWORD"]
    assert len(environment["MLFLOW_FLASK_SERVER_SECRET_KEY"]) == 64
    assert f"{socket.gethostname()}:*" in environment["MLFLOW_SERVER_ALLOWED_HOSTS"].split(",")
    assert command[-2:] == ["--app-name", "basic-auth"]
    config = ConfigParser()
    config.read(environment["MLFLOW_AUTH_CONFIG_PATH"])
    assert config["mlflow"]["database_uri"] == "postgresql://me@db/mlflow"
    for path in ledger.root.rglob("*"):
        assert path.is_dir() or "s3cret" not in path.read_text()


def test_password_that_would_be_written_down_is_refused(ledger: Ledger) -> None:
    with pytest.raises(UserError, match=r"--store: got 'mysql://db/x', allowed: an") as caught:
        prepare(ledger, "0.0.0.0", 5000, "mysql://me:s3cret@db/x", 1, LOGIN)
    assert "s3cret" not in str(caught.value)
    assert not ledger.server.exists()


def test_root_that_the_server_makes_is_private(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "new")
    prepare(ledger, "127.0.0.1", 5000, None, 1, {})
    assert ledger.root.stat().st_mode & 0o777 == 0o700
