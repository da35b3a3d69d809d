# SPDX-License-Identifier: Apache-2.0
"""Collectives of the tests, as functions for run_ranks()."""

from __future__ import annotations

import datetime

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


def ways_to_the_results(rank, world_size, source):
    """Values of the sums of ones after each way to ask a work for its results, and after all of them."""
    group = droptest.torch.lossy(None, droptest.Network(source))

    def completed(work):
        while not work.is_completed():
            pass

    ways = {
        "wait": lambda work: work.wait(),
        "wait_timeout": lambda work: work.wait(datetime.timedelta(seconds=60)),
        "synchronize": lambda work: work.synchronize(),
        "is_completed": completed,
        "is_success": lambda work: work.wait() and work.is_success(),
        "future": lambda work: work.get_future().wait(),
        "all": lambda work: [way(work) for name, way in ways.items() if name != "all"],
    }
    values = {}
    for name, way in ways.items():
        ones = torch.ones(100 * PACKET)
        way(group.all_reduce(ones, async_op=True))
        values[name] = sorted(set(ones.tolist()))
        dist.barrier()
    work = group.all_reduce(torch.ones(100 * PACKET), async_op=True)
    try:
        values["unknown"] = str(work.results_by_another_way)
    except AttributeError as error:
        values["unknown"] = str(error)
    work.wait()
    return values


def operations(rank, world_size, source):
    """What operations of LossyGroup give of each rank's ones, with the arguments of torch.distributed, and the record.
    The group is that of ranks 1 and onwards."""
    network = droptest.Network(source)
    part = dist.new_group(list(range(1, world_size)))
    if rank == 0:
        return None
    group = droptest.torch.lossy(part, network)
    ranks, me = world_size - 1, rank - 1
    following, previous = (me + 1) % ranks, (me - 1) % ranks
    values = {}

    def ones(packets=20):
        return torch.ones(packets * PACKET)

    def note(name, tensor, given=None):
        values[name] = tensor.reshape(-1)[::PACKET].tolist()
        if given is not None:
            assert torch.equal(given, torch.ones_like(given)), name  # inputs stay

    given, found = ones(20 * ranks), torch.zeros(20 * ranks * PACKET)
    try:
        group.all_to_all_single(found, given)
        note("all_to_all_single", found, given)
        rows = torch.zeros(2 * ranks, 10 * PACKET)
        group.all_to_all_single(output=rows, input=torch.ones_like(rows), output_split_sizes=[2] * ranks,
                                input_split_sizes=[2] * ranks, async_op=True).wait()  # fmt: skip
        note("all_to_all_rows", rows)
    except RuntimeError as error:
        assert "does not support" in str(error), error
    found = torch.zeros(20 * PACKET)
    for work in [group.isend(ones(), group_dst=following), group.irecv(found, group_src=previous)]:
        work.wait()
    note("isend", found)
    given, found = ones(), torch.zeros(20 * PACKET)
    if me == 0:
        group.send(given, 2, tag=3)
        note("send", given, given)
    elif me == 1:
        assert group.recv(found, src=1, tag=3) == 1
        note("recv", found)
    given = ones()
    group.reduce(given, group_dst=1)
    note("reduce", given, None if me == 1 else given)
    given = ones()
    group.reduce(given, 2, op=dist.ReduceOp.MAX)
    note("reduce_max", given, None if me == 1 else given)
    gathered = [torch.zeros(20 * PACKET) for _ in range(ranks)]
    group.all_gather(tensor_list=gathered, tensor=ones())
    note("all_gather", torch.cat(gathered))
    try:
        found = torch.zeros(ranks * 20 * PACKET)
        group.all_gather_into_tensor(output_tensor=found, input_tensor=ones())
        note("all_gather_into_tensor", found)
    except RuntimeError as error:  # of versions whose gloo has none
        assert "no support" in str(error), error
    found = torch.full((20 * PACKET,), float(me))
    group.broadcast(found, group_src=1)
    note("broadcast", found)
    gathered = [torch.zeros(20 * PACKET) for _ in range(ranks)] if me == 1 else None
    group.gather(ones(), gathered, group_dst=1)
    note("gather", torch.cat(gathered) if me == 1 else ones())
    found = torch.zeros(20 * PACKET)
    group.scatter(found, [ones()] * ranks if me == 0 else None)
    note("scatter", found)
    group.barrier(device_ids=None)
    texts = []
    for call in (lambda: group.broadcast(found), lambda: group.send(found, 1, group_dst=0),
                 lambda: group.send(found, 0), lambda: group.reduce(found, group_dst=ranks),
                 lambda: group.all_gather_object, lambda: group.batch_isend_irecv,
                 lambda: group.no_such_thing):  # fmt: skip
        try:
            call()
            texts.append("")
        except (ValueError, AttributeError) as error:
            texts.append(str(error))
    return {"values": values, "texts": texts, "record": network.statistics().record}
