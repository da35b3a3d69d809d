# SPDX-License-Identifier: Apache-2.0
"""Puts loss under a model that its framework has wrapped, whichever way it travels."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from weakref import WeakSet

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from droptest.network import Network, NetworkError
from droptest.torch.ddp import ddp_hook
from droptest.torch.fsdp import fully_shard_hooks, sharded_parts
from droptest.torch.group import world_ranks

_attached: WeakSet[torch.nn.Module] = WeakSet()  # models of DDP, and modules that fully_shard() has made

ALLOWED = "a DistributedDataParallel, or a module after fully_shard() (FSDP2, also with replicas)"
OTHERS = {  # by the names of their classes
    "FullyShardedDataParallel": "FSDP1 has no place for loss: fully_shard() is FSDP2, and the backend droptest loses "
    "packets below FSDP1 (docs/pytorch_backend.md)",
    "DeepSpeedEngine": "DeepSpeed has collectives of its own: the backend droptest loses packets below them "
    "(docs/pytorch_backend.md)",
    "DataParallel": "DataParallel is one process, which sends nothing",
}


def attach(
    model: torch.nn.Module, network: Network | Mapping[str, Any] | str | Path | None = None, process_group: Any = None
) -> Network:
    """Puts loss under the gradients of a DistributedDataParallel, or under the gradients and parameters of a module
    after fully_shard(), also with replicas; as ddp_hook() and fully_shard_hooks() do. Returns the network.

    network: one that is there, or what droptest.Network takes; None: the file that DROPTEST_NETWORK names.
    process_group: the one that a DistributedDataParallel must have; None: any.
    Ranks: all, after the model is wrapped and before its first step. Raises: NetworkError, also for a model that has
    loss already; RuntimeError for FSDP2 with a torch before 2.11.
    """
    if not (dist.is_available() and dist.is_initialized()):
        raise NetworkError("argument", "attach: torch.distributed: got no process group, want attach() after the model "
                           "is wrapped; TrainerCallback and LightningCallback wait for it")  # fmt: skip
    wrapped = getattr(model, "_orig_mod", model)  # of torch.compile()
    if not isinstance(wrapped, torch.nn.Module):
        raise _error(f"model: got {type(model).__name__}, want {ALLOWED}")
    is_ddp = isinstance(wrapped, DistributedDataParallel)
    parts = [wrapped] if is_ddp else sharded_parts(wrapped)
    if type(wrapped).__name__ in OTHERS or not parts:
        hint = next((OTHERS[base.__name__] for base in type(wrapped).__mro__ if base.__name__ in OTHERS),
                    "call attach() after the model is wrapped")  # fmt: skip
        raise _error(f"model: got {type(model).__name__}, want {ALLOWED}; {hint}")
    if not _attached.isdisjoint(parts):
        raise _error(f"model: got {type(model).__name__} that is attached to a network already, want one attach() for "
                     "each model")  # fmt: skip
    _check_group(wrapped, is_ddp, process_group)
    made = None if isinstance(network, Network) else Network(network)
    used = network if made is None else made
    try:
        if is_ddp:
            wrapped.register_comm_hook(None, ddp_hook(used, wrapped.process_group))
        else:
            fully_shard_hooks(wrapped, used)
    except BaseException:
        if made is not None:
            made.close()
        raise
    _attached.update(parts)
    return used


def is_attached(model: torch.nn.Module) -> bool:
    """Whether the model, or a part of it, is attached to a network."""
    return not _attached.isdisjoint(model.modules())


def _check_group(model: Any, is_ddp: bool, process_group: Any) -> None:
    if process_group is None:
        return
    if not is_ddp:
        raise _error("process_group: got one, want none for FSDP2, whose modules have their meshes")
    wanted, got = world_ranks(model.process_group), world_ranks(process_group)
    if got != wanted:
        raise _error(f"process_group: got the ranks {got}, want those of the model's: {wanted}")


def _error(text: str) -> NetworkError:
    return NetworkError("argument", f"rank {dist.get_rank()} of {dist.get_world_size()}: attach: {text}")
