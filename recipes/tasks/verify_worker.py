"""The process behind `recipes.tasks.verify`: judges what it reads, line by line, until it is over.

A line in is ``[completion, answer]``, a line out ``true``, ``false``, or ``null`` where the answer
itself is not mathematics; all JSON. math-verify's own limits raise an exception from a signal,
which needs the main thread, and comes only once C code returns: a number such as 9^(9^9) does not.
So the timer's signal keeps its default action, which ends this process. CPU time is counted, so
that verdicts do not depend on what else the machine does.
"""

from __future__ import annotations

import json
import logging
import resource
import signal
import sys

from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

MEMORY_BYTES = 4 << 30


def judge(completion: str, answer: str) -> bool | None:
    """Whether two texts hold the same mathematics; a boxed answer goes before any other."""
    latex = LatexExtractionConfig(boxed_match_priority=0)
    expected = parse(f"\\boxed{{{answer}}}", [latex], parsing_timeout=None)
    if not expected:
        return None
    given = parse(completion, [latex, ExprExtractionConfig()], parsing_timeout=None)
    return bool(verify(expected, given, timeout_seconds=None))


def main(seconds: float) -> None:
    """Answers until standard input ends, or an answer takes more than `seconds` of CPU time."""
    logging.disable()  # math-verify warns that it is not told a limit
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    out, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        signal.setitimer(signal.ITIMER_PROF, seconds)
        try:
            verdict = judge(*json.loads(line))
        except MemoryError:
            verdict = False
        signal.setitimer(signal.ITIMER_PROF, 0)
        out.write(f"{json.dumps(verdict)}\n")
        out.flush()


if __name__ == "__main__":
    main(float(sys.argv[1]))
