#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A published result with a PyTorch program: how much do dropped packets of gradients cost, with more and more workers?

Yu et al., Distributed Learning over Unreliable Networks (ICML 2019): a drop rate of 10 % leaves the convergence as it
is, and the influence of drops diminishes with the number of workers. Each run is examples/torch/ddp.py by torchrun,
whose workers average the packets that arrive (fill count_rescale). Its result is rank 0's mean training loss over the
last 20 steps, minus that of the run without loss, which has the same batches. Prints one JSON object.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import machine

ROOT = Path(__file__).resolve().parents[1]
LAST_STEPS = 20


def loss_of(workers: int, steps: int, network: dict, folder: Path) -> float:
    """Mean training loss over the last steps. Raises: RuntimeError with the program's errors."""
    source = folder / "network.json"
    source.write_text(json.dumps(network), encoding="utf-8")
    environment = os.environ | {"PYTHONPATH": str(ROOT / "analysis"), "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(workers),
             str(ROOT / "examples/torch/ddp.py"), "--steps", str(steps), "--network", str(source)]  # fmt: skip
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    losses = [float(loss) for loss in re.findall(r"^step \d+: loss (\S+)$", done.stdout, re.MULTILINE)]
    if done.returncode != 0 or len(losses) != steps:
        raise RuntimeError(done.stderr)
    return statistics.mean(losses[-LAST_STEPS:])


def network_of(rate: float, seed: int) -> dict:
    loss = {"model": "bernoulli", "loss_rate": rate} if rate else {"model": "none"}
    return {"network": {"loss": loss, "fill": "count_rescale"}, "seed": seed}


def row_of(workers: int, rate: float, lossless: float, options, folder: Path) -> dict:
    added = [
        loss_of(workers, options.steps, network_of(rate, seed), folder) - lossless
        for seed in range(1, options.seeds + 1)
    ]
    return {"workers": workers, "loss_rate": rate, "lossless": lossless, "added": added,
            "mean": statistics.mean(added), "standard_error": statistics.stdev(added) / len(added) ** 0.5}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--rates", type=float, nargs="+", default=[0.1, 0.4])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=3, help="of the fates, at least 2")
    options = parser.parse_args()
    if options.seeds < 2:
        parser.error(f"--seeds: got {options.seeds}, want at least 2, for a standard error")
    if options.steps < LAST_STEPS:
        parser.error(f"--steps: got {options.steps}, want at least {LAST_STEPS}")
    rows = []
    with tempfile.TemporaryDirectory() as name:
        for workers in options.workers:
            lossless = loss_of(workers, options.steps, network_of(0, 1), Path(name))
            for rate in options.rates:
                rows.append(row_of(workers, rate, lossless, options, Path(name)))
                print(rows[-1], file=sys.stderr)
    print(json.dumps({"machine": machine.describe(), "commit": machine.commit(), "steps": options.steps,
                      "last_steps": LAST_STEPS, "rows": rows}, indent=1))  # fmt: skip


if __name__ == "__main__":
    main()
