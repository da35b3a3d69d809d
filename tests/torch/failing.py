# SPDX-License-Identifier: Apache-2.0
"""Programs that fail, as functions for run_ranks()."""

from __future__ import annotations

import json
import os
import signal

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from training import batches, bernoulli, small_model

import droptest
import droptest.torch


def hook_of_one_rank(rank, world_size, source):
    """Rank 1 closes its network after the first step."""
    network = droptest.Network(source)
    model = DistributedDataParallel(small_model())
    model.register_comm_hook(None, droptest.torch.ddp_hook(network))
    for inputs, targets in batches(rank, 3):
        torch.nn.functional.cross_entropy(model(inputs), targets).backward()
        if rank == 1:
            network.close()


def different_networks(rank, world_size, member):
    """The texts of the refusals: of the group of all ranks, and on the later half of the ranks of their own."""
    loss = {"model": "bernoulli", "loss_rate": 0.2 if member == "loss" and rank == 2 else 0.1}
    seed = 1 + rank if member == "seed" else 1
    half = dist.new_group(list(range(world_size // 2, world_size)))
    network = droptest.Network({"network": {"loss": loss}, "seed": seed})
    texts = []
    for group in [None, half][: 1 + (rank >= world_size // 2)]:
        try:
            droptest.torch.lossy(group, network)
            texts.append("")
        except droptest.NetworkError as error:
            texts.append(f"{error.kind}: {error}")
    return texts


def killed_rank(rank, world_size, source):
    """Rank 0 is killed in the third step. Rank 1 returns what the record says of it."""
    network = droptest.Network(source)
    model = DistributedDataParallel(small_model())
    model.register_comm_hook(None, droptest.torch.ddp_hook(network))
    try:
        for step, (inputs, targets) in enumerate(batches(rank, 5)):
            if rank == 0 and step == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            torch.nn.functional.cross_entropy(model(inputs), targets).backward()
    finally:
        network.close()
        with open(f"{source['statistics']}/loss_statistics.json") as file:
            record = json.load(file)
        with open(os.path.join(os.path.dirname(source["statistics"]), f"result{rank}.json"), "w") as file:
            json.dump(record["ranks"], file)


def other_world(rank, world_size):
    network = droptest.Network({"network": {"loss": bernoulli(0)}}, rank=0, world_size=1)
    droptest.torch.ddp_hook(network)
