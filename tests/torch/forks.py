# SPDX-License-Identifier: Apache-2.0
"""Python programs as forks of a process that has imported PyTorch and droptest: an import takes more than a second, and
a test starts two to four ranks. Such a program ends as any other does: its interpreter shuts down."""

from __future__ import annotations

import atexit
import json
import os
import runpy
import select
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

ANALYSIS = Path(__file__).resolve().parents[2] / "analysis"
START_SECONDS = 120


class Fork:
    """A program that runs, or has ended."""

    def __init__(self, parent: Parent, pid: int) -> None:
        self._parent, self.pid, self.returncode = parent, pid, None

    def wait(self, timeout: float) -> int:
        """The exit status; negative: the signal that ended it. Raises: subprocess.TimeoutExpired."""
        if self.returncode is None:
            self.returncode = self._parent.status_of(self.pid, timeout)
        return self.returncode

    def kill(self) -> None:
        """Ends it where it still runs."""
        if self.returncode is None:
            os.kill(self.pid, signal.SIGKILL)  # it is there until the parent is asked for its status
            self.wait(START_SECONDS)


class Parent:
    """The process that forks. It ends with the one that made it."""

    def __init__(self) -> None:
        # One thread for each program, and none when it forks.
        environment = os.environ | {"PYTHONPATH": str(ANALYSIS), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        self._process = subprocess.Popen([sys.executable, __file__], env=environment, stdin=subprocess.PIPE,
                                         stdout=subprocess.PIPE)  # fmt: skip
        atexit.register(self._end)
        self._statuses: dict[int, int] = {}
        self._waits = False
        assert self._answer(START_SECONDS) == {"threads": 1}

    def start(self, words: list[str], folder: Path, environment: dict[str, str], out: Path, errors: Path) -> Fork:
        """Runs `python WORDS...` in the folder with these variables, standard output and errors in files."""
        self._ask({"words": words, "folder": str(folder), "environment": environment, "out": str(out),
                   "errors": str(errors)})  # fmt: skip
        return Fork(self, self._answer(START_SECONDS)["pid"])

    def status_of(self, pid: int, timeout: float) -> int:
        while pid not in self._statuses:
            if not self._waits:  # an answer that did not come in time is still to come
                self._ask({"wait": pid})
                self._waits = True
            answer = self._answer(timeout)
            self._waits = False
            self._statuses[answer["pid"]] = answer["status"]
        return self._statuses[pid]

    def _end(self) -> None:
        self._process.stdin.close()
        self._process.wait()

    def _ask(self, question: dict[str, Any]) -> None:
        self._process.stdin.write(json.dumps(question).encode() + b"\n")
        self._process.stdin.flush()

    def _answer(self, timeout: float) -> dict[str, Any]:
        if not select.select([self._process.stdout], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired("the parent of forks", timeout)
        line = self._process.stdout.readline()
        assert line, f"the parent of forks has ended with status {self._process.wait()}"
        return json.loads(line)


@cache
def parent() -> Parent:
    """The one of this process."""
    return Parent()


def _forked_program() -> dict[str, Any] | None:
    """Answers questions, and returns twice: in each fork with its program, at the end with None."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # so that nothing else writes answers

    def answer(**values: Any) -> None:
        answers.write(json.dumps(values) + "\n")
        answers.flush()

    answer(threads=len(os.listdir("/proc/self/task")))
    while line := sys.stdin.buffer.readline():
        question = json.loads(line)
        if "wait" in question:
            _, status = os.waitpid(question["wait"], 0)
            answer(pid=question["wait"], status=os.waitstatus_to_exitcode(status))
            continue
        pid = os.fork()
        if pid == 0:
            answers.close()
            return question
        answer(pid=pid)
    return None


def _become(program: dict[str, Any]) -> None:
    written = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    files = ((0, os.devnull, os.O_RDONLY), (1, program["out"], written), (2, program["errors"], written))
    for number, name, flags in files:
        file = os.open(name, flags, 0o666)
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(program["environment"])
    os.chdir(program["folder"])
    sys.argv = program["words"]
    places = program["environment"].get("PYTHONPATH", "").split(":")
    sys.path[:0] = [str(Path(sys.argv[0]).parent), *filter(None, places)]


if __name__ == "__main__":
    import torch
    import torch.distributed
    import torch.nn.parallel  # noqa: F401

    import droptest
    import droptest.torch  # noqa: F401

    if (found := _forked_program()) is not None:
        _become(found)
        runpy.run_path(sys.argv[0], run_name="__main__")
