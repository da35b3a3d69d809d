# SPDX-License-Identifier: Apache-2.0
"""Points at which a running program waits for its test (docs/ci.md, "Tests that interfere with a running program")."""

import os
import signal
from pathlib import Path

from cli_harness import wait_until


def state_of(pid):
    """The letter of /proc; "" for a process that has ended."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return ""
    return "" if state in "ZX" else state


class Holds:
    """Programs with `environment` wait at the points that the test names, until release()."""

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir()
        self.environment = {"DROPTEST_HOLD_FOLDER": str(folder)}

    def at(self, point):
        """Ranks wait there from now on: "step-3" is before step 3."""
        (self.folder / point).touch()

    def reached(self, point, count):
        """Waits until `count` ranks wait there. Returns (rank, process) of each, in order."""

        def waiting():
            names = [path.name.split(".") for path in self.folder.glob(f"{point}.rank-*.pid-*")]
            found = [(int(rank[len("rank-") :]), int(pid[len("pid-") :])) for _, rank, pid in names]
            return sorted((rank, pid) for rank, pid in found if state_of(pid))

        return wait_until(lambda: len(ranks := waiting()) == count and ranks)

    def release(self, point):
        """The ranks that wait there go on, and later ones do not wait."""
        (self.folder / point).unlink()

    def release_all(self):
        for point in self.folder.iterdir():
            if "." not in point.name:
                point.unlink()


def kill(*processes):
    """Returns when they have ended."""
    for pid in processes:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not any(map(state_of, processes)))


def stop(pid):
    """Returns when it stands still."""
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: state_of(pid) == "T")


def await_request_to_end(pid):
    """Returns when the program knows that it is to end: SIGTERM has no handler any more, or the program has ended."""

    def knows():
        try:
            status = Path(f"/proc/{pid}/status").read_text()
        except OSError:
            return True
        caught = int(status.split("SigCgt:")[1].split()[0], 16)
        return not caught >> (signal.SIGTERM - 1) & 1

    wait_until(knows)
