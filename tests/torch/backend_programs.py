# SPDX-License-Identifier: Apache-2.0
"""Programs of the tests of the backend, as functions for run_ranks(): without a word about loss in them."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from training import batches, digest_of, small_model, train_ddp, train_fsdp


def train_tensor_parallel(rank, world_size, steps=20, device="cpu"):
    """An MLP with a column-parallel and a row-parallel layer, by DTensor."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(64, 400), torch.nn.GELU(), torch.nn.Linear(400, 64))
    model.to(device)
    mesh = init_device_mesh(device, (world_size,))
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    digests = []
    for inputs, _ in batches(0, steps, device):
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
        digests.append(digest_of(parameter.to_local() for parameter in model.parameters()))
    return {"digests": digests}


def train_pipeline(rank, world_size, steps=20, device="cpu"):
    """Two stages that send activations and gradients to each other."""
    torch.manual_seed(rank)
    stage = torch.nn.Linear(64, 64).to(device)
    optimizer = torch.optim.SGD(stage.parameters(), lr=0.1)
    digests = []
    for inputs, targets in batches(0, steps, device):
        optimizer.zero_grad()
        if rank == 0:
            activations = stage(inputs)
            gradient = torch.empty_like(activations)
            send = dist.P2POp(dist.isend, activations.detach(), 1)
            for work in dist.batch_isend_irecv([send, dist.P2POp(dist.irecv, gradient, 1)]):
                work.wait()
            activations.backward(gradient)
        else:
            activations = torch.empty(16, 64, device=device)
            for work in dist.batch_isend_irecv([dist.P2POp(dist.irecv, activations, 0)]):
                work.wait()
            activations.requires_grad_()
            cross_entropy(stage(activations), targets).backward()
            for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, activations.grad, 0)]):
                work.wait()
        optimizer.step()
        digests.append(digest_of(stage.parameters()))
    return {"digests": digests}


def trainings(rank, world_size, steps=20, device="cpu"):
    """All of the above by name, in one process: digests of the weights after each step."""
    programs = {"ddp": train_ddp, "fsdp": train_fsdp, "tensor parallel": train_tensor_parallel,
                "pipeline": train_pipeline}  # fmt: skip
    if device == "cpu" and not hasattr(torch.cpu.Stream, "record_event"):
        del programs["fsdp"]  # the one of 2.6 does not run on CPUs
    return {name: train(rank, world_size, steps=steps, device=device)["digests"] for name, train in programs.items()}


def collectives(rank, world_size, elements=20000, device="cpu"):
    """Results of one call of each kind, as lists."""
    ones = torch.ones(elements, device=device)
    found = {}
    found["all_reduce"] = ones.clone()
    dist.all_reduce(found["all_reduce"])
    work = dist.all_reduce(second := ones.clone(), async_op=True)
    work.get_future().wait()
    found["second"] = second
    kept = torch.ones(world_size * elements, device=device)
    found["reduce_scatter"] = torch.zeros(elements, device=device)
    dist.reduce_scatter_tensor(found["reduce_scatter"], kept)
    found["inputs_kept"] = kept
    found["all_gather"] = torch.zeros(world_size * elements, device=device)
    dist.all_gather_into_tensor(found["all_gather"], ones)
    parts = [torch.zeros(elements, device=device) for _ in range(world_size)]
    dist.all_gather(parts, ones)
    found["all_gather_list"] = torch.cat(parts)
    found["all_to_all"] = torch.zeros(world_size * elements, device=device)
    dist.all_to_all_single(found["all_to_all"], kept)
    found["received"] = torch.zeros(elements, device=device)
    if rank == 0:
        dist.send(ones, 1)
    elif rank == 1:
        dist.recv(found["received"], 0)
    found["ones_kept"] = ones
    return {name: tensor.tolist() for name, tensor in found.items()}


def in_a_graph(rank, world_size, elements=20000, replays=3):
    """Sums of ones by a CUDA graph: one before the capture, and one of each replay."""
    ones = torch.ones(elements, device="cuda")
    result = ones.clone()
    dist.all_reduce(result)
    results = [result.tolist()]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result.copy_(ones)
        dist.all_reduce(result)
    for _ in range(replays):
        graph.replay()
        results.append(result.tolist())
    return results


def beside_computation(rank, world_size, elements=4_000_000):
    """Minimum and maximum of a sum that begins while its input is being computed, and is read on other streams."""
    dist.all_reduce(torch.ones(1, device="cuda"))
    factor = torch.eye(2048, device="cuda")
    data = torch.zeros(elements, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(20):
            factor = factor @ factor
        data += factor[0, 0]
        work = dist.all_reduce(data, async_op=True)
        work.wait()
        found = [data.min(), data.max()]
        data.fill_(7)
    torch.cuda.current_stream().wait_stream(side)
    return [value.item() for value in found]


def follow_up(rank, world_size, elements=20000):
    """A sum that begins in the callback of another sum's future."""
    first, second = torch.ones(elements), torch.ones(elements)
    works = []
    begun = dist.all_reduce(first, async_op=True).get_future()
    begun.then(lambda _: works.append(dist.all_reduce(second, async_op=True))).wait()
    works[0].wait()
    return [first.unique().tolist(), second.unique().tolist()]


def reduce_and_save(rank, world_size, elements=20000):
    """The network's state after a sum to rank 0."""
    import droptest.torch.backend

    dist.reduce(torch.ones(elements), dst=0)
    return droptest.torch.backend.network().state_dict()


def closed(rank, world_size, elements=20000):
    """The error of a sum after the end of the network."""
    import droptest.torch.backend

    dist.all_reduce(torch.ones(elements))
    store = dist.distributed_c10d._get_default_store()
    store.set(f"rank {rank} has the sum", "")  # before another one ends
    store.wait([f"rank {other} has the sum" for other in range(world_size)])
    droptest.torch.backend.network().close()
    try:
        dist.all_reduce(torch.ones(elements))
    except RuntimeError as error:
        return str(error)
    return "no error"


def exempt(rank, world_size):
    """Traffic of a training that is exempt from loss: construction, object gathers, norms, broadcasts, barriers."""
    from torch.nn.parallel import DistributedDataParallel

    model = DistributedDataParallel(small_model(seed=rank))  # takes the parameters of rank 0
    objects = [None] * world_size
    dist.all_gather_object(objects, {"rank": rank, "text": "x" * 5000})
    shared = [{"from": rank}]
    dist.broadcast_object_list(shared, src=0)
    numbers = torch.full((5000,), rank + 1)
    dist.all_reduce(numbers)
    norm = torch.tensor(1.0)
    dist.all_reduce(norm)
    smallest = torch.full((5000,), rank + 1.0)
    dist.all_reduce(smallest, op=dist.ReduceOp.MIN)
    dist.barrier()
    gradients = []
    for inputs, targets in batches(rank, 1):
        cross_entropy(model(inputs), targets).backward()
        gradients = [float(parameter.grad.abs().max()) for parameter in model.parameters() if parameter.numel() > 2000]
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    return {"weights": digest_of(model.parameters()), "objects": objects, "shared": shared, "gradients": gradients,
            "numbers": numbers.unique().tolist(), "norm": norm.item(),
            "smallest": smallest.unique().tolist()}  # fmt: skip


def subgroups(rank, world_size, elements=20000):
    """Sums of ones in groups: the odd and the even ranks, then all ranks again; and the backends' numbers."""
    groups = [dist.new_group([r for r in range(world_size) if r % 2 == parity]) for parity in (0, 1)]
    mine = groups[rank % 2]
    sums = []
    for group in (mine, dist.group.WORLD):
        data = torch.ones(elements)
        dist.all_reduce(data, group=group)
        sums.append(data.tolist())
    number = getattr(mine._get_backend(torch.device("cpu")), "number", None)
    return {"sums": sums, "number": number}


def backend_types(rank, world_size):
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    return {"type": type(backend).__name__, "is_group": isinstance(backend, dist.ProcessGroup),
            "name": dist.get_backend(), "sum": tensor.tolist()}  # fmt: skip


def dies(rank, world_size):
    """Rank 1 ends in the middle."""
    if rank == 1:
        os._exit(3)
    dist.all_reduce(torch.ones(5000))


def both_devices(rank, world_size, elements=5000):
    """A backend for host memory over gloo, and a fake one that takes tensors of any device and does nothing."""
    from torch._C._distributed_c10d import FakeProcessGroup

    from droptest.torch.build import extension

    store = dist.PrefixStore("both", dist.distributed_c10d._get_default_store())
    gloo = dist.ProcessGroupGloo(dist.PrefixStore("gloo", store), rank, world_size)
    both = extension().ByDevice(gloo, FakeProcessGroup._create_internal(rank, world_size))
    options = dist.AllreduceOptions()
    data = torch.ones(elements)
    both.allreduce([data], options).wait()
    elsewhere = torch.ones(elements, device="meta")
    both.allreduce([elsewhere], options).wait()
    gathered = [[torch.zeros(elements) for _ in range(world_size)]] if rank == 0 else []
    both.gather(gathered, [data], dist.GatherOptions()).wait()
    both.gather([[elsewhere] * world_size] if rank == 0 else [], [elsewhere], dist.GatherOptions()).wait()

    received = torch.zeros(elements)
    both._start_coalescing()
    if rank == 1:
        both.recv([received], 0, 0)
        work = both._end_coalescing()
        early = work.is_completed()
        store.set("waits", "")
    else:
        store.wait(["waits"])
        both.send([data], 1, 0)
        work = both._end_coalescing()
        early = False
    work.wait()
    return {"sum": data.unique().tolist(), "gathered": [one.unique().tolist() for row in gathered for one in row],
            "received": received.unique().tolist(), "early": early}  # fmt: skip


def left_behind(rank, world_size, elements=20000):
    """Ends groups whose works nobody waits for, and whose tensors are then freed by the threads of gloo."""
    for _ in range(20):
        group = dist.new_group()
        dist.all_reduce(torch.ones(elements), group=group, async_op=True)
        dist.destroy_process_group(group)
    return True


def split(rank, world_size, elements=20000):
    """A sum of ones in the odd or the even ranks, and what the part's backend is. split_group() of torch.distributed
    wants a GPU; the function below it does not."""
    part = dist.group.WORLD.split_group([rank % 2, rank % 2 + 2], group_name=f"part {rank % 2}")
    data = torch.ones(elements)
    part.allreduce([data]).wait()
    backend = part._get_backend(torch.device("cpu"))
    return {"sum": data.tolist(), "type": type(backend).__name__, "number": getattr(backend, "number", None)}


def unknown(rank, world_size):
    """The error of a function that moves data and is not the backend's own."""
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    try:
        backend.new_window()
    except RuntimeError as error:
        return str(error).splitlines()[0]
    return "no error"


def different_seeds(rank, world_size):
    """The text of the refusal of a group over gloo's."""
    import droptest.torch.backend

    droptest.torch.backend.use({"network": {"loss": {"model": "bernoulli", "loss_rate": 0.1}}, "seed": 1 + rank})
    try:
        dist.new_group(backend="droptest")
    except RuntimeError as error:
        return str(error)
    return None
