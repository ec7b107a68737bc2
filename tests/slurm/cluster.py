"""A private Slurm cluster: a controller and a few virtual nodes here, without accounting.

Everything is in one folder, on ports of its own; it is stopped by the ids of the processes started.
Needs Debian's ``slurm-wlm`` and ``munge``.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path

NEEDED = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scontrol")
CLIENT_TIMEOUT_S = 20
START_TIMEOUT_S = 30
CONFIGURATION = """
ClusterName=shortlist
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
ReturnToService=2
SlurmdTimeout=15
InactiveLimit=0
KillWait=3
MinJobAge=600
WaitTime=0
JobRequeue=1
SchedulerParameters=batch_sched_delay=0,sched_interval=2,sched_min_interval=0,bf_interval=2
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
MailProg=/bin/true
AccountingStorageType=accounting_storage/none
NodeName={nodes} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports} CPUs=2 RealMemory=4000
PartitionName=low Nodes={nodes} Default=YES PriorityTier=1 PreemptMode=REQUEUE GraceTime=5
PartitionName=high Nodes={nodes} PriorityTier=10 PreemptMode=OFF
"""


def missing() -> list[str]:
    """Programs that are needed and not installed."""
    return [name for name in NEEDED if shutil.which(name) is None]


class PrivateCluster:
    """Starts when entered, and is gone afterwards."""

    def __init__(self, folder: Path, nodes: int = 3, first_port: int = 17301) -> None:
        self.folder = folder
        self.nodes = nodes
        self.first_port = first_port
        self.configuration = folder / "slurm.conf"
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> PrivateCluster:
        self._write()
        try:
            self._start_munge()
            self.start("slurmctld", "-D", "-f", str(self.configuration))
            for number in range(1, self.nodes + 1):
                self.start("slurmd", "-D", "-f", str(self.configuration), "-N", f"n{number}")
            self._wait()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._processes):
            process.terminate()
        for process in reversed(self._processes):
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(10)

    def start(self, *command: str) -> subprocess.Popen[bytes]:
        """Starts a daemon in the foreground; its output goes to a log in the folder."""
        with (self.folder / f"{command[0]}.out").open("ab") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, process_group=0)
        self._processes.append(process)
        return process

    def ask(self, *command: str) -> str:
        """What a Slurm client answers.

        Raises:
            subprocess.SubprocessError: It failed, or did not answer in time.
        """
        answer = subprocess.run(
            command,
            env={**os.environ, "SLURM_CONF": str(self.configuration)},
            capture_output=True,
            text=True,
            timeout=CLIENT_TIMEOUT_S,
            check=True,
        )
        return answer.stdout

    def _write(self) -> None:
        for name in ("state", *(f"spool-n{number}" for number in range(1, self.nodes + 1))):
            (self.folder / name).mkdir(parents=True)
        self.folder.chmod(0o755)
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        text = CONFIGURATION.format(
            host=socket.gethostname(),
            folder=self.folder,
            user="root" if os.getuid() == 0 else os.environ["USER"],
            controller_port=self.first_port,
            nodes=f"n[1-{self.nodes}]",
            ports=f"[{self.first_port + 1}-{self.first_port + self.nodes}]",
        )
        self.configuration.write_text(text)

    def _start_munge(self) -> None:
        files = {"socket": "sock", "key-file": "key", "log-file": "log", "pid-file": "pid"}
        options = [f"--{name}={self.folder}/munge.{end}" for name, end in files.items()]
        seed = f"--seed-file={self.folder}/munge.seed"
        self.start("munged", "--foreground", "--force", *options, seed)
        end = time.monotonic() + START_TIMEOUT_S
        while not (self.folder / "munge.sock").exists():
            assert time.monotonic() < end, (self.folder / "munged.out").read_text()
            time.sleep(0.05)

    def _wait(self) -> None:
        """Until every node takes jobs."""
        end = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < end:
            with suppress(subprocess.SubprocessError):
                states = self.ask("sinfo", "--noheader", "--Node", "--partition=low", "--format=%t")
                if states.split() == ["idle"] * self.nodes:
                    return
            time.sleep(0.1)
        logs = "\n".join(path.read_text() for path in self.folder.glob("slurm*.*"))
        raise TimeoutError(f"the cluster did not come up:\n{logs[-3000:]}")
