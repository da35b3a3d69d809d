# SPDX-License-Identifier: Apache-2.0
"""Collectives of the tests, as functions for run_ranks()."""

from __future__ import annotations

import torch
import torch.distributed as dist

import droptest
import droptest.torch

PACKET = 352  # elements of float32


def rescaled_sum(rank, world_size, source):
    """The sum of ones of 100 packets, and the number of lost contributions to each packet."""
    network = droptest.Network(source)
    group = droptest.torch.lossy(None, network)
    lost = sum(network_of(source, world_size, other).fates(0, 100).astype(int) for other in range(world_size))
    values = torch.ones(100 * PACKET - 5)
    group.all_reduce(values)
    asynchronous = torch.ones(100 * PACKET - 5)
    group.all_reduce(asynchronous, async_op=True).wait()
    assert not torch.equal(values, asynchronous)  # other packets
    assert set(asynchronous.tolist()) == {0, world_size}
    messages = [torch.ones(100 * PACKET), torch.ones(100 * PACKET)]
    works = [group.all_reduce(message, async_op=True) for message in messages]
    for work in reversed(works):
        work.wait()
    for message in messages:
        assert set(message.tolist()) == {0, world_size}
    return {"results": values.tolist(), "lost_contributions": lost.tolist()}


def network_of(source, world_size, rank):
    return droptest.Network(source, rank=rank, world_size=world_size).flow("dp_gradient", rank)


def control_lossless(rank, world_size, source):
    network = droptest.Network(source)
    group = droptest.torch.lossy(None, network)
    objects = [None] * world_size
    dist.all_gather_object(objects, {"rank": rank})
    broadcast = torch.full((PACKET,), float(rank == 0))
    group.broadcast(broadcast, 0)
    group.barrier()
    integers = torch.ones(PACKET, dtype=torch.int64)
    group.all_reduce(integers)
    small = torch.ones(PACKET - 1)
    group.all_reduce(small)
    return {"objects": objects, "broadcast": broadcast.min().item(), "integers": integers.min().item(),
            "small": small.min().item(), "exempt": network.statistics().exempt}  # fmt: skip


def every_collective(rank, world_size, source):
    """Largest absolute values: with loss, and of PyTorch."""
    network = droptest.Network(source)
    group = droptest.torch.lossy(None, network)
    base = torch.linspace(1, 2, world_size * PACKET) * (rank + 1)
    values = {}

    def note(name, lossy, exact):
        values[name] = (float(lossy.abs().max()), float(exact.abs().max()))

    for name, make in (("all_reduce", lambda: base.clone()), ("strided", lambda: base.repeat(2).view(2, -1).t()[:, 0])):
        lossy, exact = make(), make().contiguous()
        if lossy.is_contiguous():
            group.all_reduce(lossy)
        else:
            group.after_sum(group.before_sum("all_reduce", lossy), lossy)
            whole = lossy.contiguous()
            dist.all_reduce(whole)
            lossy = whole
        dist.all_reduce(exact)
        note(name, lossy, exact)

    chunks = [part.clone() for part in base.chunk(world_size)]
    lossy, exact = torch.empty(PACKET), torch.empty(PACKET)
    if dist.get_backend() == "gloo":  # whose reduce-scatters not every version has
        try:
            dist.reduce_scatter(exact, [part.clone() for part in chunks])
            group.reduce_scatter(lossy, chunks)
            assert torch.equal(torch.cat(chunks), base)  # the input stays
            note("reduce_scatter", lossy, exact)
        except RuntimeError as error:
            assert "not support reduce_scatter" in str(error), error
    gathered, expected = [torch.empty_like(base) for _ in range(world_size)], [torch.empty_like(base)] * world_size
    before = base.clone()
    group.all_gather(gathered, base)
    dist.all_gather(expected, base)
    assert torch.equal(base, before)
    note("all_gather", torch.cat(gathered), torch.cat(expected))
    return values


def split_groups(rank, world_size, source):
    network = droptest.Network(source)
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    middle = dist.new_group([1, 2])
    world = droptest.torch.lossy(None, network)
    pair = droptest.torch.lossy(pairs[rank // 2], network)
    if rank == 1:
        network._group_numbers["another"] = (5, None)  # of a group that the others are not in
    numbers = [world.number, pair.number]
    if rank in (1, 2):
        numbers.append(droptest.torch.lossy(middle, network).number)
    results = {}
    for name, group in (("world", world), ("pair", pair)):
        values = torch.ones(64 * PACKET)
        group.all_reduce(values)
        results[name] = values[::PACKET].tolist()
    return results | {"numbers": numbers}
