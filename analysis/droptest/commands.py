# SPDX-License-Identifier: Apache-2.0
"""The droptest command from Python: runs, sweeps, and the fates of packets."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from droptest import link_fates
from droptest.json_values import UnusableValue, json_text
from droptest.program import CommandError, NoProgram, binary
from droptest.records import Records, load

Spec = str | Path | Mapping[str, Any]
RUNS_FAILED = 1  # exit status of a sweep of which some runs failed, and of a run that failed


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
    A run with this loss and seed loses exactly these packets. Without the compiled program the library of the package
    answers, except for the questions that link_fates.Question names. Raises: CommandError.
    """
    question = link_fates.Question(_json(loss), count, first, seed, traffic_class, source, destination, half, step,
                                   message)  # fmt: skip
    try:
        binary()
    except NoProgram as error:
        lost = link_fates.answer(question, error).lost
    else:
        output = _call([*question.words(), "--format", "bits"])
        bits = "".join(line for line in output.splitlines() if not line.startswith("#"))
        lost = [bit == "1" for bit in bits]
    return pd.Series(lost, index=pd.RangeIndex(first, first + count, name="packet"), name="lost", dtype=bool)
