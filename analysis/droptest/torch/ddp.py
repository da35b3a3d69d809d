# SPDX-License-Identifier: Apache-2.0
"""A communication hook of DistributedDataParallel that loses packets of gradient buckets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from droptest.network import Network, NetworkError
from droptest.torch.callbacks import then
from droptest.torch.group import LossyGroup


def ddp_hook(network: Network, process_group: Any = None) -> Callable[[Any, Any], Any]:
    """A hook for DistributedDataParallel.register_comm_hook(None, hook): each rank loses packets of its buckets, and
    the buckets are averaged as without a hook.

    process_group: that of the model; None: the group of all ranks. The packets of a step's buckets follow each other on
    the rank's link in the order of the buckets' indices. PyTorch cuts the buckets anew after the first step, and with
    them change the fates of a gradient: they depend on the sizes of the buckets before it. Traffic class dp_gradient,
    unless a rule for all_reduce says otherwise. Ranks: all of the group. Raises: NetworkError.
    """
    group = LossyGroup(process_group, network)
    order = _BucketOrder(network)

    # Without annotations: register_comm_hook() compares them with PyTorch's own types.
    def hook(_state, bucket):
        buffer = bucket.buffer()
        order.check(bucket.index())
        buffer.mul_(1 / len(group.ranks))  # as DistributedDataParallel does without a hook, to the bit
        begun = group.before_sum("all_reduce", buffer)
        work = dist.all_reduce(buffer, group=group.process_group, async_op=True)

        def finished(future):
            result = future.value()[0]
            group.after_sum(begun, result)
            return result

        return then(work.get_future(), finished)

    return hook


class _BucketOrder:
    """The packets of a bucket come after those of the buckets before it, so the order must be that of the indices."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._last = -1

    def check(self, index: int) -> None:
        if index not in (0, self._last + 1):
            raise NetworkError(
                "argument",
                f"rank {self._network.rank} of {self._network.world_size}: bucket: got index {index} after "
                f"{self._last}, want 0 or {self._last + 1}: one hook is for one model",
            )
        self._last = index
