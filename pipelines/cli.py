"""The ``shortlist`` command: parses, dispatches, and turns errors into one line and a status."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from pipelines.errors import ServiceError, ShortlistError, UserError
from pipelines.redact import redacted, withheld

Handler = Callable[[argparse.Namespace], int]


@dataclass(frozen=True)
class Command:
    """One command: its line in the help, its arguments, and the function in `commands` it calls."""

    help: str
    arguments: Callable[[argparse.ArgumentParser], None]


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(f"{self.prog}: {message} (see {self.prog} --help)")


def _sweep(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("sweep", metavar="SWEEP", help="a file in conf/sweep/ or in --config-dir")


def _overrides(parser: argparse.ArgumentParser) -> None:
    help_text = "Hydra overrides, such as budget=small optimizer.lr=1e-3 sweep.seeds=[0,1]"
    parser.add_argument("overrides", metavar="OVERRIDE", nargs="*", help=help_text)


def _sweep_overrides(parser: argparse.ArgumentParser) -> None:
    _sweep(parser)
    _overrides(parser)


def _race(parser: argparse.ArgumentParser) -> None:
    _launch(parser)
    _metric(parser)


def _launch(parser: argparse.ArgumentParser) -> None:
    _sweep_overrides(parser)
    _follow(parser)


def _follow(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--follow", action="store_true", help="show progress until all is done")


def _target(parser: argparse.ArgumentParser, otherwise: str = "") -> None:
    """Which runs a command is about; `otherwise`: what it is about without a name, or nothing."""
    help_text = "a sweep, or a run by its id or the beginning of it" + otherwise
    parser.add_argument("name", metavar="SWEEP|RUN", nargs="?", help=help_text)
    parser.add_argument("--all", action="store_true", help="every run under the root")
    _root(parser)


def _some(parser: argparse.ArgumentParser) -> None:
    _target(parser, otherwise="; default: all")


def _retry(parser: argparse.ArgumentParser) -> None:
    _target(parser)
    _overrides(parser)
    _follow(parser)


def _cancel(parser: argparse.ArgumentParser) -> None:
    _target(parser)
    why = "by a person, with `cancel`"
    parser.add_argument(
        "--why", default=why, metavar="TEXT", help="kept with the runs (%(default)s)"
    )


def _logs(parser: argparse.ArgumentParser) -> None:
    _target(parser)
    parser.add_argument("-f", "--follow", action="store_true", help="go on until the runs end")
    help_text = "the last N lines of each (default: all of one run, 20 of several)"
    parser.add_argument("-n", "--lines", type=int, metavar="N", help=help_text)


def _root(parser: argparse.ArgumentParser) -> None:
    default = Path(os.environ.get("SHORTLIST_ROOT", "outputs"))
    parser.add_argument("--root", type=Path, default=default, help="folder of runs (%(default)s)")


def _server(parser: argparse.ArgumentParser) -> None:
    _root(parser)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen at (%(default)s)")
    parser.add_argument("--port", type=int, default=5000, help="its port (%(default)s)")
    help_text = "database, postgresql://user@host/name; default: mlflow.db under the root"
    parser.add_argument("--store", metavar="ADDRESS", help=help_text)
    parser.add_argument("--workers", type=int, default=4, help="server processes (%(default)s)")


def _at(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--at", type=float, metavar="X", help="also order by forecast at compute X")


def _metric(parser: argparse.ArgumentParser) -> None:
    help_text = "pass rate to judge by, or the part of a mixture it is of; default: the sweep's"
    parser.add_argument("--metric", metavar="NAME", help=help_text)


def _judging(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--until", type=float, metavar="X", help="fit only points up to compute X")
    parser.add_argument(
        "--margin", type=float, default=0.02, help="smaller differences in A are none (%(default)s)"
    )
    parser.add_argument(
        "--margin-from-seeds", action="store_true", help="measure the margin where seeds repeat"
    )
    parser.add_argument(
        "--skip-below", type=float, metavar="X", help="leave out points below compute X"
    )
    parser.add_argument(
        "--no-pool", dest="pool", action="store_false", help="fit each recipe without the others"
    )


def _rank(parser: argparse.ArgumentParser) -> None:
    _sweep(parser)
    _root(parser)
    _at(parser)
    _judging(parser)
    parser.add_argument("--compute", metavar="AXIS", help="compute axis; default: the sweep's")
    _metric(parser)
    parser.add_argument(
        "--source",
        choices=("ledger", "mlflow"),
        default="ledger",
        help="of the curves (%(default)s)",
    )


def _fit(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("curves", type=Path, metavar="CURVES", help=".csv, .jsonl or .parquet")
    for name, default in (("group", "run"), ("x", "compute"), ("y", "reward")):
        parser.add_argument(f"--{name}", default=default, metavar="COLUMN", help="(%(default)s)")
    for name in ("stderr", "seed"):
        parser.add_argument(f"--{name}", metavar="COLUMN", help=f"default: {name}, where present")
    _at(parser)
    _judging(parser)
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="write the report there")


def _promote(parser: argparse.ArgumentParser) -> None:
    _launch(parser)
    _judging(parser)
    _metric(parser)
    parser.add_argument("--name", help="of the promotion (SWEEP-promoted)")
    flags = {
        "--dry-run": "print it all; write and launch nothing",
        "--force": "also where the evidence does not carry it",
        "--confirm-loo": "first the leave-one-out of the composed recipe, at a middle budget",
    }
    for flag, help_text in flags.items():
        parser.add_argument(flag, action="store_true", help=help_text)


def _verify(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("promotion", metavar="PROMOTION", help="a name given by promote")
    _root(parser)


COMMANDS = {
    "plan": Command("the runs a sweep would make, what each costs, what exists", _sweep_overrides),
    "launch": Command("submit what is missing", _launch),
    "race": Command("advance the runs worth advancing, stop those that cannot win", _race),
    "status": Command("state, progress and health of runs", _some),
    "logs": Command("what runs printed", _logs),
    "cancel": Command("stop runs: they save, and stay stopped until `retry`", _cancel),
    "retry": Command("submit what is missing, and what failed or was stopped", _retry),
    "rank": Command("fit, judge and order a sweep's choices; write the report", _rank),
    "promote": Command("a sweep's winner as a recipe and a forecast, launched large", _promote),
    "verify": Command("a promoted run against its forecast", _verify),
    "fit": Command("the same analysis on anyone's curves", _fit),
    "sync": Command("put into MLflow what could not be logged at the time", _some),
    "doctor": Command("checks versions, filesystem, GPU, Slurm and tracking store", _overrides),
    "server": Command("an MLflow server for a cluster, in the foreground", _server),
    "config": Command("the resolved configuration of one run", _overrides),
    "train": Command("one run, here, in the foreground", _overrides),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit status (0 done, 1 no, 2 bad input, 3 out of reach)."""
    _usable_output()
    words = [withheld(word) for word in (sys.argv[1:] if argv is None else argv)]
    if argv is None:
        sys.argv[1:] = words  # it is kept with the sweep
    debug = "--debug" in words
    try:
        return _dispatch([word for word in words if word != "--debug"])
    except KeyboardInterrupt:
        return _fail("interrupted; what was submitted goes on", 130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        if debug:
            raise
        known = _known(error)
        if known is None:
            kind = type(error).__name__
            return _fail(f"unexpected {kind}: {error} (--debug shows the traceback)", 1)
        return _fail(str(known), known.status)


def _usable_output() -> None:
    """A closed stream swallows, and one that knows ASCII only replaces, what it cannot take."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115  (for good)
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _known(error: Exception) -> ShortlistError | None:
    from recipes.config import ConfigError

    if isinstance(error, ShortlistError):
        return error
    # Looked up where it was loaded, if it was: importing it would import NumPy.
    curve_error = getattr(sys.modules.get("analysis.curves"), "CurveError", ConfigError)
    if isinstance(error, ConfigError | curve_error):
        return UserError(str(error))
    if isinstance(error, OSError):
        return ServiceError(
            f"filesystem: {error.strerror or error}: {error.filename or ''}".rstrip(": ")
        )
    return None


def _fail(message: str, status: int) -> int:
    line = " ".join(redacted(message).split())
    sys.stderr.write(f"shortlist: {line}\n")
    return status


def _dispatch(words: list[str]) -> int:
    if not words or words[0] in {"-h", "--help", "help"}:
        sys.stdout.write(_help())
        return 0 if words else 2
    if words[0] == "--version":
        from importlib.metadata import version

        sys.stdout.write(f"shortlist {version('shortlist')}\n")
        return 0
    name, *rest = words
    if name not in COMMANDS:
        raise UserError(f"command: got {name!r}, allowed: {' | '.join(COMMANDS)}")
    arguments = _parser(name).parse_intermixed_args(rest)
    from pipelines import commands

    handler: Handler = getattr(commands, name)
    return handler(arguments)


def _parser(name: str) -> argparse.ArgumentParser:
    command = COMMANDS[name]
    parser = _Parser(prog=f"shortlist {name}", description=command.help, allow_abbrev=False)
    command.arguments(parser)
    parser.add_argument("--json", action="store_true", help="one JSON document on standard output")
    parser.add_argument(
        "--config-dir", type=Path, action="append", default=[], help="a folder laid out like conf/"
    )
    # Read by main(), before anything can fail; here for the help.
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    return parser


def _help() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {command.help}" for name, command in COMMANDS.items()]
    return (
        "shortlist: find the RL design choices worth scaling.\n\n"
        "usage: shortlist COMMAND [--json] [--debug] ...   (shortlist COMMAND --help says more)\n\n"
        + "\n".join(lines)
        + "\n"
    )


if __name__ == "__main__":
    sys.exit(main())
