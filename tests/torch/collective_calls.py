# SPDX-License-Identifier: Apache-2.0
"""One call of each collective of torch.distributed (plain, coalesced, functional, DTensor), for run_ranks(). Messages
are ones of whole packets, so that a value of a packet says which ranks' packets have arrived."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist

PACKET = 352  # elements of float32
PACKETS = 20  # of a message
LENGTH = PACKET * PACKETS


def ones(messages: int = 1) -> torch.Tensor:
    return torch.ones(messages * LENGTH)


def zeros(messages: int = 1) -> torch.Tensor:
    return torch.zeros(messages * LENGTH)


def of_torch(rank: int, world_size: int) -> dict[str, Callable[[], list[torch.Tensor]]]:
    """Results of calls of torch.distributed itself."""

    def in_place(call: Callable[[torch.Tensor], object], tensor: torch.Tensor | None = None) -> list[torch.Tensor]:
        tensor = ones() if tensor is None else tensor
        call(tensor)
        return [tensor]

    def into(call: Callable[[torch.Tensor, torch.Tensor], object], outputs: int, inputs: int) -> list[torch.Tensor]:
        output = zeros(outputs)
        call(output, ones(inputs))
        return [output]

    def parts(call: Callable[[list[torch.Tensor]], object]) -> list[torch.Tensor]:
        outputs = [zeros() for _ in range(world_size)]
        call(outputs)
        return [torch.cat(outputs)]

    def asynchronous() -> list[torch.Tensor]:
        tensor = ones()
        dist.all_reduce(tensor, async_op=True).wait()
        return [tensor]

    def reduce() -> list[torch.Tensor]:
        return in_place(lambda tensor: dist.reduce(tensor, 0))[: int(rank == 0)]

    def gather() -> list[torch.Tensor]:
        outputs = [zeros() for _ in range(world_size)]
        dist.gather(ones(), outputs if rank == 0 else None, dst=0)
        return [torch.cat(outputs)] if rank == 0 else []

    def gather_into_one(name: str) -> list[torch.Tensor]:
        output = zeros(world_size if rank == 0 else 0)
        backend = dist.group.WORLD._get_backend(torch.device("cpu"))
        getattr(backend, name)(output, ones(), dist.GatherOptions()).wait()
        return [output] if rank == 0 else []

    def scatter() -> list[torch.Tensor]:
        output = zeros()
        dist.scatter(output, [ones() for _ in range(world_size)] if rank == 0 else None, src=0)
        return [output]

    def all_to_all() -> list[torch.Tensor]:
        return parts(lambda outputs: dist.all_to_all(outputs, [ones() for _ in range(world_size)]))

    def send() -> list[torch.Tensor]:
        tensor = ones() if rank == 0 else zeros()
        dist.send(tensor, 1) if rank == 0 else dist.recv(tensor, 0)
        return [tensor] if rank == 1 else []

    def batch() -> list[torch.Tensor]:
        tensor = ones() if rank == 0 else zeros()
        operation = dist.P2POp(dist.isend, tensor, 1) if rank == 0 else dist.P2POp(dist.irecv, tensor, 0)
        for work in dist.batch_isend_irecv([operation]):
            work.wait()
        return [tensor] if rank == 1 else []

    def barrier() -> list[torch.Tensor]:
        dist.barrier()
        return []

    def monitored_barrier() -> list[torch.Tensor]:
        dist.group.WORLD.monitored_barrier(timedelta(minutes=5), wait_all_ranks=False)
        return []

    def coalesced(call: Callable[..., object], outputs: int, inputs: int) -> list[torch.Tensor]:
        pairs = [(zeros(outputs), ones(inputs)) for _ in range(2)]
        with dist._coalescing_manager():
            for output, tensor in pairs:
                call(output, tensor)
        return [output for output, _ in pairs]

    def coalesced_sums() -> list[torch.Tensor]:
        tensors = [ones(), ones()]
        with dist._coalescing_manager():
            for tensor in tensors:
                dist.all_reduce(tensor)
        return tensors

    calls = {
        "all_reduce": lambda: in_place(dist.all_reduce),
        "all_reduce async": asynchronous,
        "reduce": reduce,
        "reduce_scatter": lambda: into(
            lambda output, tensor: dist.reduce_scatter(output, list(tensor.chunk(world_size))), 1, world_size
        ),
        "reduce_scatter_tensor": lambda: into(dist.reduce_scatter_tensor, 1, world_size),
        "all_gather": lambda: parts(lambda outputs: dist.all_gather(outputs, ones())),
        "all_gather_into_tensor": lambda: into(dist.all_gather_into_tensor, world_size, 1),
        "all_to_all": all_to_all,
        "all_to_all_single": lambda: into(dist.all_to_all_single, world_size, world_size),
        "send": send,
        "batch_isend_irecv": batch,
        "broadcast": lambda: in_place(lambda tensor: dist.broadcast(tensor, 0)),
        "gather": gather,
        "scatter": scatter,
        "barrier": barrier,
        "monitored_barrier": monitored_barrier,
        "coalesced all_reduce": coalesced_sums,
        "coalesced all_gather": lambda: coalesced(dist.all_gather_into_tensor, world_size, 1),
        "coalesced reduce_scatter": lambda: coalesced(dist.reduce_scatter_tensor, 1, world_size),
    }
    for name, messages in (("all_gather_single", (world_size, 1)), ("reduce_scatter_single", (1, world_size))):
        if hasattr(dist, name):
            calls[name] = lambda name=name, messages=messages: into(getattr(dist, name), *messages)
    for name in ("gather_single", "gather_into_tensor"):
        if hasattr(torch._C._distributed_c10d.Backend, name):
            calls[name] = lambda name=name: gather_into_one(name)
    return calls


def functional(world_size: int) -> dict[str, Callable[[], list[torch.Tensor]]]:
    """Results of functional collectives, under their names in this version."""
    from torch.distributed import _functional_collectives as functions

    group = dist.group.WORLD
    calls = {
        "all_reduce": lambda call: [call(ones(), "sum", group)],
        "all_reduce_coalesced": lambda call: call([ones(), ones()], "sum", group),
        "all_gather_tensor": lambda call: [call(ones(), 0, group)],
        "all_gather_single": lambda call: [call(ones(), 0, group)],
        "all_gather_into_tensor_coalesced": lambda call: call([ones(), ones()], group),
        "all_gather_single_coalesced": lambda call: call([ones(), ones()], group),
        "reduce_scatter_tensor": lambda call: [call(ones(world_size), "sum", 0, group)],
        "reduce_scatter_single": lambda call: [call(ones(world_size), "sum", 0, group)],
        "reduce_scatter_tensor_coalesced": lambda call: call([ones(world_size)] * 2, "sum", [0, 0], group),
        "reduce_scatter_single_coalesced": lambda call: call([ones(world_size)] * 2, "sum", [0, 0], group),
        "all_to_all_single": lambda call: [call(ones(world_size), None, None, group)],
        "broadcast": lambda call: [call(ones(), 0, group)],
    }
    return {
        f"functional {name}": lambda name=name, call=call: [
            functions.wait_tensor(one) for one in call(getattr(functions, name))
        ]
        for name, call in calls.items()
        if hasattr(functions, name)
    }


def redistributions(world_size: int) -> dict[str, Callable[[], list[torch.Tensor]]]:
    """Local parts of DTensors after a change of their placement."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

    mesh = init_device_mesh("cpu", (world_size,))

    def changed(local: torch.Tensor, before: object, after: object) -> list[torch.Tensor]:
        tensor = DTensor.from_local(local, mesh, [before], run_check=False)
        return [tensor.redistribute(mesh, [after]).to_local()]

    return {
        "DTensor Shard to Replicate": lambda: changed(ones(), Shard(0), Replicate()),
        "DTensor Partial to Replicate": lambda: changed(ones(), Partial(), Replicate()),
        "DTensor Partial to Shard": lambda: changed(ones(world_size), Partial(), Shard(0)),
        "DTensor Shard to another Shard": lambda: changed(ones().view(1, -1), Shard(0), Shard(1)),
    }


def all_of_them(rank, world_size):
    """For each call its name, the values of the results' packets, and what this rank has counted since the call before:
    packets and lost ones by class, exempt calls by reason. Results None: gloo does not have the operation."""
    import droptest.torch.backend

    found = []
    before: dict[str, dict[str, int]] = {}
    for name, call in (of_torch(rank, world_size) | functional(world_size) | redistributions(world_size)).items():
        try:
            results = [values_of(result) for result in call()]
        except RuntimeError as error:
            if "support" not in str(error) and "implement" not in str(error):
                raise
            results = None
        counts = counts_of(droptest.torch.backend.network())
        found.append([name, results, difference(counts, before)])
        before = counts
    return found


def values_of(result: torch.Tensor) -> list[float]:
    """The value of each packet, whose elements have one value."""
    rows = result.detach().reshape(-1, PACKET)
    assert torch.equal(rows.amin(1), rows.amax(1))
    return rows[:, 0].tolist()


def counts_of(network) -> dict[str, dict[str, int]]:
    record = network.statistics().record
    counts = {name: {"packets": one["packets"], "lost": one["lost"]} for name, one in record["classes"].items()}
    return counts | {reason: {"calls": one["calls"]} for reason, one in record["exempt"].items()}


def difference(counts: dict[str, dict[str, int]], before: dict[str, dict[str, int]]) -> dict[str, dict[str, int]]:
    return {name: {key: value - before.get(name, {}).get(key, 0) for key, value in one.items()}
            for name, one in counts.items() if one != before.get(name)}  # fmt: skip
