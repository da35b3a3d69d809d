# SPDX-License-Identifier: Apache-2.0
"""Packet loss under FSDP2 (fully_shard), by its custom communication of torch 2.11 and later."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from droptest.network import Network
from droptest.torch.group import LossyGroup, Sum


def fully_shard_hooks(module: torch.nn.Module, network: Network) -> None:
    """Puts loss under the reduce-scatters (traffic class dp_gradient) and all-gathers (parameter_gather) of every
    module in `module` that fully_shard() has made, and under the all-reduces (dp_gradient) between the replicas of
    hybrid sharding.

    Each rank loses packets of its own message in FSDP's buffers, without copies. A mean (AVG) divides by all ranks of
    the group, whatever has arrived; the fills count_rescale and inverse_probability scale it. Ranks: all, after
    fully_shard() and before the first step. Raises: RuntimeError where PyTorch has no custom communication, ValueError
    where no module is sharded, and for replicas that are not sharded.
    """
    sharded = sharded_parts(module)
    if not sharded:
        raise ValueError("module: got one without a part made by fully_shard(), want fully_shard(module) before")
    if not hasattr(sharded[0], "set_custom_all_gather"):
        raise RuntimeError(f"FSDP2: got torch {torch.__version__}, want 2.11 or later, which has custom communication")
    groups = _Groups(network)
    registered = []
    for part in sharded:
        parameters = _parameters_of(part)
        replicas = _replicas_of(parameters)
        if replicas is not None and _shards_of(parameters) == 1:
            raise ValueError(
                f"module: got {type(part).__name__} with {replicas.size()} replicas of one shard each, for which FSDP2 "
                "has no custom communication; want 2 shards or more, or a DistributedDataParallel"
            )
        registered.append((part, _ReduceScatter(groups, parameters, replicas)))
    for part, reduce_scatter in registered:
        part.set_custom_all_gather(_AllGather(groups))
        part.set_custom_reduce_scatter(reduce_scatter)
        if reduce_scatter.replicas is not None:
            part.set_all_reduce_hook(reduce_scatter.after_all_reduce)


def sharded_parts(module: torch.nn.Module) -> list[torch.nn.Module]:
    """The modules in it that fully_shard() has made."""
    return [part for part in module.modules() if hasattr(part, "unshard") and hasattr(part, "reshard")]


def _parameters_of(part: torch.nn.Module) -> Any:
    """The parameter group of a sharded module; None: it has no parameters of its own. PyTorch has custom communication
    for modules with one group alone, and refuses others."""
    state = part._get_fsdp_state()
    groups = getattr(state, "_fsdp_param_groups", None) or [getattr(state, "_fsdp_param_group", None)]
    return groups[0]


def _replicas_of(parameters: Any) -> Any:
    """The process group of the replicas in hybrid sharding; None: there are none."""
    return getattr(getattr(parameters, "mesh_info", None), "replicate_process_group", None)


def _shards_of(parameters: Any) -> int:
    shards = getattr(parameters.mesh_info, "shard_process_group", None)
    return 1 if shards is None else shards.size()


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
    """The reduce-scatter of a module, and what it loses in the all-reduce between replicas, which FSDP calls itself
    right after it."""

    def __init__(self, groups: _Groups, parameters: Any, replicas: Any) -> None:
        super().__init__(groups)
        self.replicas = replicas
        self._parameters = parameters
        self._begun: Sum | None = None  # the all-reduce under way
        self._hook = getattr(parameters, "_all_reduce_hook", None)  # of the program

    def __call__(
        self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: Any, op: Any, async_op: bool = False
    ) -> Any:
        # The input is FSDP's buffer, which nobody reads later.
        lossy = self._groups.of(group)
        begun = lossy.before_sum("reduce_scatter", input_tensor, op)
        work = dist.reduce_scatter_tensor(output_tensor, input_tensor, op, group=group, async_op=async_op)
        work = lossy.finished(work, begun, lambda: lossy.after_part(begun, output_tensor))
        if self.replicas is not None and self._parameters.all_reduce_grads:
            if work is not None:
                work.wait()
            self._begin_all_reduce(output_tensor)
        return work

    def _begin_all_reduce(self, output: torch.Tensor) -> None:
        """Loses packets of this rank's contribution to the all-reduce, which has the sums of earlier backward passes
        without an all-reduce in it. FSDP adds these after this call, so they are added here: adding -0 is exact."""
        earlier = self._parameters._partial_reduce_output
        if earlier is not None:
            output += earlier
            earlier.fill_(-0.0)
        self._begun = self._groups.of(self.replicas).before_sum("all_reduce", output)

    def after_all_reduce(self, output: torch.Tensor) -> None:
        begun, self._begun = self._begun, None
        self._groups.of(self.replicas).after_sum(begun, output)
        if self._hook is not None:
            self._hook(output)
