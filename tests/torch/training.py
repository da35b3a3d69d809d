# SPDX-License-Identifier: Apache-2.0
"""Trainings of the tests, as functions for run_ranks()."""

from __future__ import annotations

import hashlib

import torch
from torch.nn.parallel import DistributedDataParallel

import droptest
import droptest.torch


def bernoulli(rate: float) -> dict:
    return {"model": "bernoulli", "loss_rate": rate}


def digest_of(tensors) -> str:
    """Of the bits."""
    total = hashlib.sha256()
    for tensor in tensors:
        total.update(tensor.detach().cpu().numpy().tobytes())
    return total.hexdigest()


def small_model(seed: int = 3, width: int = 800) -> torch.nn.Module:
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(64, width), torch.nn.Tanh(), torch.nn.Linear(width, width),
                               torch.nn.Tanh(), torch.nn.Linear(width, 8))  # fmt: skip


def batches(rank: int, steps: int, device: str = "cpu"):
    generator = torch.Generator().manual_seed(100 + rank)
    for _ in range(steps):
        inputs, targets = torch.randn(16, 64, generator=generator), torch.randint(0, 8, (16,), generator=generator)
        yield inputs.to(device), targets.to(device)


def train_ddp(rank, world_size, source=None, steps=20, clip=False, static=False, device="cpu"):
    """Digest of the weights after each step, losses, and the statistics of this rank; source None: without a hook."""
    model = DistributedDataParallel(small_model().to(device), bucket_cap_mb=0.1, static_graph=static)
    network = None
    if source is not None:
        network = droptest.Network(source)
        model.register_comm_hook(None, droptest.torch.ddp_hook(network))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    digests, losses, norms = [], [], []
    for inputs, targets in batches(rank, steps, device):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        norms.append(max(float(parameter.grad.abs().max()) for parameter in model.parameters()))
        if clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        digests.append(digest_of(model.parameters()))
        losses.append(loss.item())
    record = None if network is None else network.statistics().record
    return {"digests": digests, "losses": losses, "largest_gradients": norms, "record": record}


def readme_lines(rank, world_size, lines):
    """The lines of README.md after which a model loses packets, and what two steps then lose."""
    model = DistributedDataParallel(small_model())
    names = {"model": model}
    exec(lines, names)
    for inputs, targets in batches(rank, 2):
        torch.nn.functional.cross_entropy(model(inputs), targets).backward()
    return names["network"].statistics().classes["dp_gradient"]["lost"]


def train_fsdp(rank, world_size, source=None, steps=20, device="cpu", replicas=1):
    """Digest of this rank's shards after each step, losses, and the statistics; source None: without hooks. replicas:
    of the shards, in hybrid sharding."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = small_model(width=200).to(device)
    if replicas == 1:
        mesh = init_device_mesh(device, (world_size,))
    else:
        mesh = init_device_mesh(device, (replicas, world_size // replicas), mesh_dim_names=("replicas", "shards"))
    fully_shard(model[2], mesh=mesh)
    fully_shard(model, mesh=mesh)
    network = None
    if source is not None:
        network = droptest.Network(source)
        droptest.torch.fully_shard_hooks(model, network)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    digests, losses = [], []
    for inputs, targets in batches(rank, steps, device):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        digests.append(digest_of(parameter.to_local() for parameter in model.parameters()))
        losses.append(loss.item())
    return {"digests": digests, "losses": losses, "record": None if network is None else network.statistics().record}
