# SPDX-License-Identifier: Apache-2.0
"""Runs functions of this folder's modules on several ranks: a process each, over gloo, unless a test says otherwise."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import forks

TESTS = Path(__file__).resolve().parent
ANALYSIS = TESTS.parents[1] / "analysis"
SECONDS = 300  # of a hang


@dataclass
class Ended:
    """One rank: exit status, standard error, and what its function returned (None: it raised)."""

    status: int
    errors: str
    result: Any


def run_ranks(
    folder: Path, world_size: int, function: str, *, backend: str = "gloo", variables: dict[str, str] | None = None,
    gpus: bool | None = None, **arguments: Any,
) -> list[Ended]:  # fmt: skip
    """Calls "module:function"(rank, world_size, **arguments) on each rank. The ranks meet in `folder`. variables: of
    their environment. gpus: whether ranks see them; absent: where the function gets device="cuda". Ranks may share a
    GPU: NCCL takes each one for a host of its own."""
    meeting = folder / "meeting"
    meeting.unlink(missing_ok=True)
    common = os.environ | {"PYTHONPATH": f"{ANALYSIS}:{TESTS}", "WORLD_SIZE": str(world_size), "OMP_NUM_THREADS": "1",
                           "GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}  # fmt: skip
    gpus = gpus or (gpus is None and arguments.get("device") == "cuda")
    if not gpus:
        common["CUDA_VISIBLE_DEVICES"] = ""
    files = [folder / f"result{rank}.json" for rank in range(world_size)]
    errors = [folder / f"errors{rank}.txt" for rank in range(world_size)]
    # Libraries that are preloaded and GPUs need a process of their own.
    start = new_process if gpus or "LD_PRELOAD" in (variables or {}) else forks.parent().start
    ranks = []
    for rank, file in enumerate(files):
        file.unlink(missing_ok=True)
        words = [str(TESTS / "ranks.py"), str(meeting), function, json.dumps(arguments), str(file), backend]
        environment = common | {"RANK": str(rank), "NCCL_HOSTID": str(rank)} | (variables or {})
        ranks.append(start(words, Path.cwd(), environment, Path(os.devnull), errors[rank]))
    try:
        for process in ranks:
            process.wait(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        texts = [file.read_text() for file in errors]
        raise AssertionError(f"{function}: no end after {SECONDS} s: {texts}") from None
    finally:
        for process in ranks:
            process.kill()  # nothing where it has ended
    read = [json.loads(file.read_text()) if file.is_file() else None for file in files]
    statuses, texts = [process.returncode for process in ranks], [file.read_text() for file in errors]
    return [Ended(*one) for one in zip(statuses, texts, read, strict=True)]


def new_process(words: list[str], folder: Path, environment: dict[str, str], out: Path, errors: Path):
    """As Parent.start() of forks.py."""
    with out.open("w") as output, errors.open("w") as error_output:
        return subprocess.Popen([sys.executable, *words], cwd=folder, env=environment, stdout=output,
                                stderr=error_output)  # fmt: skip


def results(ended: list[Ended]) -> list[Any]:
    """What the ranks returned. All have ended well."""
    for rank, one in enumerate(ended):
        assert one.status == 0, f"rank {rank}: {one.errors}"
    return [one.result for one in ended]


def main() -> None:
    import importlib

    import torch
    import torch.distributed as dist

    meeting, function, arguments, result, backend = sys.argv[1:]
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if torch.cuda.is_available():
        torch.cuda.set_device(rank % torch.cuda.device_count())
    if "droptest" in backend:
        import droptest.torch.backend  # noqa: F401 (registers the name)
    dist.init_process_group(backend, init_method=f"file://{meeting}", rank=rank, world_size=world_size)
    module, name = function.split(":")
    value = getattr(importlib.import_module(module), name)(rank, world_size, **json.loads(arguments))
    Path(result).write_text(json.dumps(value))
    dist.barrier()
    dist.destroy_process_group()  # gloo's threads end before the process does


if __name__ == "__main__":
    main()
