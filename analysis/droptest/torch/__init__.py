# SPDX-License-Identifier: Apache-2.0
"""Packet loss under PyTorch's collectives, in Python alone (docs/pytorch.md).

>>> import droptest.torch
>>> network = droptest.torch.attach(model, "network.json")  # a DistributedDataParallel, or after fully_shard()
>>> network.log(step, training_loss=loss)
>>> network.finish(validation_loss=loss)
>>> group = droptest.torch.lossy(process_group, network)  # group.all_reduce(tensor), group.all_gather(...), ...

Every rank loses packets of its own contribution before the collective, so all ranks get equal results, nothing more
travels, and without loss the bits are those of PyTorch.
"""

from importlib import import_module

from droptest.extras import needed_by

with needed_by("droptest.torch"):
    from droptest.torch.attaching import attach
    from droptest.torch.ddp import ddp_hook
    from droptest.torch.fsdp import fully_shard_hooks
    from droptest.torch.group import LossyGroup, lossy

# Loaded at their first use: they need packages of their own.
_MODULE_OF = {
    "LightningCallback": "droptest.torch.lightning_callback",
    "TrainerCallback": "droptest.torch.trainer_callback",
}
__all__ = ["LightningCallback", "LossyGroup", "TrainerCallback", "attach", "ddp_hook", "fully_shard_hooks", "lossy"]


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'droptest.torch' has no attribute {name!r}")
    return getattr(import_module(_MODULE_OF[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_MODULE_OF])
