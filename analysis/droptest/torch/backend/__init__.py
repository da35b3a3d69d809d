# SPDX-License-Identifier: Apache-2.0
"""The backend "droptest" of torch.distributed (docs/pytorch_backend.md).

>>> import droptest.torch.backend
>>> torch.distributed.init_process_group("droptest")

Every process group then loses packets as the file in the environment variable DROPTEST_NETWORK says: host memory over
gloo, and CUDA tensors over nccl where this process has a GPU. use() gives another network.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from droptest.network import Network

__all__ = ["network", "use"]

NAME = "droptest"
# Later versions warn of it, and do not call it themselves.
_SETS_SEQUENCE_NUMBERS = "_set_sequence_number_for_group" in Path(dist.distributed_c10d.__file__).read_text()


class _GroupsNetwork(Network):
    """Process groups know when it is closed."""

    shared: Any = None  # of the extension

    def close(self) -> None:
        if self.shared is not None and self._handle is not None:
            self.write_statistics()  # an error leaves it open
            self.shared.close()
        super().close()


@dataclass
class _InUse:
    """The network of this process, which all groups share."""

    source: Mapping[str, Any] | str | Path | None = None
    network: Network | None = None
    shared: Any = None  # of the extension
    numbers: dict[Any, int] = field(default_factory=dict)  # of process groups, by their ids and members


_in_use = _InUse()
_kept: list[Network] = []  # groups that were made with them may still be in use


def use(source: Mapping[str, Any] | str | Path) -> None:
    """The network of the groups made from now on: an object or a file (droptest.Network). Before init_process_group."""
    vars(_in_use).update(vars(_InUse(source)))


def network() -> Network | None:
    """The network of this process; None before init_process_group("droptest")."""
    return _in_use.network


def _network_of(rank: int, world_size: int) -> Any:
    from droptest.torch.build import extension

    if _in_use.network is None:
        _in_use.network = _GroupsNetwork(_in_use.source, rank=rank, world_size=world_size)
        _kept.append(_in_use.network)
        _in_use.shared = extension().make_network(_in_use.network._handle, rank)
        _in_use.network.shared = _in_use.shared
    return _in_use.shared


def _device_of(store: Any) -> str:
    """PyTorch makes a backend for each device, and tells it the device in the prefix of its store alone."""
    key = "droptest_device"
    store.set(key, "")
    # PyTorch's prefix ends with a slash, and its PrefixStore adds one.
    return "cuda" if dist.PrefixStore("cuda/", store.underlying_store).check([key]) else "cpu"


def _inner(options: Any, device: str, backend_options: Any) -> Any:
    """gloo for host memory, nccl for CUDA, as torch.distributed makes them. The first device of a group may have the
    others with it: PyTorch makes one backend where all have the same name."""
    from droptest.torch.build import extension

    if not (torch.cuda.is_available() and dist.is_nccl_available()):
        inner = _gloo(options, options.store)
    elif device == "cuda":
        inner = _nccl(options, options.store, backend_options)
    else:
        nccl = _nccl(options, dist.PrefixStore("droptest_cuda", options.store), backend_options)
        inner = extension().ByDevice(_gloo(options, options.store), nccl)
    if _SETS_SEQUENCE_NUMBERS:
        inner._set_sequence_number_for_group()
    return inner


def _gloo(options: Any, store: Any) -> Any:
    inner = dist.ProcessGroupGloo(store, options.group_rank, options.group_size, timeout=options.timeout)
    _name(getattr(inner, "options", None), options)
    return inner


def _nccl(options: Any, store: Any, backend_options: Any) -> Any:
    backend_options = backend_options or dist.ProcessGroupNCCL.Options()
    backend_options._timeout = options.timeout
    _name(backend_options, options)
    return dist.ProcessGroupNCCL(store, options.group_rank, options.group_size, backend_options)


def _name(of_inner: Any, options: Any) -> None:
    """Versions differ in what the options of a backend have."""
    for name, value in (("global_ranks_in_group", list(options.global_ranks_in_group)),
                        ("group_name", options.group_id)):  # fmt: skip
        if hasattr(of_inner, name):
            setattr(of_inner, name, value)


def _create(options: Any, backend_options: Any) -> Any:
    """A backend for torch.distributed, by its extended interface for plug-ins. Ranks: all of the group."""
    from droptest.torch.build import extension

    members = list(options.global_ranks_in_group) or list(range(options.group_size))
    rank = members[options.group_rank]
    world_size = dist.get_world_size() if dist.is_initialized() else options.group_size
    shared = _network_of(rank, world_size)
    inner = _inner(options, _device_of(options.store), backend_options)
    group = (options.group_id, tuple(members))  # the same one for each device
    backend = extension().wrap(inner, options.store, shared, members, _in_use.numbers.get(group))
    _in_use.numbers[group] = backend.number
    return backend


if not hasattr(dist.Backend, NAME.upper()):
    dist.Backend.register_backend(NAME, _create, extended_api=True, devices=["cpu", "cuda"])
