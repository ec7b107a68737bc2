"""A private Slurm cluster: a controller and a few virtual nodes here, with or without accounting.

Everything is in one folder, on free ports; it is stopped by the ids of the processes started.
Needs Debian's ``slurm-wlm`` and ``munge``; accounting also ``slurmdbd`` and ``mariadb-server``.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

NEEDED = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scontrol")
NEEDED_FOR_ACCOUNTING = ("slurmdbd", "mariadbd", "mariadb-install-db", "sacctmgr")
CLIENT_TIMEOUT_S = 20
START_TIMEOUT_S = 60
HOST = socket.gethostname()
CONFIGURATION = """
ClusterName={name}
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
GresTypes=gpu
SlurmdParameters=config_overrides
ReturnToService=2
SlurmdTimeout=15
InactiveLimit=0
KillWait=3
MinJobAge=600
WaitTime=0
JobRequeue=1
MaxArraySize=6
SchedulerParameters=batch_sched_delay=0,sched_interval=2,sched_min_interval=0,bf_interval=2
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
MailProg=/bin/true
PartitionName=low Nodes=ALL Default=YES PriorityTier=1 PreemptMode=REQUEUE GraceTime=5
PartitionName=high Nodes=ALL PriorityTier=10 PreemptMode=OFF
"""
NODE = """
NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=4 RealMemory=4000 Gres=gpu:2
"""
BARE = """
AccountingStorageType=accounting_storage/none
"""
ACCOUNTED = """
SlurmctldParameters=preempt_send_user_signal
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={accounting_port}
AccountingStoragePass={folder}/munge.sock
AccountingStorageTRES=gres/gpu
AccountingStorageEnforce=limits,qos
"""
ACCOUNTING = """
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
DbdHost={host}
DbdAddr=127.0.0.1
DbdPort={accounting_port}
SlurmUser={user}
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={database_port}
StorageUser={user}
StorageLoc=accounting
PidFile={folder}/slurmdbd.pid
LogFile={folder}/slurmdbd.log
"""
ACCOUNTS = (
    "add cluster {name}",
    "add qos few set MaxSubmitJobsPerUser=3",
    "add account us Description=us Organization=us",
    "add user {user} account=us QOS=normal,few DefaultQOS=normal",
)
"""What sacctmgr is told."""


def missing() -> list[str]:
    """Programs that are needed and not installed."""
    return [name for name in (*NEEDED, *NEEDED_FOR_ACCOUNTING) if shutil.which(name) is None]


def free_ports(count: int) -> list[int]:
    """So many ports that nobody listens on."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for opened in sockets:
            opened.bind(("127.0.0.1", 0))
        return [opened.getsockname()[1] for opened in sockets]


def wait(condition: Callable[[], object], seconds: float = START_TIMEOUT_S) -> None:
    """Until the condition holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.1)


class PrivateCluster:
    """Starts when entered, and is gone afterwards."""

    def __init__(self, folder: Path, name: str, *, accounting: bool, nodes: int = 3) -> None:
        self.folder = folder
        self.accounting = accounting
        self.nodes = [f"{name}{number}" for number in range(1, nodes + 1)]
        self.configuration = folder / "slurm.conf"
        self.environment = {**os.environ, "SLURM_CONF": str(self.configuration)}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        controller, accounts, database, *ports = free_ports(3 + nodes)
        self._ports = dict(zip(self.nodes, ports, strict=True))
        self._values = {
            "name": f"shortlist_{name}",
            "host": HOST,
            "folder": str(folder),
            "user": "root" if os.getuid() == 0 else os.environ["USER"],
            "controller_port": controller,
            "accounting_port": accounts,
            "database_port": database,
        }

    def __enter__(self) -> PrivateCluster:
        self._write()
        try:
            self._start_munge()
            if self.accounting:
                self._start_accounting()
            self.start_controller()
            for node in self.nodes:
                self.start_node(node)
            self.wait_until_idle()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._processes.values()):
            process.terminate()
        for process in reversed(self._processes.values()):
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(10)

    def start(self, name: str, *command: str) -> None:
        """Starts a daemon in the foreground, known as `name`; its output goes to a log."""
        with (self.folder / f"{name}.out").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                command, stdout=log, stderr=log, process_group=0, env=self.environment
            )

    def stop(self, name: str, number: signal.Signals = signal.SIGTERM) -> None:
        """Ends the daemon known as `name` by a signal."""
        process = self._processes.pop(name)
        process.send_signal(number)
        process.wait(30)

    def start_controller(self) -> None:
        """Starts slurmctld."""
        self.start("slurmctld", "slurmctld", "-D", "-f", str(self.configuration))

    def start_node(self, node: str) -> None:
        """Starts the slurmd of a node."""
        self.start(node, "slurmd", "-D", "-f", str(self.configuration), "-N", node)

    def ask(self, *command: str) -> str:
        """What a Slurm client answers.

        Raises:
            subprocess.SubprocessError: It failed, or did not answer in time.
        """
        answer = subprocess.run(
            command,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=CLIENT_TIMEOUT_S,
            check=True,
        )
        return answer.stdout

    def empty(self) -> None:
        """Ends all jobs, and waits until they are gone and all nodes are back."""
        self.ask("scancel", "--me")
        wait(lambda: not self.ask("squeue", "--me", "--noheader").strip())
        wait(self._resumed)

    def hurry(self) -> None:
        """Has requeued jobs start now: Slurm lets them wait for two minutes."""
        lines = self.ask("squeue", "--me", "--noheader", "--array", "--format=%i %r").splitlines()
        for number in (line.split()[0] for line in lines if line.endswith(" BeginTime")):
            with suppress(subprocess.SubprocessError):  # it started meanwhile
                self.ask("scontrol", "update", f"JobId={number}", "StartTime=now")

    def wait_until_idle(self) -> None:
        """Until every node takes jobs."""
        try:
            wait(self._all_idle)
        except AssertionError:
            logs = "\n".join(path.read_text()[-2000:] for path in self.folder.glob("slurm*.log"))
            raise TimeoutError(f"the cluster did not come up:\n{logs}") from None

    def _resumed(self) -> bool:
        """Takes nodes back that were given up, as far as Slurm lets it; whether all take jobs."""
        with suppress(subprocess.SubprocessError):
            if not self._all_idle():
                self.ask("scontrol", "update", f"NodeName={','.join(self.nodes)}", "State=RESUME")
        return self._all_idle()

    def _all_idle(self) -> bool:
        with suppress(subprocess.SubprocessError):
            states = self.ask("sinfo", "--noheader", "--Node", "--partition=low", "--format=%t")
            return states.split() == ["idle"] * len(self.nodes)
        return False

    def _write(self) -> None:
        for name in ("state", *(f"spool-{node}" for node in self.nodes)):
            (self.folder / name).mkdir(parents=True)
        self.folder.chmod(0o755)
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        nodes = [NODE.format(node=node, port=self._ports[node], host=HOST) for node in self.nodes]
        text = CONFIGURATION + (ACCOUNTED if self.accounting else BARE)
        self.configuration.write_text(text.format(**self._values) + "".join(nodes))
        gpus = [f"NodeName={node} Name=gpu File=/dev/tty[0-1]\n" for node in self.nodes]
        (self.folder / "gres.conf").write_text("".join(gpus))
        accounting = self.folder / "slurmdbd.conf"
        accounting.write_text(ACCOUNTING.format(**self._values))
        for secret in (key, accounting):
            secret.chmod(0o600)

    def _start_munge(self) -> None:
        files = {"socket": "sock", "key-file": "key", "log-file": "log", "pid-file": "pid"}
        options = [f"--{name}={self.folder}/munge.{end}" for name, end in files.items()]
        seed = f"--seed-file={self.folder}/munge.seed"
        self.start("munged", "munged", "--foreground", "--force", *options, seed)
        wait((self.folder / "munge.sock").exists)

    def _start_accounting(self) -> None:
        data, user = self.folder / "database", self._values["user"]
        self.ask(
            "mariadb-install-db",
            "--no-defaults",
            "--skip-test-db",
            f"--datadir={data}",
            f"--user={user}",
        )
        self.start(
            "mariadbd",
            "mariadbd",
            "--no-defaults",
            "--skip-grant-tables",
            f"--user={user}",
            f"--datadir={data}",
            f"--socket={self.folder}/mariadb.sock",
            f"--pid-file={self.folder}/mariadb.pid",
            "--bind-address=127.0.0.1",
            f"--port={self._values['database_port']}",
        )
        wait((self.folder / "mariadb.sock").exists)
        self.start("slurmdbd", "slurmdbd", "-D")
        wait(lambda: self._told("list cluster"))
        for words in ACCOUNTS:
            wait(lambda words=words: self._told(words.format(**self._values)))

    def _told(self, words: str) -> bool:
        with suppress(subprocess.SubprocessError):
            self.ask("sacctmgr", "--immediate", *words.split())
            return True
        return False
