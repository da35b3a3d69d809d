# SPDX-License-Identifier: Apache-2.0
"""Starts ranks as users do, by hand, mpirun, srun and torchrun; finds them, and collects their output."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from pathlib import Path

from cli_harness import BINARY, CLEAN_ENVIRONMENT

LAUNCHERS = ("by_hand", "mpirun", "srun", "torchrun")
MARK = "DROPTEST_TEST_LAUNCH"
RANK_VARIABLES = ("RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")  # in the order in which droptest looks

# Each rank's errors in a file of its own; the rank CUT_RANK runs in another network namespace.
RANK_SCRIPT = """#!/bin/sh
rank=${RANK:-${OMPI_COMM_WORLD_RANK:-$SLURM_PROCID}}
exec 2> "$RANK_ERRORS/rank_$rank.err"
if [ "$rank" = "$CUT_RANK" ]; then
  export GLOO_SOCKET_IFNAME="$CUT_INTERFACE"
  exec nsenter --net="/proc/$CUT_NAMESPACE/ns/net" "$@"
fi
exec "$@"
"""


def missing(launcher):
    """Why the launcher cannot be used here; "" where it can. For srun, a Slurm must also be started."""
    program = None if launcher == "by_hand" else launcher
    return f"{program} is not installed" if program and shutil.which(program) is None else ""


SESSIONS = tempfile.TemporaryDirectory(prefix="mpirun-")


def mpirun(ranks):
    """The command with a session folder of its own: the common one in /tmp is a race between two launches."""
    root = ["--allow-run-as-root"] if os.getuid() == 0 else []
    session = tempfile.mkdtemp(dir=SESSIONS.name)
    return ["mpirun", *root, "--oversubscribe", "--mca", "orte_tmpdir_base", session, "-n", str(ranks)]


def command_of(launcher, ranks, address, port, folder):
    if launcher == "mpirun":
        return mpirun(ranks)
    if launcher == "srun":
        return ["srun", f"--nodes={ranks}", f"--ntasks={ranks}"]
    if launcher == "torchrun":
        # Debian's torch 1.13 under Python 3.11 fails without -r and -t.
        own = ["-r", "2", "-t", "2", "--log_dir", str(folder / "torchrun"), "--monitor_interval", "0.1"]
        master = [f"--master_addr={address}", f"--master_port={port}"]
        return ["torchrun", *own, "--no_python", f"--nproc_per_node={ranks}", *master]
    return []


class Launch:
    """Ranks that run `droptest` with the arguments; stop() leaves nothing of them."""

    def __init__(self, launcher, *arguments, cwd, ranks, port, environment=None):
        self.launcher = launcher
        self.mark = uuid.uuid4().hex
        self.errors_folder = Path(cwd) / f"errors-{self.mark}"
        self.errors_folder.mkdir()
        script = self.errors_folder / "rank.sh"
        script.write_text(RANK_SCRIPT)
        script.chmod(0o755)
        address = (environment or {}).get("MASTER_ADDR", "127.0.0.1")
        command = [*command_of(launcher, ranks, address, port, self.errors_folder), script, BINARY, *arguments]
        base = {**CLEAN_ENVIRONMENT, MARK: self.mark, "RANK_ERRORS": str(self.errors_folder)}
        if launcher != "torchrun":
            base |= {"MASTER_ADDR": address, "MASTER_PORT": str(port)}
        base |= environment or {}
        each = [{}]
        if launcher == "by_hand":
            each = [{"RANK": str(rank), "WORLD_SIZE": str(ranks)} for rank in range(ranks)]
        self.output = (self.errors_folder / "output").open("wb")
        self.processes = [
            subprocess.Popen(
                list(map(str, command)),
                cwd=cwd,
                env={**base, **variables},
                stdin=subprocess.DEVNULL,
                stdout=self.output,
                stderr=self.output,
            )
            for variables in each
        ]

    def rank_processes(self):
        """Rank -> process id, of the ranks that run."""
        found = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                if os.path.realpath(entry / "exe") != os.path.realpath(BINARY):
                    continue
                words = (entry / "environ").read_bytes().decode(errors="replace").split("\0")
            except OSError:
                continue
            variables = dict(word.split("=", 1) for word in words if "=" in word)
            if variables.get(MARK) == self.mark:
                rank = next(variables[name] for name in RANK_VARIABLES if name in variables)
                found[int(rank)] = int(entry.name)
        return found

    def errors(self):
        """Rank -> the text of its standard error."""
        return {int(path.stem[5:]): path.read_text() for path in self.errors_folder.glob("rank_*.err")}

    def wait(self, seconds):
        """The exit codes of the launcher, or of each rank by hand."""
        deadline = time.monotonic() + seconds
        return [process.wait(timeout=max(0.1, deadline - time.monotonic())) for process in self.processes]

    def said(self):
        """Everything, for a failing test's message."""
        output = (self.errors_folder / "output").read_text(errors="replace")
        return f"{self.launcher}: {output}\n" + "\n".join(f"rank {r}: {t}" for r, t in sorted(self.errors().items()))

    def stop(self):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.wait()
        for pid in self.rank_processes().values():
            os.kill(pid, signal.SIGKILL)
        self.output.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()


class CutNetwork:
    """A network namespace joined to this one by a cable that can be cut. Raises CalledProcessError where that needs
    rights that are not there, FileNotFoundError where a program is missing."""

    def __init__(self, number):
        self.near, self.far = f"dt{os.getpid() % 100000}a{number}", f"dt{os.getpid() % 100000}b{number}"
        net = f"10.{100 + number}.{os.getpid() % 250}"
        self.address = f"{net}.1"
        self.holder = subprocess.Popen(["unshare", "--net", "sleep", "600"], stderr=subprocess.DEVNULL)
        try:
            own = os.readlink("/proc/self/ns/net")
            deadline = time.monotonic() + 60
            while self.holder.poll() is None and os.readlink(f"/proc/{self.holder.pid}/ns/net") == own:
                if time.monotonic() > deadline:
                    raise subprocess.CalledProcessError(1, "unshare --net")
                time.sleep(0.01)
            self.call(
                "ip", "link", "add", self.near, "type", "veth", "peer", "name", self.far, "netns", self.holder.pid
            )
            self.call("ip", "address", "add", f"{net}.1/24", "dev", self.near)
            self.call("ip", "link", "set", self.near, "up")
            self.inside("ip", "link", "set", "lo", "up")
            self.inside("ip", "address", "add", f"{net}.2/24", "dev", self.far)
            self.inside("ip", "link", "set", self.far, "up")
        except BaseException:
            self.close()
            raise

    @staticmethod
    def call(*command):
        subprocess.run(list(map(str, command)), check=True, capture_output=True)

    def inside(self, *command):
        self.call("nsenter", f"--net=/proc/{self.holder.pid}/ns/net", *command)

    def environment(self, rank):
        """Of a launch whose rank `rank` is on the far side."""
        return {
            **{"MASTER_ADDR": self.address, "GLOO_SOCKET_IFNAME": self.near},
            **{"CUT_RANK": str(rank), "CUT_NAMESPACE": str(self.holder.pid), "CUT_INTERFACE": self.far},
        }

    def cut(self):
        self.inside("ip", "link", "set", self.far, "down")

    def close(self):
        self.holder.kill()
        self.holder.wait()
        # Connections that wait for their peers keep a namespace, and its end of the cable, for minutes.
        subprocess.run(["ip", "link", "delete", self.near], check=False, capture_output=True)
