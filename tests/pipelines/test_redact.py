from __future__ import annotations

import os
from pathlib import Path

import pytest

from pipelines import launch
from pipelines.cli import main
from pipelines.config import Tracking
from pipelines.ledger import Ledger
from pipelines.plan import single
from pipelines.redact import redacted, shown, withheld
from recipes.config import ConfigError
from tests.fakes import make_plan, tiny_config

NAMES = ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD", "PGPASSWORD")


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.setenv(name, "")  # put back after the test


@pytest.mark.parametrize(
    ("given", "kept", "login"),
    [
        ("http://me:s3cret@host:5000/x", "http://host:5000/x", ("me", "s3cret", "")),
        ("https://a%40b:p%2Fw@host", "https://host", ("a@b", "p/w", "")),
        ("http://me:p@ss/word@host", "http://host", ("me", "p@ss/word", "")),
        ("postgresql://me:s3cret@host/db", "postgresql://me@host/db", ("", "", "s3cret")),
        ("postgresql+psycopg://me:x@h/db", "postgresql+psycopg://me@h/db", ("", "", "x")),
        ("tracking.uri=http://me:pw@host", "tracking.uri=http://host", ("me", "pw", "")),
        ("sqlite:////a/b@c.db", "sqlite:////a/b@c.db", ("", "", "")),
        ("http://host:5000", "http://host:5000", ("", "", "")),
    ],
)
def test_password_of_an_address_goes_to_the_environment(
    given: str, kept: str, login: tuple[str, str, str]
) -> None:
    assert withheld(given) == kept
    assert tuple(os.environ[name] for name in NAMES) == login


def test_address_whose_driver_reads_no_environment_is_refused_without_showing_it() -> None:
    with pytest.raises(ConfigError) as caught:
        Tracking("mysql://me:s3cret@host/db")
    assert str(caught.value).startswith("tracking.uri: got 'mysql://host/db', allowed: an address")


def test_values_of_the_environment_are_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_0123456789")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hf_0123456789-and-more")
    monkeypatch.setenv("SHORT_TOKEN", "1")
    monkeypatch.setenv("HARMLESS", "a harmless value")
    text = "hf_0123456789-and-more hf_0123456789 1 a harmless value http://me:pw@host"
    assert redacted(text) == "*** *** 1 a harmless value http://host"


def test_nothing_that_a_launch_writes_has_a_secret(
    root: Path, ledger: Ledger, fake_jobs: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch.submit, "top_up", lambda *_: 0)
    monkeypatch.setattr(launch, "prepare", lambda *_: {"cluster": "local", "threads": 1})
    monkeypatch.setenv("WANDB_API_KEY", "0123456789abcdef")
    monkeypatch.setattr("sys.argv", ["shortlist", "launch", "x=0123456789abcdef"])
    tracking = Tracking("http://me:s3cret-of-mine@127.0.0.1:9")
    plan = make_plan(root, [tiny_config()], tracking=tracking)
    launch.launch(plan, ledger)
    manifest = ledger.sweep(plan.sweep).manifest()
    assert manifest is not None
    assert manifest["tracking"]["uri"] == "http://127.0.0.1:9"
    for path in root.rglob("*"):
        if path.is_file():
            assert b"s3cret-of-mine" not in path.read_bytes(), path
            assert b"0123456789abcdef" not in path.read_bytes(), path


@pytest.mark.parametrize(
    ("override", "name"),
    [
        ("cluster.setup=['module load x','export A=0123456789abcdef']", "cluster.setup.1"),
        ("cluster.setup=['export A=ftp://me:0123456789abcdef@host']", "cluster.setup.0"),
        ("+cluster.extra.comment=0123456789abcdef", "cluster.extra.comment"),
        ("cluster.container='run --env A=0123456789abcdef'", "cluster.container"),
        ("cluster.srun=['--export=A=0123456789abcdef']", "cluster.srun.0"),
        ("+task.options.token=0123456789abcdef", "task.options.token"),
    ],
)
def test_secret_in_a_configuration_is_refused_without_showing_it(
    override: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "0123456789abcdef")
    with pytest.raises(ConfigError) as caught:
        single(["cluster=slurm", override])
    told = str(caught.value)
    assert told.startswith(f"{name}: got ")
    assert "allowed: no secrets: jobs inherit" in told
    assert "0123456789abcdef" not in told


def test_command_line_does_not_keep_a_password(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["shortlist", "config", "tracking.uri=http://me:s3cret@host:5000"]
    monkeypatch.setattr("sys.argv", words)
    assert main() == 0
    assert "uri: http://host:5000" in capsys.readouterr().out
    assert words == ["shortlist", "config", "tracking.uri=http://host:5000"]
    assert os.environ["MLFLOW_TRACKING_PASSWORD"] == "s3cret"


def test_addresses_are_shown_without_their_credentials() -> None:
    assert shown("postgresql://me:se/c@ret@host/db") == "postgresql://host/db"
    assert shown("sqlite:////a/b@c.db") == "sqlite:////a/b@c.db"
