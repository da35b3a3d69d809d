# SPDX-License-Identifier: Apache-2.0
"""A program whose rank ends right after it has begun sums of many packets, for which nobody waits. Arguments: the rank,
and the folder in which the ranks meet."""

import sys

import torch
import torch.distributed as dist

import droptest
import droptest.torch

rank, folder = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
network = droptest.Network({"network": {"loss": {"model": "bernoulli", "loss_rate": 0.1}}})
group = droptest.torch.lossy(None, network)
for _ in range(4):
    group.all_reduce(torch.ones(2_000_000), async_op=True)
