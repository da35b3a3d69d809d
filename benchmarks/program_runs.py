# SPDX-License-Identifier: Apache-2.0
"""Runs programs that print one JSON object, each alone, and records the machine's other load meanwhile."""

import json
import os
import re
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import machine

# Variables that would change a program's speed behind the back of whoever reads the figures.
SPEED_VARIABLES = re.compile(r"(OMP|GOMP|KMP|OPENBLAS|MKL|BLIS|DNNL|ONEDNN|MALLOC)_|GLIBC_TUNABLES$|LD_PRELOAD$")


class ProgramError(Exception):
    """A program could not be run, failed, or did not print one JSON object."""


def say(text: str) -> None:
    """Progress goes to standard error: standard output is the JSON's."""
    print(text, file=sys.stderr, flush=True)


def environment(changes: Mapping[str, str]) -> dict[str, str]:
    """The user's environment without variables that change speeds, then the changes; LD_LIBRARY_PATH goes first."""
    result = {name: value for name, value in os.environ.items() if not SPEED_VARIABLES.match(name)}
    for name, value in changes.items():
        old = result.get(name) if name == "LD_LIBRARY_PATH" else None
        result[name] = f"{value}:{old}" if old else value
    return result


def _cpu_seconds() -> tuple[float, float]:
    """Processor seconds since boot: of all processes, and stolen by the hypervisor."""
    fields = [int(f) for f in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    ticks = os.sysconf("SC_CLK_TCK")
    user, nice, system, _, _, interrupts, soft_interrupts, stolen = fields[:8]
    return (user + nice + system + interrupts + soft_interrupts) / ticks, stolen / ticks


def _own_seconds() -> float:
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


@contextmanager
def machine_meanwhile() -> Iterator[dict]:
    """The machine's load while the block ran; the values are there once it has ended.

    Units: other_cpus and stolen_cpus are processors kept busy by others, and by the hypervisor, on average.
    """
    found: dict[str, float] = {"load_average_before": round(machine.load_average(), 2)}
    start, (busy, stolen), own = time.monotonic(), _cpu_seconds(), _own_seconds()
    yield found
    seconds = max(time.monotonic() - start, 1e-9)
    busy_now, stolen_now = _cpu_seconds()
    found["other_cpus"] = round(max(0.0, (busy_now - busy - (_own_seconds() - own)) / seconds), 2)
    found["stolen_cpus"] = round((stolen_now - stolen) / seconds, 2)
    found["seconds"] = round(seconds, 3)


def program(path: Path, target: str) -> Path:
    """The path, if it can be run. Raises: ProgramError that says how to build it."""
    if not os.access(path, os.X_OK) or not path.is_file():
        raise ProgramError(
            f"{path}: no such program; build it: cmake --preset release -B BUILD -DDROPTEST_BUILD_BENCHMARKS=ON && "
            f"cmake --build BUILD --target {target}, and name BUILD by --build"
        )
    return path


def output_of(words: Sequence[str], changes: Mapping[str, str] | None = None, timeout: float = 900) -> str:
    """The program's standard output. Raises: ProgramError with the end of its errors."""
    command = " ".join(words)
    try:
        done = subprocess.run(
            words, env=environment(changes or {}), stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=timeout, check=False,
        )  # fmt: skip
    except OSError as error:
        raise ProgramError(f"{words[0]}: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise ProgramError(f"{command}: still running after {timeout:g} s (--timeout)") from error
    if done.returncode != 0:
        last = " / ".join(done.stderr.strip().splitlines()[-3:]) or "it printed no error"
        raise ProgramError(f"{command}: exit code {done.returncode}: {last}")
    return done.stdout


def run(command: Sequence[object], changes: Mapping[str, str] | None = None, timeout: float = 900) -> dict:
    """The program's JSON object with a further member "machine_meanwhile". Raises: ProgramError."""
    words = [str(word) for word in command]
    with machine_meanwhile() as meanwhile:
        text = output_of(words, changes, timeout)
    try:
        result = json.loads(text)
    except json.JSONDecodeError as error:
        raise ProgramError(f"{' '.join(words)}: did not print JSON: {error}") from error
    return result | {"machine_meanwhile": meanwhile}


def median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def ratios(numerators: Sequence[float], denominators: Sequence[float]) -> dict:
    """Round by round, and their median."""
    pairs = [n / d for n, d in zip(numerators, denominators, strict=True)]
    return {"median": median(pairs), "rounds": pairs}


def write_json(result: dict, path: Path | None) -> None:
    """Into the file, which appears whole or not at all; to standard output without one."""
    text = json.dumps(result, indent=1) + "\n"
    if path is None:
        sys.stdout.write(text)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    part.write_text(text)
    part.replace(path)
