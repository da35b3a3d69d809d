# SPDX-License-Identifier: Apache-2.0
"""The collectives of a process group with loss on the path `contribution`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from droptest.network import Group, Network, NetworkError
from droptest.torch.callbacks import then
from droptest.torch.tensors import memory_of, reduction_of, shape_of


def lossy(process_group: Any, network: Network, *, name: str | None = None) -> LossyGroup:
    """The process group with packet loss; None: the group of all ranks. name: for the member `group` of rules; without
    it the description that PyTorch has of the group. Ranks: all of the group, once. Raises: NetworkError."""
    return LossyGroup(process_group, network, name=name)


@dataclass(frozen=True)
class Sum:
    """A sum under way, for LossyGroup.after_sum()."""

    group: Group
    number: int


class LossyGroup:
    """Collectives with the arguments of torch.distributed, but for `group`. Each rank loses packets of its own message
    and then calls the inner collective, so that the results are equal on all ranks. Calls that the rules exempt (docs/
    pytorch.md), and operations that this class does not have, go straight to PyTorch."""

    def __init__(self, process_group: Any, network: Network, *, name: str | None = None) -> None:
        self.process_group = dist.group.WORLD if process_group is None else process_group
        self.network = network
        self.name = str(getattr(self.process_group, "group_desc", "")) if name is None else name
        if (network.rank, network.world_size) != (dist.get_rank(), dist.get_world_size()):
            raise NetworkError(
                "argument",
                f"rank {dist.get_rank()} of {dist.get_world_size()}: network: got one of rank {network.rank} of "
                f"{network.world_size}; make it after init_process_group, or give it rank and world_size",
            )
        self.ranks = _world_ranks(self.process_group)
        self.number = _agreed_number(self.process_group, network, self.ranks)
        self._groups: dict[str, Group] = {}

    def classify(self, operation: str, tensor: torch.Tensor) -> str:
        """Traffic class of a call with this rank's message; "control": exempt, which is counted."""
        elements, dtype = shape_of(tensor)
        return self.network.classify(operation, elements, dtype, group_ranks=len(self.ranks), group=self.name)

    def before_sum(self, operation: str, tensor: torch.Tensor, op: Any = dist.ReduceOp.SUM) -> Sum | None:
        """Loses packets of this rank's contribution, in place. None: nothing follows after the inner collective."""
        reduction = reduction_of(op)
        elements, dtype = shape_of(tensor)
        if reduction is None:
            self.network.count_exempt(operation, elements, dtype, group_ranks=len(self.ranks), group=self.name)
            return None
        traffic_class = self.classify(operation, tensor)
        if traffic_class == "control":
            return None
        group = self._group(traffic_class)
        with _Contiguous(tensor) as data:
            number = group.reduce(data.data_ptr(), elements, dtype, reduction, memory_of(data))
        return Sum(group, number) if number else None

    def after_sum(self, begun: Sum | None, results: torch.Tensor, first_element: int = 0) -> None:
        """Scales the results as the network's fill says. first_element: of the message, where this rank has a part."""
        if begun is None:
            return
        elements, _ = shape_of(results)
        with _Contiguous(results) as data:
            begun.group.finish_reduce(begun.number, data.data_ptr(), first_element, elements, memory_of(data))

    def after_part(self, begun: Sum | None, output: torch.Tensor) -> None:
        """after_sum() of this rank's part of a reduce-scatter with equal parts."""
        self.after_sum(begun, output, self._position() * shape_of(output)[0])

    def before_gather(self, tensor: torch.Tensor, *, is_input: bool = True) -> torch.Tensor:
        """This rank's message with zeros in its lost packets: a copy where it is the caller's input, else in place."""
        traffic_class = self.classify("all_gather", tensor)
        if traffic_class == "control":
            return tensor
        elements, dtype = shape_of(tensor)
        message = tensor.clone(memory_format=torch.contiguous_format) if is_input else tensor
        with _Contiguous(message) as data:
            self._group(traffic_class).gather(data.data_ptr(), elements, dtype, memory_of(data))
        return message

    def all_reduce(self, tensor: torch.Tensor, op: Any = dist.ReduceOp.SUM, async_op: bool = False) -> Any:
        begun = self.before_sum("all_reduce", tensor, op)
        work = dist.all_reduce(tensor, op, group=self.process_group, async_op=async_op)
        return self.finished(work, begun, lambda: self.after_sum(begun, tensor))

    def reduce_scatter_tensor(
        self, output: torch.Tensor, input: torch.Tensor, op: Any = dist.ReduceOp.SUM, async_op: bool = False
    ) -> Any:
        """The input is not changed."""
        message = input.clone(memory_format=torch.contiguous_format)
        begun = self.before_sum("reduce_scatter", message, op)
        work = dist.reduce_scatter_tensor(output, message, op, group=self.process_group, async_op=async_op)
        return self.finished(work, begun, lambda: self.after_part(begun, output))

    def reduce_scatter(
        self, output: torch.Tensor, input_list: list[torch.Tensor], op: Any = dist.ReduceOp.SUM, async_op: bool = False
    ) -> Any:
        """The packets of a rank's message are cut from all of its inputs together. The inputs are not changed."""
        flat = torch.cat([part.reshape(-1) for part in input_list])
        begun = self.before_sum("reduce_scatter", flat, op)
        parts, first = [], 0
        for part in input_list:
            parts.append(flat[first : first + part.numel()].view(part.shape))
            first += part.numel()
        work = dist.reduce_scatter(output, parts, op, group=self.process_group, async_op=async_op)
        mine = sum(part.numel() for part in input_list[: self._position()])
        return self.finished(work, begun, lambda: self.after_sum(begun, output, mine))

    def all_gather_into_tensor(self, output: torch.Tensor, input: torch.Tensor, async_op: bool = False) -> Any:
        """The input is not changed, unless it lies in the output."""
        message = self.before_gather(input, is_input=not _lies_in(input, output))
        return dist.all_gather_into_tensor(output, message, group=self.process_group, async_op=async_op)

    def all_gather(self, tensor_list: list[torch.Tensor], tensor: torch.Tensor, async_op: bool = False) -> Any:
        """The input is not changed."""
        return dist.all_gather(tensor_list, self.before_gather(tensor), group=self.process_group, async_op=async_op)

    def broadcast(self, tensor: torch.Tensor, src: int, async_op: bool = False) -> Any:
        """Exempt from loss."""
        self.classify("broadcast", tensor)
        return dist.broadcast(tensor, src, group=self.process_group, async_op=async_op)

    def barrier(self, async_op: bool = False) -> Any:
        """Exempt from loss."""
        self.network.classify("barrier", 0, group_ranks=len(self.ranks), group=self.name)
        return dist.barrier(group=self.process_group, async_op=async_op)

    def _group(self, traffic_class: str) -> Group:
        if traffic_class not in self._groups:
            self._groups[traffic_class] = self.network.group(traffic_class, self.ranks, self.number)
        return self._groups[traffic_class]

    def _position(self) -> int:
        return self.ranks.index(self.network.rank)

    @staticmethod
    def finished(work: Any, begun: Sum | None, finish: Callable[[], None]) -> Any:
        """The work of an inner sum, with the results scaled at its end; None: it has ended."""
        if begun is None:
            return work
        if work is None:  # a call that has waited
            return finish()
        return FinishedWork(work, finish)


class FinishedWork:
    """A work whose results are scaled once it has been waited for; other attributes are the inner work's."""

    def __init__(self, work: Any, finish: Callable[[], None]) -> None:
        self._work = work
        self._finish: Callable[[], None] | None = finish

    def wait(self, *arguments: Any) -> Any:
        done = self._work.wait(*arguments)
        if self._finish is not None:
            finish, self._finish = self._finish, None
            finish()
        return done

    def get_future(self) -> Any:
        def finished(future: Any) -> Any:
            value = future.value()
            if self._finish is not None:
                finish, self._finish = self._finish, None
                finish()
            return value

        return then(self._work.get_future(), finished)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)


class _Contiguous:
    """The elements in one piece, and back in the tensor at the end."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor

    def __enter__(self) -> torch.Tensor:
        self._data = self._tensor.detach().contiguous()
        return self._data

    def __exit__(self, *_: object) -> None:
        if self._data.data_ptr() != self._tensor.data_ptr():
            self._tensor.detach().copy_(self._data)


def _lies_in(part: torch.Tensor, whole: torch.Tensor) -> bool:
    begin, end = whole.data_ptr(), whole.data_ptr() + whole.numel() * whole.element_size()
    return begin <= part.data_ptr() < end


def _world_ranks(process_group: Any) -> list[int]:
    return [dist.get_global_rank(process_group, rank) for rank in range(dist.get_world_size(process_group))]


def _agreed_number(process_group: Any, network: Network, ranks: list[int]) -> int:
    """0 for the group of all ranks, else the next number that none of the members has used. The members agree on it by
    one reduction."""
    known = network.__dict__.setdefault("_group_numbers", {})
    if process_group is dist.group.WORLD:
        return 0
    if id(process_group) not in known:
        device = "cuda" if "nccl" in str(dist.get_backend(process_group)) else "cpu"
        number = torch.tensor([1 + max((one for one, _ in known.values()), default=0)], device=device)
        if len(ranks) > 1:
            dist.all_reduce(number, dist.ReduceOp.MAX, group=process_group)
        known[id(process_group)] = (int(number.item()), process_group)  # kept, so that the id stays its own
    return known[id(process_group)][0]
