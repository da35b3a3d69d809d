# SPDX-License-Identifier: Apache-2.0
"""Tensors as the library takes them: address, elements, type and memory."""

from __future__ import annotations

import torch
import torch.distributed as dist

from droptest import library

# Complex numbers are two floats each. Types that are not here are never lost: only their bytes count.
_TYPES = {
    torch.float32: ("float32", 1),
    torch.float64: ("float64", 1),
    torch.bfloat16: ("bfloat16", 1),
    torch.float16: ("float16", 1),
    torch.complex64: ("float32", 2),
    torch.complex128: ("float64", 2),
    torch.int32: ("int32", 1),
    torch.int64: ("int64", 1),
}
_REDUCTIONS = (("SUM", "sum"), ("AVG", "sum"), ("PREMUL_SUM", "sum"), ("MAX", "max"))


def shape_of(tensor: torch.Tensor) -> tuple[int, str]:
    """Elements and type, for classify()."""
    dtype, parts = _TYPES.get(tensor.dtype, ("uint8", tensor.element_size()))
    return tensor.numel() * parts, dtype


def memory_of(tensor: torch.Tensor) -> library.Memory | None:
    """None for host memory; else the device and its current stream."""
    if tensor.device.type == "cpu":
        return None
    stream = torch.cuda.current_stream(tensor.device)
    return library.Memory(1, tensor.device.index, stream.cuda_stream)


def reduction_of(op: object) -> str | None:
    """ "sum" or "max"; None for a reduction without a neutral value of its own (products, minima, bits)."""
    for name, reduction in _REDUCTIONS:
        known = getattr(dist.ReduceOp, name, None)
        if known is not None and op == known:
            return reduction
    return None
