#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The time that droptest.torch adds to PyTorch: an all-reduce of 25 MB, and a DDP step of a small GPT-2, over gloo.

Each rank is a process of this machine. Calls with and without loss take turns in the same processes, so that other load
hits both alike; the ratio is that of the medians. Prints one JSON object.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import machine

sys.path[:0] = [str(Path(__file__).parents[1] / "analysis"), str(Path(__file__).parent / "peers")]
SOURCE = {"network": {"loss": {"model": "bernoulli", "loss_rate": 0.01}}, "seed": 1}
MEGABYTES = 25


def compare(turns: int, plain, lossy) -> dict:
    """Seconds of the two functions, which take turns and change places."""
    seconds = {"plain": [], "lossy": []}
    for turn in range(turns + 2):
        pair = [("plain", plain), ("lossy", lossy)]
        for name, function in pair if turn % 2 == 0 else reversed(pair):
            begin = time.perf_counter()
            function()
            if turn >= 2:  # the first ones warm up
                seconds[name].append(time.perf_counter() - begin)
    medians = {name: statistics.median(of) for name, of in seconds.items()}
    ratios = sorted(b / a for a, b in zip(seconds["plain"], seconds["lossy"], strict=True))
    return {"plain_seconds": medians["plain"], "lossy_seconds": medians["lossy"],
            "ratio": medians["lossy"] / medians["plain"], "median_of_ratios": statistics.median(ratios),
            "turns": turns}  # fmt: skip


def all_reduce(turns: int) -> dict:
    import torch
    import torch.distributed as dist

    import droptest.torch

    group = droptest.torch.lossy(None, droptest.Network(SOURCE))
    values = torch.ones(MEGABYTES * 1000 * 1000 // 4)

    def plain():
        dist.all_reduce(values)

    def lossy():
        group.all_reduce(values)

    return compare(turns, plain, lossy) | {"bytes": values.numel() * 4}


def ddp_step(turns: int) -> dict:
    import torch
    from pytorch_gpt2 import Gpt2
    from torch.nn.parallel import DistributedDataParallel

    import droptest.torch

    def step_of(with_loss: bool):
        torch.manual_seed(1)
        model = Gpt2(4, 256, 4, 5000, 64)
        for block in model.blocks:  # gloo of old versions cannot broadcast booleans
            block.future = block._buffers.pop("future")
        model = DistributedDataParallel(model)
        if with_loss:
            model.register_comm_hook(None, droptest.torch.ddp_hook(droptest.Network(SOURCE)))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        tokens = torch.randint(0, 5000, (4, 65))

        def step():
            optimizer.zero_grad()
            model(tokens[:, :-1], tokens[:, 1:].contiguous()).backward()
            optimizer.step()

        return step, sum(parameter.numel() for parameter in model.parameters())

    plain, parameters = step_of(False)
    lossy, _ = step_of(True)
    return compare(turns, plain, lossy) | {"parameters": parameters}


def rank_main(args: argparse.Namespace) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{args.meeting}", rank=args.rank, world_size=args.ranks)
    result = {"torch": torch.__version__, "ranks": args.ranks, "all_reduce": all_reduce(args.turns),
              "ddp_step": ddp_step(args.turns)}  # fmt: skip
    if args.rank == 0:
        print(json.dumps({"machine": machine.describe(), "commit": machine.commit(), **result}, indent=2))
    dist.barrier()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--turns", type=int, default=50, help="measured calls of each kind")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--meeting", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank is not None:
        return rank_main(args)
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
        words = [sys.executable, __file__, "--ranks", str(args.ranks), "--turns", str(args.turns), "--meeting",
                 f"{folder}/meeting"]  # fmt: skip
        ranks = [subprocess.Popen([*words, "--rank", str(rank)], env=environment) for rank in range(args.ranks)]
        sys.exit(max(rank.wait() for rank in ranks))


if __name__ == "__main__":
    main()
