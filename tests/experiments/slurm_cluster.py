# SPDX-License-Identifier: Apache-2.0
"""A Slurm of four nodes on this machine, without systemd or root's folders: all of it lies in one folder."""

import ctypes
import itertools
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

from cli_harness import CLEAN_ENVIRONMENT

NODES = 4
PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sinfo", "scontrol", "scancel", "sbatch", "squeue")
CONFIGURATION = """
ClusterName=droptest
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/munge.socket
CredType=cred/munge
SlurmctldPidFile={folder}/run/slurmctld.pid
SlurmdPidFile={folder}/run/slurmd-%n.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/slurmd-%n.log
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
TmpFS={folder}/tmp-%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
AccountingStorageType=accounting_storage/none
SchedulerParameters=batch_sched_delay=0,bf_interval=1,sched_interval=1
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
NodeName=n[1-{nodes}] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{first}-{last}] CPUs=2 RealMemory=500 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


class CannotStart(Exception):
    """The reason to skip tests that need a Slurm."""


def path_of(program):
    found = shutil.which(program, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
    if found is None:
        raise CannotStart(f"{program} is not installed")
    return found


_next_port = itertools.count(os.getpid() * 16)


def free_ports(count):
    """Neighbouring ports that nobody has, others at each call, none of those that the system gives to connections."""
    for _ in range(1000):
        first = 12000 + max(next(_next_port) for _ in range(count)) % 20000 - count + 1
        sockets = [socket.socket() for _ in range(count)]
        try:
            for offset, probe in enumerate(sockets):
                probe.bind(("", first + offset))
            return first
        except OSError:
            continue
        finally:
            for probe in sockets:
                probe.close()
    raise CannotStart("no free ports")


def end_with_parent():
    """A daemon does not outlive a test run that is killed."""
    parent_death_signal = 1
    ctypes.CDLL(None).prctl(parent_death_signal, signal.SIGTERM)


class SlurmCluster:
    def __init__(self, folder):
        self.folder = Path(folder)
        self.configuration = self.folder / "slurm.conf"
        self.environment = {"SLURM_CONF": str(self.configuration)}
        self.programs = {name: path_of(name) for name in PROGRAMS}
        self.daemons = []

    def start(self):
        for name in ("munge", "run", "log", "state", "spool", *(f"tmp-n{i + 1}" for i in range(NODES))):
            (self.folder / name).mkdir(mode=0o700)
        key = self.folder / "munge" / "key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        port = free_ports(NODES + 1)
        self.configuration.write_text(
            CONFIGURATION.format(
                **{"host": socket.gethostname().split(".")[0], "port": port, "folder": self.folder, "nodes": NODES},
                **{"first": port + 1, "last": port + NODES, "user": subprocess.getoutput("id -un")},
            )
        )
        (self.folder / "cgroup.conf").write_text("CgroupAutomount=no\n")
        munge = [f"--{name}-file={self.folder}/munge/{name}" for name in ("log", "pid", "seed")]
        socket_file = f"--socket={self.folder}/munge/munge.socket"
        self.daemon("munged", "--foreground", "--force", socket_file, f"--key-file={key}", *munge)
        self.until(lambda: (self.folder / "munge" / "munge.socket").exists(), "munged")
        self.daemon("slurmctld", "-D", "-f", self.configuration)
        for node in range(NODES):
            self.daemon("slurmd", "-D", "-f", self.configuration, "-N", f"n{node + 1}")
        self.until(lambda: self.ask("sinfo", "-h", "-t", "idle", "-o", "%D").strip() == str(NODES), "the nodes")

    def daemon(self, program, *arguments):
        log = (self.folder / "log" / f"{program}.out").open("ab")
        command = [self.programs[program], *map(str, arguments)]
        self.daemons.append(
            subprocess.Popen(
                command,
                env={**CLEAN_ENVIRONMENT, **self.environment},
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                preexec_fn=end_with_parent,
            )
        )
        log.close()

    def ask(self, program, *arguments):
        command = [self.programs[program], *arguments]
        environment = {**CLEAN_ENVIRONMENT, **self.environment}
        for _ in range(20):
            ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
            # A job that Slurm has forgotten is an answer, a controller without time is none.
            if ran.returncode == 0 or not re.search(r"timed out|[Uu]nable to contact|not responding", ran.stderr):
                break
        return ran.stdout

    def until(self, condition, what, seconds=120):
        deadline = time.monotonic() + seconds
        while not condition():
            if any(daemon.poll() is not None for daemon in self.daemons) or time.monotonic() > deadline:
                logs = "\n".join(path.read_text(errors="replace")[-500:] for path in (self.folder / "log").iterdir())
                raise CannotStart(f"Slurm does not start here: {what} did not come\n{logs}")
            time.sleep(0.05)

    def stop(self):
        """Nothing of it runs afterwards, whatever happened before."""
        if self.daemons:
            self.ask("scancel", "-u", subprocess.getoutput("id -un"))
        for daemon in reversed(self.daemons):  # slurmd, slurmctld, munged
            daemon.send_signal(signal.SIGTERM)
        for daemon in reversed(self.daemons):
            try:
                daemon.wait(timeout=600)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
