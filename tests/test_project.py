"""The project as a whole: every configuration file, what is imported when, and the wheel."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from pipelines.compose import CONF, GROUPS, Base, Composer, changed, schema
from pipelines.config import Settings
from pipelines.plan import plan
from recipes.config import AXES

REPOSITORY = Path(__file__).resolve().parents[1]
OPTIONS = [(group, path.stem) for group in GROUPS for path in sorted((CONF / group).glob("*.yaml"))]
SWEEPS = sorted(path.stem for path in (CONF / "sweep").glob("*.yaml"))
HEAVY = ("torch", "transformers", "trl", "datasets")


THINKS = {"task.end_of_thinking": "#"}
"""Needed by length=interrupt."""


@pytest.fixture(scope="module")
def composer() -> Composer:
    return Composer()


@pytest.fixture(scope="module")
def base(composer: Composer) -> Base:
    return composer.base([])


@pytest.mark.parametrize(("group", "option"), [item for item in OPTIONS if item[0] in AXES])
def test_every_choice_composes(group: str, option: str, composer: Composer, base: Base) -> None:
    nodes, values = {group: composer.choice(group, option)}, dict(THINKS)
    if group == "task" and not option.startswith("digits"):
        nodes["model"] = composer.choice("model", "hf")
        values |= {"task.dataset": "org/name"} if option == "hub" else {}
    assert isinstance(changed(base, nodes, values), Settings)


@pytest.mark.parametrize(("group", "option"), [item for item in OPTIONS if item[0] not in AXES])
def test_every_other_option_composes(group: str, option: str, composer: Composer) -> None:
    found = composer.base([f"{group}={option}", "task.end_of_thinking='#'"])
    assert found.choices[group] == option
    schema(Settings, found.config)


@pytest.mark.parametrize("sweep", SWEEPS)
def test_every_sweep_plans(sweep: str) -> None:
    runs = plan(sweep).runs
    assert len({run.run_id for run in runs}) == len(runs) > 0


def test_there_is_a_choice_in_every_group() -> None:
    assert {group for group, _ in OPTIONS} == set(GROUPS)
    assert "demo" in SWEEPS


def loaded(code: str, *arguments: str) -> set[str]:
    """The heavy modules in memory after `code`, in a fresh interpreter."""
    watch = (*HEAVY, "mlflow", "optuna", "submitit")
    tail = f"\nimport sys; print('\\n' + ' '.join(n for n in {watch!r} if n in sys.modules))"
    command = [sys.executable, "-c", code + tail, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize("command", ["plan demo", "status demo", "rank demo"])
def test_commands_that_only_read_import_no_torch(command: str, tmp_path: Path) -> None:
    where = f"root={tmp_path}" if command.startswith("plan") else f"--root={tmp_path}"
    code = f"from pipelines.cli import main; main({command.split()!r} + [{where!r}])"
    assert not loaded(code) & set(HEAVY)


def test_fit_imports_neither_torch_nor_mlflow(tmp_path: Path) -> None:
    rows = "\n".join(f"a,{c},{0.2 + 0.4 / (1 + 200 / c)}" for c in range(50, 1000, 50))
    (tmp_path / "c.csv").write_text("run,compute,reward\n" + rows)
    code = f"from pipelines.cli import main; assert main(['fit', {str(tmp_path / 'c.csv')!r}]) == 0"
    assert not loaded(code)


def test_planning_and_status_leave_mlflow_and_submitit_alone(tmp_path: Path) -> None:
    code = f"from pipelines.cli import main; main(['plan', 'demo', 'root={tmp_path}'])"
    assert not loaded(code)


def cpu_seconds(*command: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, capture_output=True, cwd=REPOSITORY)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_help_is_light() -> None:
    program = [sys.executable, "-m", "pipelines.cli", "--help"]
    bare = min(cpu_seconds(sys.executable, "-c", "pass") for _ in range(3))
    assert min(cpu_seconds(*program) for _ in range(3)) - bare < 0.5


@pytest.mark.parametrize("output", [">&-", "| head -1", "2>&-"])
def test_an_output_that_closes_is_no_error(output: str) -> None:
    line = f"{sys.executable} -m pipelines.cli config {output}; echo ${{PIPESTATUS[0]}} >&9"
    command = ["bash", "-c", f"exec 9>&1; {line}"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY, check=True)
    assert "unexpected" not in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout.splitlines()[-1] == "0"


def test_an_output_that_knows_ascii_only_gets_what_it_can(tmp_path: Path) -> None:
    rows = "\n".join(f"a,{c}e15,{0.2 + 0.4 / (1 + 200 / c)}" for c in range(50, 1000, 50))
    (tmp_path / "c.csv").write_text("run,compute,reward\n" + rows)
    program = [sys.executable, "-m", "pipelines.cli", "fit", str(tmp_path / "c.csv")]
    environment = {"PATH": os.environ["PATH"], "LC_ALL": "C", "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(
        program, capture_output=True, text=True, cwd=REPOSITORY, env=environment, check=True
    )
    assert "a" in done.stdout.splitlines()[1].split()


@pytest.mark.slow
def test_the_wheel_holds_the_code_and_its_configuration(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "build", "--wheel", "--outdir", str(tmp_path), str(REPOSITORY)]
    subprocess.run(build, check=True, capture_output=True)
    wheel = next(tmp_path.glob("*.whl"))
    names = set(zipfile.ZipFile(wheel).namelist())
    wanted = [*CONF.rglob("*.yaml"), *(REPOSITORY / "analysis").glob("*.*")]
    assert {str(path.relative_to(REPOSITORY)) for path in wanted} <= names
    code = f"import sys; sys.path.insert(0, {str(wheel)!r}); import recipes.config"
    subprocess.run([sys.executable, "-I", "-c", code], check=True)
