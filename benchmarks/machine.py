# SPDX-License-Identifier: Apache-2.0
"""The machine and build of a measurement: processor, memory, kernel, commit and compiler."""

import os
import platform
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VECTOR_FLAGS = ("avx2", "fma", "avx512f", "avx512_bf16", "amx_bf16")


def allowed_cores() -> int:
    """Cores that this process may use: fewer than the machine has under taskset or a cpuset."""
    return len(os.sched_getaffinity(0))


def _field(path: str, name: str) -> str:
    """The value of the first "name : value" line; empty where there is none."""
    try:
        text = Path(path).read_text()
    except OSError:
        return ""
    found = re.search(rf"^{re.escape(name)}\s*:\s*(.*)$", text, re.MULTILINE)
    return found.group(1).strip() if found else ""


def describe() -> dict:
    """The machine, as far as a speed depends on it."""
    flags = set(_field("/proc/cpuinfo", "flags").split())
    memory = _field("/proc/meminfo", "MemTotal").split()
    return {
        "cpu": _field("/proc/cpuinfo", "model name") or platform.machine(),
        "cores": os.cpu_count(),
        "allowed_cores": allowed_cores(),
        "flags": {flag: flag in flags for flag in VECTOR_FLAGS},
        "memory_gibibytes": round(int(memory[0]) / 2**20, 1) if memory else None,
        "kernel": platform.release(),
    }


def load_average() -> float:
    """Processes that wanted to run over the last minute, this one's children among them."""
    return os.getloadavg()[0]


def commit() -> str:
    """The commit of the source tree, with -dirty where files differ from it."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def build(folder: Path) -> dict:
    """Compiler, build type and flags of a CMake build folder; "unknown" where its files do not say."""
    cache = folder / "CMakeCache.txt"
    text = cache.read_text(errors="replace") if cache.exists() else ""

    def cached(name: str) -> str:
        found = re.search(rf"^{name}:[A-Z]+=(.*)$", text, re.MULTILINE)
        return found.group(1) if found else "unknown"

    compiler = "unknown"
    for file in folder.glob("CMakeFiles/*/CMakeCXXCompiler.cmake"):
        found = dict(re.findall(r'^set\((CMAKE_CXX_COMPILER_(?:ID|VERSION)) "(.*)"\)$', file.read_text(), re.MULTILINE))
        compiler = " ".join(found.values()) or "unknown"
    kind = cached("CMAKE_BUILD_TYPE")
    return {"compiler": compiler, "type": kind, "flags": cached(f"CMAKE_CXX_FLAGS_{kind.upper()}")}
