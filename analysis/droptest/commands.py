# SPDX-License-Identifier: Apache-2.0
"""The droptest command from Python: runs, sweeps, and the fates of packets."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from droptest.json_values import UnusableValue, json_text
from droptest.records import Records, load

Spec = str | Path | Mapping[str, Any]
RUNS_FAILED = 1  # exit status of a sweep of which some runs failed, and of a run that failed


class CommandError(RuntimeError):
    """The droptest command is not there, or refused its arguments; the message is the command's own."""


def binary() -> Path:
    """The compiled droptest command: DROPTEST_BINARY, else the first on PATH, else the newest in the build folders. The
    command that pip installs is none: it looks for this one itself.

    Raises: CommandError that names the places.
    """
    if named := os.environ.get("DROPTEST_BINARY"):
        if not os.access(named, os.X_OK) or not Path(named).is_file():
            raise CommandError(f"DROPTEST_BINARY: got {named}, want a program that can be run")
        if _is_of_pip(Path(named)):
            raise CommandError(
                f"DROPTEST_BINARY: got {named}, the command of the Python package, want the compiled one"
            )
        return Path(named)
    for folder in os.environ.get("PATH", os.defpath).split(os.pathsep):
        found = shutil.which("droptest", path=folder or os.curdir)
        if found and not _is_of_pip(Path(found)):
            return Path(found)
    build = Path(__file__).resolve().parents[2] / "build"
    built = [path for path in build.glob("*/experiments/droptest") if os.access(path, os.X_OK)]
    if not built:
        raise CommandError(
            f"no droptest command: DROPTEST_BINARY is not set, PATH has no compiled droptest, and {build} has no "
            "*/experiments/droptest; build it (README.md) or set DROPTEST_BINARY"
        )
    return max(built, key=lambda path: path.stat().st_mtime)


def _is_of_pip(file: Path) -> bool:
    try:
        with file.open("rb") as content:
            beginning = content.read(1000)
    except PermissionError:  # a script that cannot be read cannot be run
        return False
    return beginning.startswith(b"#!") and b"droptest.__main__" in beginning


def _call(words: Sequence[object], allowed: Sequence[int] = (0,)) -> str:
    """The command's standard output. Raises: CommandError with its errors where its exit status is not allowed."""
    done = subprocess.run([str(binary()), *map(str, words)], capture_output=True, text=True, stdin=subprocess.DEVNULL,
                          check=False)  # fmt: skip
    if done.returncode not in allowed:
        text = done.stderr.strip() or done.stdout.strip()
        raise CommandError(f"droptest {words[0]}: exit status {done.returncode}: {text}")
    return done.stdout


def _json(value: Any, pointer: str = "") -> str:
    try:
        return json_text(value, pointer)
    except UnusableValue as error:
        raise CommandError(f"droptest: {error}") from None


def _with_spec(command: str, spec: Spec, out: str | Path, values: Mapping[str, Any], options: Sequence[object]) -> str:
    """Calls `run` or `sweep` with a spec that is a file or an object."""
    changes = [word for pointer, value in values.items() for word in ("--set", f"{pointer}={_json(value, pointer)}")]
    with tempfile.TemporaryDirectory(prefix="droptest-") as folder:
        if isinstance(spec, Mapping):
            file = Path(folder) / "spec.json"
            file.write_text(_json(spec), encoding="utf-8")
        else:
            file = Path(spec)
        return _call([command, file, "--out", out, *changes, *options], (0, RUNS_FAILED))


def _found(output: str, pattern: str) -> Path:
    places = re.findall(pattern, output, re.MULTILINE)
    if not places:
        raise CommandError(f"{binary()}: no folder in its output, is it of another version? It said: {output.strip()}")
    return Path(places[-1])


def run(spec: Spec, out: str | Path = "results", values: Mapping[str, Any] | None = None) -> Records:
    """Trains one run (droptest run) and loads its records; a run that has its result already is not repeated.

    spec: a file, or the spec itself, in which numbers and lists may be numpy's, and texts may be paths; paths are
    relative to the working directory. values: pointer -> value, which change the spec, such as
    {"/training/steps": 100}. out: the folder of all results.
    A run that diverged or failed is loaded too: see `status` and `error` in `runs`.
    Raises: CommandError where the spec is wrong, the run is busy in another process, or there is no droptest command.
    """
    output = _with_spec("run", spec, out, values or {}, ())
    return load(_found(output, r"records are in (.+)$"))


def sweep(
    spec: Spec, out: str | Path = "results", values: Mapping[str, Any] | None = None, jobs: int | None = None
) -> Records:
    """Trains all runs of a spec (droptest sweep), several at once, and loads the experiment.

    spec, out, values: as for `run`. jobs: runs at once; default: one for each core.
    Runs that have their result already are not repeated. A run that fails does not stop the others: see `status` and
    `error` in `runs`. Raises: as `run`.
    """
    output = _with_spec("sweep", spec, out, values or {}, () if jobs is None else ("--jobs", jobs))
    return load(_found(output, r"droptest report (.+)$"))


def fates(
    loss: Mapping[str, Any], count: int, *, first: int = 0, seed: int = 1, traffic_class: str = "tp_forward",
    source: int = 0, destination: int = 1, half: str = "reduce", step: int = 0, message: int = 0,
) -> pd.Series:  # fmt: skip
    """Which packets of a link are lost (droptest fates): True for each that is, by packet index.

    loss: a loss process as in specs, {"model": "bernoulli", "loss_rate": 0.05}. first, count: the packets. seed: of the
    network. source, destination: world ranks. step, message: for processes that change over steps or time.
    A run with this loss and seed loses exactly these packets. Raises: CommandError.
    """
    output = _call(["fates", "--loss", _json(loss), "--seed", seed, "--class", traffic_class, "--src", source,
                    "--dst", destination, "--half", half, "--first", first, "--count", count, "--step", step,
                    "--message", message, "--format", "bits"])  # fmt: skip
    bits = "".join(line for line in output.splitlines() if not line.startswith("#"))
    index = pd.RangeIndex(first, first + count, name="packet")
    return pd.Series([bit == "1" for bit in bits], index=index, name="lost", dtype=bool)
