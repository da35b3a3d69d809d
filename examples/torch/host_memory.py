# SPDX-License-Identifier: Apache-2.0
"""Runs Megatron on a machine without a GPU, over gloo: its tensors for CUDA devices are in host memory. For a try."""

import torch
from torch.overrides import TorchFunctionMode


class HostMemory(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if "cuda" in str(kwargs.get("device")):
            kwargs["device"] = "cpu"
        if function is torch.Tensor.cuda:
            return args[0]
        result = function(*args, **kwargs)
        if function is torch.Tensor.type and isinstance(result, str):  # Megatron asks for torch.cuda.FloatTensor
            return result.replace("torch.", "torch.cuda.")
        return result


def use():
    torch.cuda.current_device = lambda: "cpu"
    HostMemory().__enter__()
