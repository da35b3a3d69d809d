# SPDX-License-Identifier: Apache-2.0
"""Runs functions of this folder's modules on several ranks: a process each, over gloo."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
    **arguments: Any,
) -> list[Ended]:  # fmt: skip
    """Calls "module:function"(rank, world_size, **arguments) on each rank. The ranks meet in `folder`. variables: of
    their environment."""
    meeting = folder / "meeting"
    meeting.unlink(missing_ok=True)
    paths = f"{ANALYSIS}:{TESTS}"
    ranks = []
    for rank in range(world_size):
        environment = os.environ | {"PYTHONPATH": paths, "RANK": str(rank), "WORLD_SIZE": str(world_size),
                                    "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"} | (variables or {})  # fmt: skip
        words = [sys.executable, str(TESTS / "ranks.py"), str(meeting), function, json.dumps(arguments),
                 str(folder / f"result{rank}.json"), backend]  # fmt: skip
        Path(words[-2]).unlink(missing_ok=True)
        ranks.append((words[-2], subprocess.Popen(words, env=environment, stderr=subprocess.PIPE, text=True)))
    ended = []
    for result, process in ranks:
        try:
            _, errors = process.communicate(timeout=SECONDS)
        finally:
            for _, other in ranks:
                if sys.exc_info()[0] is not None:
                    other.kill()
        value = json.loads(Path(result).read_text()) if Path(result).is_file() else None
        ended.append(Ended(process.returncode, errors, value))
    return ended


def results(ended: list[Ended]) -> list[Any]:
    """What the ranks returned. All have ended well."""
    for rank, one in enumerate(ended):
        assert one.status == 0, f"rank {rank}: {one.errors}"
    return [one.result for one in ended]


def main() -> None:
    import importlib

    import torch.distributed as dist

    meeting, function, arguments, result, backend = sys.argv[1:]
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
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
