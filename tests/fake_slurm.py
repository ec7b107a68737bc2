"""Slurm's clients on paper: what sbatch takes stands in a file, which squeue shows.

They are shell scripts before all others on the path, so that what calls them is the real thing.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

CLIENTS = {
    "sbatch": r"""
for script; do :; done
cp "$script" last.sh
[ -e refuse ] && { cat refuse >&2; exit 1; }
name=$(sed -n "s/^#SBATCH --job-name=//p" "$script")
last=$(sed -n "s/^#SBATCH --array=0-\([0-9]*\)%.*/\1/p" "$script")
if [ -e room ] && [ $(($(wc -l < queue) + last)) -ge "$(cat room)" ]; then
  echo "sbatch: error: AssocMaxSubmitJobLimit" >&2
  echo "sbatch: error: Batch job submission failed: Job violates accounting/QOS policy" >&2
  exit 1
fi
number=$(($(cat next) + 1))
echo $number > next
sed -n "s/^#SBATCH --//p" "$script" | tr "\n" " " >> submitted; echo >> submitted
seq 0 "$last" | sed "s/.*/${number}_&|PENDING|Resources|$name/" >> queue
[ -e hang ] && exec sleep 60
echo $number
""",
    "squeue": r"""
echo squeue >> asked
[ -e down ] && exit 1
[ -e hang_squeue ] && exec sleep 60
cat queue
""",
    "scontrol": r"""
echo "scontrol $*" >> asked
[ -e down ] && exit 1
[ "$2" = config ] && cat limits
[ "$2" = job ] && cat job
exit 0
""",
}


class FakeSlurm:
    """What would be in a controller, and the clients that ask it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        binaries = folder / "bin"
        binaries.mkdir(parents=True)
        for name, text in CLIENTS.items():
            (binaries / name).write_text(f"#!/bin/sh\ncd {folder}\n{text}")
            (binaries / name).chmod(0o755)
        (binaries / "srun").symlink_to("/bin/true")
        self.write("queue", "")
        self.write("next", "0")
        self.limits()

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """Puts the clients before all others."""
        patch.setenv("PATH", f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}")

    def write(self, name: str, text: str = "") -> None:
        """Sets what a client reads: ``refuse``, ``room``, ``hang``, ``down``, ``job``."""
        (self.folder / name).write_text(text)

    def limits(self, array: int = 1001, jobs: int = 10000) -> None:
        """Sets what a cluster takes."""
        self.write("limits", f"MaxArraySize            = {array}\nMaxJobCount = {jobs}\n")

    def queue(self) -> list[list[str]]:
        """(number, state, reason, name) of each job."""
        return [line.split("|") for line in (self.folder / "queue").read_text().splitlines()]

    def set_queue(self, jobs: list[list[str]]) -> None:
        """Replaces the queue."""
        self.write("queue", "".join("|".join(job) + "\n" for job in jobs))

    def submitted(self) -> list[dict[str, str]]:
        """The options of each array that was taken."""
        path = self.folder / "submitted"
        lines = path.read_text().splitlines() if path.exists() else []
        return [dict(word.partition("=")[::2] for word in line.split()) for line in lines]

    def script(self) -> str:
        """What sbatch was given last."""
        return (self.folder / "last.sh").read_text()

    def asked(self) -> list[str]:
        """What was asked so far."""
        path = self.folder / "asked"
        return path.read_text().splitlines() if path.exists() else []
