# SPDX-License-Identifier: Apache-2.0
"""The collectives of a process group with loss on the path `contribution`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from typing import Any

import torch
import torch.distributed as dist

from droptest.network import CollectiveGroup, Network, NetworkError
from droptest.torch.callbacks import keep, then
from droptest.torch.tensors import memory_of, reduction_of, shape_of


def lossy(process_group: Any, network: Network, *, name: str | None = None) -> LossyGroup:
    """The process group with packet loss; None: the group of all ranks. name: for the member `group` of rules; without
    it the description that PyTorch has of the group. Ranks: all of the group, once. Raises: NetworkError."""
    return LossyGroup(process_group, network, name=name)


@dataclass(frozen=True)
class Sum:
    """A sum under way, for LossyGroup.after_sum(). device: of its tensors."""

    group: CollectiveGroup
    number: int
    device: torch.device


class LossyGroup:
    """Collectives with the names and arguments of torch.distributed, but for `group`. Each rank loses packets of its
    own message and then calls the inner collective, so that the results are equal on all ranks. Calls that the rules
    exempt (docs/pytorch.md) are PyTorch's. Functions of torch.distributed that are not here are refused."""

    def __init__(self, process_group: Any, network: Network, *, name: str | None = None) -> None:
        self.process_group = dist.group.WORLD if process_group is None else process_group
        self.network = network
        self.name = str(getattr(self.process_group, "group_desc", "")) if name is None else name
        check_place(network)
        self.ranks = world_ranks(self.process_group)
        self.number = _agreed_number(self.process_group, network, self.ranks)
        self._groups: dict[str, CollectiveGroup] = {}

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_") and callable(getattr(dist, name, None)):
            raise AttributeError(
                f"LossyGroup: got {name}(), which loses no packets here; "
                f"want torch.distributed.{name}() itself with the group's process_group"
            )
        raise AttributeError(f"LossyGroup has no attribute {name!r}")

    def classify(self, operation: str, tensor: torch.Tensor) -> str:
        """Traffic class of a call with this rank's message; "control": exempt, which is counted."""
        keep(tensor)
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
        return Sum(group, number, tensor.device) if number else None

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
        keep(message)
        with _Contiguous(message) as data:
            self._group(traffic_class).gather(data.data_ptr(), elements, dtype, memory_of(data))
        return message

    def before_message(self, operation: str, tensor: torch.Tensor, peer: int) -> torch.Tensor:
        """This rank's message to the world rank `peer`, with zeros in its lost packets: a copy, unless nothing can be
        lost of it."""
        if peer == self.network.rank or tensor.numel() == 0:
            return tensor
        traffic_class = self.classify(operation, tensor)
        if traffic_class == "control":
            return tensor
        flow = self.network.flow(traffic_class, self.network.rank, peer, half="gather")
        message = tensor.clone(memory_format=torch.contiguous_format)
        keep(message)
        elements, dtype = shape_of(message)
        flow.lose_at(message.data_ptr(), elements, dtype, memory_of(message))
        return message

    def all_reduce(self, tensor: torch.Tensor, op: Any = dist.ReduceOp.SUM, async_op: bool = False) -> Any:
        begun = self.before_sum("all_reduce", tensor, op)
        work = dist.all_reduce(tensor, op, group=self.process_group, async_op=async_op)
        return self.finished(work, begun, lambda: self.after_sum(begun, tensor))

    def reduce(
        self, tensor: torch.Tensor, dst: int | None = None, op: Any = dist.ReduceOp.SUM, async_op: bool = False, *,
        group_dst: int | None = None,
    ) -> Any:  # fmt: skip
        """On ranks other than the destination the tensor is not changed."""
        root = self._world_rank("dst", dst, group_dst)
        if root == self.network.rank:
            begun = self.before_sum("reduce", tensor, op)
            work = dist.reduce(tensor, root, op, group=self.process_group, async_op=async_op)
            return self.finished(work, begun, lambda: self.after_sum(begun, tensor))
        message = tensor.clone(memory_format=torch.contiguous_format)
        begun = self.before_sum("reduce", message, op)
        self.after_sum(begun, message.reshape(-1)[:0])  # this rank has no results
        return dist.reduce(message, root, op, group=self.process_group, async_op=async_op)

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
        mine = sum(shape_of(part)[0] for part in input_list[: self._position()])
        return self.finished(work, begun, lambda: self.after_sum(begun, output, mine))

    def all_gather_into_tensor(
        self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, async_op: bool = False
    ) -> Any:
        """The input is not changed, unless it lies in the output."""
        message = self.before_gather(input_tensor, is_input=not _lies_in(input_tensor, output_tensor))
        return dist.all_gather_into_tensor(output_tensor, message, group=self.process_group, async_op=async_op)

    def all_gather(self, tensor_list: list[torch.Tensor], tensor: torch.Tensor, async_op: bool = False) -> Any:
        """The input is not changed."""
        return dist.all_gather(tensor_list, self.before_gather(tensor), group=self.process_group, async_op=async_op)

    def all_to_all(
        self, output_tensor_list: list[torch.Tensor], input_tensor_list: list[torch.Tensor], async_op: bool = False
    ) -> Any:
        """Every tensor is a message of its own, and those of a rank to itself arrive. The inputs are not changed."""
        messages = [
            self.before_message("all_to_all", part, peer)
            for part, peer in zip(input_tensor_list, self.ranks, strict=False)
        ]
        messages += input_tensor_list[len(messages) :]  # PyTorch refuses them
        return dist.all_to_all(output_tensor_list, messages, group=self.process_group, async_op=async_op)

    def all_to_all_single(
        self, output: torch.Tensor, input: torch.Tensor, output_split_sizes: list[int] | None = None,
        input_split_sizes: list[int] | None = None, async_op: bool = False,
    ) -> Any:  # fmt: skip
        """Every part is a message of its own, and that of a rank to itself arrives. The input is not changed."""
        rows = input.shape[0] if input.dim() else -1
        sizes = input_split_sizes or [rows // len(self.ranks)] * len(self.ranks)
        message = input
        if sum(sizes) == rows and len(sizes) == len(self.ranks):  # PyTorch refuses others
            parts = zip(input.split(sizes), self.ranks, strict=True)
            message = torch.cat([self.before_message("all_to_all", part, peer) for part, peer in parts])
        return dist.all_to_all_single(output, message, output_split_sizes, input_split_sizes, group=self.process_group,
                                      async_op=async_op)  # fmt: skip

    def send(self, tensor: torch.Tensor, dst: int | None = None, tag: int = 0, *, group_dst: int | None = None) -> None:
        """The sender loses packets. The tensor is not changed."""
        to = self._world_rank("dst", dst, group_dst)
        dist.send(self.before_message("send", tensor, to), to, group=self.process_group, tag=tag)

    def isend(self, tensor: torch.Tensor, dst: int | None = None, tag: int = 0, *, group_dst: int | None = None) -> Any:
        """As send()."""
        to = self._world_rank("dst", dst, group_dst)
        return dist.isend(self.before_message("send", tensor, to), to, group=self.process_group, tag=tag)

    def recv(self, tensor: torch.Tensor, src: int | None = None, tag: int = 0, *, group_src: int | None = None) -> int:
        """Of a message that send() has lost packets of. src None: from any rank."""
        source = None if src is None and group_src is None else self._world_rank("src", src, group_src)
        return dist.recv(tensor, source, group=self.process_group, tag=tag)

    def irecv(self, tensor: torch.Tensor, src: int | None = None, tag: int = 0, *, group_src: int | None = None) -> Any:
        """As recv()."""
        source = None if src is None and group_src is None else self._world_rank("src", src, group_src)
        return dist.irecv(tensor, source, group=self.process_group, tag=tag)

    def broadcast(
        self, tensor: torch.Tensor, src: int | None = None, async_op: bool = False, *, group_src: int | None = None
    ) -> Any:
        """Exempt from loss."""
        source = self._world_rank("src", src, group_src)
        self.classify("broadcast", tensor)
        return dist.broadcast(tensor, source, group=self.process_group, async_op=async_op)

    def gather(
        self, tensor: torch.Tensor, gather_list: list[torch.Tensor] | None = None, dst: int | None = None,
        async_op: bool = False, *, group_dst: int | None = None,
    ) -> Any:  # fmt: skip
        """Exempt from loss."""
        root = self._world_rank("dst", dst, group_dst, absent=self.ranks[0])
        self.classify("gather", tensor)
        return dist.gather(tensor, gather_list, root, group=self.process_group, async_op=async_op)

    def scatter(
        self, tensor: torch.Tensor, scatter_list: list[torch.Tensor] | None = None, src: int | None = None,
        async_op: bool = False, *, group_src: int | None = None,
    ) -> Any:  # fmt: skip
        """Exempt from loss."""
        source = self._world_rank("src", src, group_src, absent=self.ranks[0])
        self.classify("scatter", tensor)
        return dist.scatter(tensor, scatter_list, source, group=self.process_group, async_op=async_op)

    def barrier(self, async_op: bool = False, device_ids: list[int] | None = None) -> Any:
        """Exempt from loss."""
        self.network.classify("barrier", 0, group_ranks=len(self.ranks), group=self.name)
        return dist.barrier(group=self.process_group, async_op=async_op, device_ids=device_ids)

    def _world_rank(self, name: str, world: int | None, in_group: int | None, absent: int | None = None) -> int:
        """Of the arguments `name` and `group_<name>` of torch.distributed, of which there is one."""
        if (world is not None and in_group is not None) or (world is None and in_group is None and absent is None):
            raise ValueError(f"{name}, group_{name}: got {world} and {in_group}, want one of them")
        if in_group is not None:
            if not 0 <= in_group < len(self.ranks):
                raise ValueError(f"group_{name}: got {in_group}, want a rank of the group, 0 to {len(self.ranks) - 1}")
            return self.ranks[in_group]
        rank = absent if world is None else world
        if rank not in self.ranks:
            raise ValueError(f"{name}: got rank {rank}, want a rank of the group: {self.ranks}")
        return rank

    def _group(self, traffic_class: str) -> CollectiveGroup:
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
        return FinishedWork(work, finish, begun.device)


class FinishedWork:
    """The work of a sum whose results are scaled once: when it has been waited for, or a query says that it has
    completed. Other methods of PyTorch's works are refused if their answer depends on the results."""

    _OF_INNER = ("exception", "source_rank", "_source_rank", "get_future_result", "_get_op_type", "_get_duration",
                 "_get_sequence_number")  # fmt: skip

    def __init__(self, work: Any, finish: Callable[[], None], device: torch.device) -> None:
        self._work = work
        self._finish: Callable[[], None] | None = finish
        self._error: BaseException | None = None  # of the scaling: the results stay wrong
        self._device = device
        self._once = Lock()  # futures end on threads of their own
        self._scaled: Any = None  # the event of a CUDA device after the scaling

    def wait(self, *arguments: Any, **more: Any) -> Any:
        done = self._work.wait(*arguments, **more)
        self._scale()
        return done

    def synchronize(self) -> None:
        if self._device.type == "cpu":  # whose works only wait() waits for
            self._work.wait()
        else:
            self._work.synchronize()
        self._scale()

    def block_current_stream(self) -> None:
        self._work.block_current_stream()
        self._scale()

    def is_completed(self) -> bool:
        """Where it is True, the results are scaled."""
        if not self._work.is_completed():
            return False
        self._scale()
        if self._scaled is not None:
            self._scaled.synchronize()
        return True

    def is_success(self) -> bool:
        return self.is_completed() and self._work.is_success()

    def result(self) -> Any:
        self.wait()
        return self._work.result()

    def get_future(self) -> Any:
        def finished(future: Any) -> Any:
            value = future.value()
            self._scale()
            return value

        return then(self._work.get_future(), finished)

    def _scale(self) -> None:
        """The first call does it on its current stream; later ones let theirs wait. Raises: its error, each time."""
        with self._once:
            if self._error is not None:
                raise self._error
            stream = None if self._device.type == "cpu" else torch.cuda.current_stream(self._device)
            if self._finish is None:
                if stream is not None:
                    stream.wait_event(self._scaled)
                return
            finish, self._finish = self._finish, None
            try:
                finish()
            except BaseException as error:
                self._error = error
                raise
            if stream is not None:
                self._scaled = stream.record_event()

    def __getattr__(self, name: str) -> Any:
        if name in FinishedWork._OF_INNER:
            return getattr(self._work, name)
        raise AttributeError(f"work of a sum with a fill that scales its results: got {name}, want wait(), "
                             "synchronize(), is_completed(), is_success(), result() or get_future()")  # fmt: skip


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


def check_place(network: Network) -> None:
    """Raises: NetworkError for a network of another rank, or of another number of ranks."""
    if (network.rank, network.world_size) != (dist.get_rank(), dist.get_world_size()):
        raise NetworkError(
            "argument",
            f"rank {dist.get_rank()} of {dist.get_world_size()}: network: got one of rank {network.rank} of "
            f"{network.world_size}; make it after init_process_group, or give it rank and world_size",
        )


def world_ranks(process_group: Any) -> list[int]:
    """Of the group's members, in the order of its ranks."""
    return [dist.get_global_rank(process_group, rank) for rank in range(dist.get_world_size(process_group))]


def _agreed_number(process_group: Any, network: Network, ranks: list[int]) -> int:
    """0 for the group of all ranks, else the next number that none of the members has used. The members agree on it by
    one reduction, which compares their networks, too. Raises: NetworkError where these differ, on every member."""
    known = network.__dict__.setdefault("_group_numbers", {})
    if id(process_group) in known:
        return known[id(process_group)][0]
    device = "cuda" if "nccl" in str(dist.get_backend(process_group)) else "cpu"
    is_world = process_group is dist.group.WORLD
    number = 0 if is_world else 1 + max((one for one, _ in known.values()), default=0)
    if len(ranks) > 1:
        halves = divmod(network.digest(), 2**32)
        agreed = torch.tensor([number, *halves, *(-half for half in halves)], device=device)
        dist.all_reduce(agreed, dist.ReduceOp.MAX, group=process_group)
        number, *largest_and_smallest = agreed.tolist()
        if largest_and_smallest[:2] != [-negative for negative in largest_and_smallest[2:]]:
            _name_the_difference(process_group, network, ranks)
    known[id(process_group)] = (number, process_group)  # kept, so that the id stays its own
    return number


def _name_the_difference(process_group: Any, network: Network, ranks: list[int]) -> None:
    """Ranks: all, whose networks are not all equal."""
    identities = [None] * len(ranks)
    dist.all_gather_object(identities, network.identity(), group=process_group)
    for rank, identity in zip(ranks, identities, strict=True):
        network.check_peer(rank, identity)
