# SPDX-License-Identifier: Apache-2.0
"""Trainings of the tests, as functions for run_ranks()."""

from __future__ import annotations

import gc
import hashlib
import warnings

import torch
import torch.distributed as dist
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


class SometimesUnused(torch.nn.Module):
    """A model with a layer that every other forward pass leaves out."""

    def __init__(self):
        super().__init__()
        self.always, self.other = small_model(), torch.nn.Linear(64, 8)
        self.passes = 0

    def forward(self, inputs):
        self.passes += 1
        return self.always(inputs) + (self.other(inputs) if self.passes % 2 else 0)


DDP_KINDS = {"plain": {}, "accumulation": {}, "bucket views": {"gradient_as_bucket_view": True},
             "unused parameters": {"find_unused_parameters": True}, "static graph": {"static_graph": True}}  # fmt: skip


def train_ddp(rank, world_size, source=None, steps=20, clip=False, kind="plain", device="cpu"):
    """Digest of the weights after each step, losses, and the statistics of this rank; source None: without a hook.
    kind: of DDP_KINDS."""
    inner = SometimesUnused() if kind == "unused parameters" else small_model()
    model = DistributedDataParallel(inner.to(device), bucket_cap_mb=0.1, **DDP_KINDS[kind])
    network = None
    if source is not None:
        network = droptest.Network(source)
        model.register_comm_hook(None, droptest.torch.ddp_hook(network))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    digests, losses, norms = [], [], []
    for inputs, targets in batches(rank, steps, device):
        optimizer.zero_grad()
        if kind == "accumulation":
            with model.no_sync():
                torch.nn.functional.cross_entropy(model(-inputs), targets).backward()
        loss = torch.nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        norms.append(max(float(gradient.abs().max()) for gradient in gradients))
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
    names = {"model": model, "step": 1, "training_loss": 2.5, "validation_loss": 2.25}
    exec(lines, names)
    for inputs, targets in batches(rank, 2):
        torch.nn.functional.cross_entropy(model(inputs), targets).backward()
    return names["network"].statistics().classes["dp_gradient"]["lost"]


def train_fsdp(
    rank, world_size, source=None, steps=20, device="cpu", replicas=1, precision="fp32", is_accumulated=False
):
    """Digest of this rank's shards after each step, losses, and the statistics; source None: without hooks. replicas:
    of the shards, in hybrid sharding. precision: of what travels, "fp32" or "bf16". is_accumulated: gradients of two
    backward passes, of which the first one has no all-reduce between the replicas."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16 if precision == "bf16" else None)
    model = small_model(width=200).to(device)
    if replicas == 1:
        mesh = init_device_mesh(device, (world_size,))
    else:
        mesh = init_device_mesh(device, (replicas, world_size // replicas), mesh_dim_names=("replicas", "shards"))
    fully_shard(model[2], mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    network = None
    if source is not None:
        network = droptest.Network(source)
        droptest.torch.fully_shard_hooks(model, network)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    digests, losses = [], []
    for inputs, targets in batches(rank, steps, device):
        optimizer.zero_grad()
        if is_accumulated:
            model.set_requires_all_reduce(False)
            torch.nn.functional.cross_entropy(model(-inputs), targets).backward()
            model.set_requires_all_reduce(True)
        loss = torch.nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        digests.append(digest_of(parameter.to_local() for parameter in model.parameters()))
        losses.append(loss.item())
    return {"digests": digests, "losses": losses, "record": None if network is None else network.statistics().record}


def sub_group_gradients(rank, world_size, named, source):
    """The gradients of 1 + rank in models of pairs of ranks: without a hook, and with one."""
    pairs = [dist.new_group([first, first + 1]) for first in range(0, world_size, 2)]
    mine = pairs[rank // 2]
    gradients = []
    for with_hook in (False, True):
        model = DistributedDataParallel(torch.nn.Linear(1000, 1, bias=False), process_group=mine)
        if with_hook:
            network = droptest.Network(source)
            model.register_comm_hook(None, droptest.torch.ddp_hook(network, *([mine] if named else [])))
        (model(torch.full((1, 1000), 2.0 * (1 + rank)))).sum().backward()
        gradients.append(sorted(set(model.module.weight.grad.reshape(-1).tolist())))
    return gradients


def hooks_of_models(rank, world_size, how):
    """What the steps of models with one hook raise; "": nothing. how: "two" models, "another" model after the first one
    is gone, or a process "group" that is not the model's."""
    network = droptest.Network({"network": {"loss": bernoulli(0)}})
    own = [dist.new_group([one]) for one in range(world_size)][rank]
    hook = droptest.torch.ddp_hook(network, own if how == "group" else None)
    texts, models = [], []
    for _ in range(1 if how == "group" else 2):
        if how == "another":
            models.clear()
            gc.collect()
        models.append(DistributedDataParallel(small_model(), bucket_cap_mb=0.01))
        models[-1].register_comm_hook(None, hook)
        for inputs, targets in batches(rank, 2):
            try:
                torch.nn.functional.cross_entropy(models[-1](inputs), targets).backward()
                texts.append("")
            except RuntimeError as error:
                texts.append(str(error))
                break
    return texts


class Layers(torch.nn.Module):
    """Layers of which each forward pass uses those that it names."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(4000, 4, bias=False) for _ in range(3))

    def forward(self, inputs, used):
        return sum(self.layers[i](inputs).sum() for i in used)


def skipped_buckets(rank, world_size, source):
    """The collectives of three steps with three layers, a bucket each, of which the middle one is unused."""
    torch.manual_seed(0)
    network = droptest.Network(source)
    model = DistributedDataParallel(Layers(), bucket_cap_mb=0.01, find_unused_parameters=True,
                                    skip_all_reduce_unused_params=True)  # fmt: skip
    model.register_comm_hook(None, droptest.torch.ddp_hook(network))
    for _ in range(3):
        model(torch.ones(1, 4000), (0, 2)).backward()
    return network.statistics().classes["dp_gradient"]["collectives"]


def resumed(rank, world_size, source, is_loaded):
    """The warnings of a training that is resumed."""
    network = droptest.Network(source)
    if is_loaded:
        network.load_state_dict(network.state_dict())
    model = DistributedDataParallel(small_model(), bucket_cap_mb=0.01)
    model.register_comm_hook(None, droptest.torch.ddp_hook(network))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for inputs, targets in batches(rank, 4):
            torch.nn.functional.cross_entropy(model(inputs), targets).backward()
    return [str(one.message) for one in caught if "cut its buckets anew" in str(one.message)]


def hybrid_gradients(rank, world_size, source, is_accumulated=False):
    """The values in this rank's shards of the gradient of 1 + rank, of two replicas of the shards, and the statistics;
    is_accumulated: of two backward passes, of which the first one has no all-reduce."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (2, world_size // 2), mesh_dim_names=("replicas", "shards"))
    model = torch.nn.Linear(20000, 2, bias=False)
    fully_shard(model, mesh=mesh)
    network = droptest.torch.attach(model, source)
    inputs = torch.full((1, 20000), 1.0 + rank)
    if is_accumulated:
        model.set_requires_all_reduce(False)
        model(inputs).sum().backward()
        model.set_requires_all_reduce(True)
    model(inputs).sum().backward()
    values = model.weight.grad.to_local().reshape(-1).tolist()
    return {"values": values, "record": network.statistics().record}


def replicas_of_one_shard(rank, world_size):
    """What attach() raises."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (world_size, 1), mesh_dim_names=("replicas", "shards"))
    model = torch.nn.Linear(20, 2)
    fully_shard(model, mesh=mesh)
    try:
        droptest.torch.attach(model, {"network": {"loss": bernoulli(0)}})
    except ValueError as error:
        return str(error)
    return None


def attached(rank, world_size, case):
    """What attach() of a model raises, or the packets of a step and the ranks of the network."""
    pairs = [dist.new_group([first, first + 1]) for first in range(0, world_size, 2)]
    own = [dist.new_group([one]) for one in range(world_size)][rank]
    source = {"network": {"loss": bernoulli(0.5)}, "seed": 7}
    plain = torch.nn.Linear(2000, 8)
    model = DistributedDataParallel(plain, process_group=pairs[rank // 2] if case == "pair" else None)
    refused = {"plain": plain, "no module": "model", "data parallel": torch.nn.DataParallel(plain)}
    for name in ("FullyShardedDataParallel", "DeepSpeedEngine"):
        refused[name] = type(name, (torch.nn.Module,), {})()
    try:
        if case in refused:
            droptest.torch.attach(refused[case], source)
        network = droptest.Network(source) if case == "network" else None
        group = own if case == "other group" else None
        found = droptest.torch.attach(model, network or source, group)
        if case == "twice":
            droptest.torch.attach(model, source)
    except droptest.NetworkError as error:
        return str(error)
    assert network in (None, found)
    model(torch.ones(4, 2000)).sum().backward()
    return [found.statistics().classes["dp_gradient"]["packets"], found.world_size]
