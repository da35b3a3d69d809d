# SPDX-License-Identifier: Apache-2.0
"""Packet loss under PyTorch's collectives, in Python alone (docs/pytorch.md).

>>> import droptest.torch
>>> network = droptest.Network("network.json")  # after init_process_group
>>> model.register_comm_hook(None, droptest.torch.ddp_hook(network))  # DistributedDataParallel
>>> group = droptest.torch.lossy(process_group, network)  # group.all_reduce(tensor), group.all_gather(...), ...
>>> droptest.torch.fully_shard_hooks(module, network)  # FSDP2, torch 2.11 and later

Every rank loses packets of its own contribution before the collective, so all ranks get equal results, nothing more
travels, and without loss the bits are those of PyTorch.
"""

from droptest.torch.ddp import ddp_hook
from droptest.torch.fsdp import fully_shard_hooks
from droptest.torch.group import LossyGroup, lossy

__all__ = ["LossyGroup", "ddp_hook", "fully_shard_hooks", "lossy"]
