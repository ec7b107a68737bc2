"""Equality as mathematics, by math-verify, in a process of its own that can be ended."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import weakref
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from recipes.config import ConfigError

WORKER = Path(__file__).with_name("verify_worker.py")


class MathVerifier:
    """``verifier(completion, answer)``: 1.0 or 0.0, or None where the answer is not mathematics.

    A completion that takes more than `seconds` of CPU time (math-verify's default: 5), or 4 GiB,
    to judge is wrong: its process ends, and the next completion gets a new one. Any thread may
    call it, one at a time.

    Raises:
        ConfigError: math-verify is not installed.
        RuntimeError: from a call, if the process ended in another way.
    """

    def __init__(self, seconds: float = 5) -> None:
        if find_spec("math_verify") is None:
            allowed = "exact, without math-verify (pip install 'shortlist[tasks]')"
            raise ConfigError("task.verifier", "math", allowed)
        self._seconds = seconds
        self._process: subprocess.Popen[str] | None = None

    def __call__(self, completion: str, answer: str) -> float | None:
        """Judges one completion."""
        if self._process is None:
            self._process = _start(self._seconds)
            weakref.finalize(self, _end, self._process)
        process = self._process
        assert process.stdin
        assert process.stdout
        with suppress(BrokenPipeError):
            process.stdin.write(f"{json.dumps([completion, answer])}\n")
            process.stdin.flush()
        verdict = process.stdout.readline()
        if verdict:
            right: bool | None = json.loads(verdict)
            return None if right is None else float(right)
        self._process = None
        _end(process)
        if process.returncode != -signal.SIGPROF:
            raise RuntimeError(f"math-verify's process ended with {process.returncode}")
        return 0.0


def _start(seconds: float) -> subprocess.Popen[str]:
    # Without its folder on the path, where there is a `gym.py`.
    return subprocess.Popen(
        [sys.executable, "-P", str(WORKER), str(seconds)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def _end(process: subprocess.Popen[str]) -> None:
    """Closes its input, at which it ends, if it has not."""
    with suppress(BrokenPipeError, ValueError):  # it died with input unread, or was ended before
        process.communicate()
