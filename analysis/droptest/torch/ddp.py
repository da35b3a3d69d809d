# SPDX-License-Identifier: Apache-2.0
"""A communication hook of DistributedDataParallel that loses packets of gradient buckets."""

from __future__ import annotations

import gc
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from droptest.network import Network, NetworkError
from droptest.torch.callbacks import then
from droptest.torch.group import LossyGroup, check_place, world_ranks


def ddp_hook(network: Network, process_group: Any = None) -> Callable[[Any, Any], Any]:
    """A hook for DistributedDataParallel.register_comm_hook(None, hook): each rank loses packets of its buckets, and
    the buckets are averaged as without a hook.

    process_group: that of the model; None: the hook finds the model at its first bucket, and takes its process group.
    The packets of a step's buckets follow each other on the rank's link in the order of the buckets' indices. PyTorch
    cuts the buckets anew after the first step, and with them change the fates of a gradient: they depend on the sizes
    of the buckets before it. So the first step of a resumed training has other losses than the same step of one that
    goes on, and the hook warns of it. Traffic class dp_gradient, unless a rule for all_reduce says otherwise. One hook
    is for one model. Ranks: all of the group. Raises: NetworkError.
    """
    check_place(network)
    model = _Model(network, process_group)
    layouts = _Layouts(network)

    # Without annotations: register_comm_hook() compares them with PyTorch's own types.
    def hook(_state, bucket):
        buffer = bucket.buffer()
        group = model.group_of(bucket)
        layouts.note(bucket)
        buffer.mul_(1 / len(group.ranks))  # as DistributedDataParallel does without a hook, to the bit
        begun = group.before_sum("all_reduce", buffer)
        work = dist.all_reduce(buffer, group=group.process_group, async_op=True)

        def finished(future):
            result = future.value()[0]
            group.after_sum(begun, result)
            return result

        return then(work.get_future(), finished)

    return hook


class _Model:
    """The model that the buckets are of. Packets of two models would follow each other in an order that ranks need not
    agree on."""

    def __init__(self, network: Network, process_group: Any) -> None:
        self._network = network
        self._named = None if process_group is None else LossyGroup(process_group, network)
        self._group: LossyGroup | None = None
        self._is_found = True  # as far as it has been looked for
        self._parameters: set[int] = set()
        self._model: Any = lambda: None  # a weak reference

    def group_of(self, bucket: Any) -> LossyGroup:
        """Raises: NetworkError for buckets of a second model, and where the model is not found."""
        if not self._is_found:
            return self._named
        parameters = bucket.parameters()
        if self._model() is not None:
            if self._parameters.issuperset(map(id, parameters)):
                return self._group
            raise self._error("bucket: got one of another model, want those of one: one hook is for one model")
        models = _models_of(parameters)
        if not models and self._named is not None:
            self._is_found = False
            return self._named
        groups = {tuple(world_ranks(model.process_group)) for model in models}
        if len(groups) != 1:
            raise self._error(
                f"process_group: got none, and {len(models)} models of DistributedDataParallel with {len(groups)} "
                "groups have the bucket's parameters; want ddp_hook(network, process_group)"
            )
        ranks = list(groups.pop())
        if self._named is not None and self._named.ranks != ranks:
            raise self._error(f"process_group: got the ranks {self._named.ranks}, want those of the model's: {ranks}")
        self._model = weakref.ref(models[0])
        self._parameters = set(map(id, models[0].parameters()))
        self._group = self._named or LossyGroup(models[0].process_group, self._network)
        return self._group

    def _error(self, text: str) -> NetworkError:
        return NetworkError("argument", f"rank {self._network.rank} of {self._network.world_size}: {text}")


class _Layouts:
    """Warns where a resumed training has buckets that are cut anew after its first step."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._first: dict[int, list[int]] = {}  # ids of the parameters, by the bucket's index
        self._is_known = False

    def note(self, bucket: Any) -> None:
        if not self._network.is_resumed or self._is_known:
            return
        parameters = [id(one) for one in bucket.parameters()]
        if self._first.setdefault(bucket.index(), parameters) != parameters:
            self._is_known = True
            warnings.warn(
                f"rank {self._network.rank} of {self._network.world_size}: DistributedDataParallel has cut its buckets "
                "anew after the first step of the resumed training: from that step on its losses are not to the bit "
                "those of a training that was not interrupted (docs/pytorch.md)",
                stacklevel=2,
            )


def _models_of(parameters: list[Any]) -> list[Any]:
    """Those with the parameters of a bucket, which is all that PyTorch tells a hook."""
    wanted = set(map(id, parameters))
    models = [one for one in gc.get_objects() if issubclass(type(one), DistributedDataParallel)]
    return [one for one in models if wanted.issubset(map(id, one.parameters()))]
