# SPDX-License-Identifier: Apache-2.0
"""Packet loss under FSDP2 (fully_shard), by its custom communication of torch 2.11 and later."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from droptest.network import Network
from droptest.torch.group import LossyGroup
from droptest.torch.tensors import shape_of


def fully_shard_hooks(module: torch.nn.Module, network: Network) -> None:
    """Puts loss under the reduce-scatters (traffic class dp_gradient) and all-gathers (parameter_gather) of every
    module in `module` that fully_shard() has made.

    Each rank loses packets of its own message in FSDP's buffers, without copies. A mean (AVG) divides by all ranks of
    the group, whatever has arrived; the fills count_rescale and inverse_probability scale it. The all-reduce between
    the replicas of hybrid sharding loses nothing, and is counted as exempt. Ranks: all, after fully_shard() and before
    the first step. Raises: RuntimeError where PyTorch has no custom communication, ValueError where no module is
    sharded.
    """
    sharded = [part for part in module.modules() if hasattr(part, "unshard") and hasattr(part, "reshard")]
    if not sharded:
        raise ValueError("module: got one without a part made by fully_shard(), want fully_shard(module) before")
    if not hasattr(sharded[0], "set_custom_all_gather"):
        raise RuntimeError(f"FSDP2: got torch {torch.__version__}, want 2.11 or later, which has custom communication")
    groups = _Groups(network)
    for part in sharded:
        part.set_custom_all_gather(_AllGather(groups))
        part.set_custom_reduce_scatter(_ReduceScatter(groups, part))


class _Groups:
    """The process groups of the shards, by the order of their first calls, which is the same on all ranks."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self._groups: dict[int, LossyGroup] = {}

    def of(self, process_group: Any) -> LossyGroup:
        if id(process_group) not in self._groups:
            self._groups[id(process_group)] = LossyGroup(process_group, self.network)
        return self._groups[id(process_group)]


class _Communication:
    def __init__(self, groups: _Groups) -> None:
        self._groups = groups

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return torch.empty(*size, dtype=dtype, device=device)


class _AllGather(_Communication):
    def __call__(
        self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: Any, async_op: bool = False
    ) -> Any:
        return self._groups.of(group).all_gather_into_tensor(output_tensor, input_tensor, async_op)


class _ReduceScatter(_Communication):
    def __init__(self, groups: _Groups, part: torch.nn.Module) -> None:
        super().__init__(groups)
        self._part = part

    def __call__(
        self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: Any, op: Any, async_op: bool = False
    ) -> Any:
        # The input is FSDP's buffer, which nobody reads later.
        lossy = self._groups.of(group)
        begun = lossy.before_sum("reduce_scatter", input_tensor, op)
        self._count_replicas(output_tensor)
        work = dist.reduce_scatter_tensor(output_tensor, input_tensor, op, group=group, async_op=async_op)
        return lossy.finished(work, begun, lambda: lossy.after_part(begun, output_tensor))

    def _count_replicas(self, output: torch.Tensor) -> None:
        """The all-reduce that follows between the replicas of hybrid sharding, which FSDP calls itself."""
        state = self._part._get_fsdp_state()
        for parameters in getattr(state, "_fsdp_param_groups", None) or [state._fsdp_param_group]:
            replicas = getattr(parameters.mesh_info, "replicate_process_group", None)
            if replicas is not None and parameters.all_reduce_grads:
                elements, dtype = shape_of(output)
                self._groups.network.count_exempt("all_reduce", elements, dtype, group_ranks=replicas.size(),
                                                  group=str(getattr(replicas, "group_desc", "")))  # fmt: skip
