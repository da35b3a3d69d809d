#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/vectors/sequence_attention.safetensors, from which tests/models/attention/torch_attention_test.cc reads.

Attention by PyTorch in float64 with its autograd, for every kind of mask, every pair of kinds and both layouts, over
inputs and masks that both sides compute from the same formula. Needs Debian's python3-torch:

    python3 scripts/make_sequence_vectors.py
"""

import argparse
import itertools
import json
import math
import struct
from pathlib import Path

if __name__ == "__main__":  # before PyTorch, which may not be there
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()

import torch

BATCH, LENGTH, HEADS, WIDTH = 2, 7, 2, 3
MASK = 0xFFFFFFFF
FORBIDDEN = float("-inf")
# In the order of MaskKind in tests/models/attention/dense_attention.h.
KINDS = [
    "none",
    "causal",
    "keys_allowed",
    "keys_added",
    "pairs_allowed",
    "pairs_added",
    "batch_pairs_allowed",
    "batch_pairs_added",
    "documents",
]


def number(tensor, index):
    """A fraction in [-1/2, 1/2) with 16 bits, so that float32 holds it exactly."""
    x = (index * 2654435761 + tensor * 40503 * 65537 + 12345) & MASK
    x ^= x >> 15
    x = (x * 2246822519) & MASK
    x ^= x >> 13
    return (x >> 16) / 65536.0 - 0.5


def tensor(stream):
    """[batch, tokens, heads, width]."""
    count = BATCH * LENGTH * HEADS * WIDTH
    values = torch.tensor([number(stream, i) for i in range(count)], dtype=torch.float64)
    return values.reshape(BATCH, LENGTH, HEADS, WIDTH)


def mask_of(kind):
    """What the kind adds to the scores: [batch, queries, keys]."""
    index = KINDS.index(kind)
    if kind == "none":
        return torch.zeros(BATCH, LENGTH, LENGTH, dtype=torch.float64)
    if kind == "causal":
        return torch.full((LENGTH, LENGTH), FORBIDDEN, dtype=torch.float64).triu(1).expand(BATCH, LENGTH, LENGTH)
    if kind == "documents":
        ids = torch.tensor(
            [
                [-1 if LENGTH > 4 and t >= LENGTH - b else (t + b) // (2 + b % 3) for t in range(LENGTH)]
                for b in range(BATCH)
            ]
        )
        same = (ids[:, :, None] == ids[:, None, :]) & (ids[:, None, :] >= 0)
        return torch.where(same, 0.0, FORBIDDEN).to(torch.float64)
    shape = {"keys": (BATCH, 1, LENGTH), "pair": (1, LENGTH, LENGTH), "batc": (BATCH, LENGTH, LENGTH)}[kind[:4]]
    values = []
    for i in range(math.prod(shape)):
        x = number(100 + index, i)
        allowed = i // LENGTH % 7 != 3 and x < 0.2
        values.append((4 * x if kind.endswith("added") else 0.0) if allowed else FORBIDDEN)
    return torch.tensor(values, dtype=torch.float64).reshape(shape).expand(BATCH, LENGTH, LENGTH)


def attention(q, k, v, bias, sequence_first):
    """The output and log-sum-exp [batch, heads, queries]; a row that sees nothing has 0 and minus infinity."""
    order = "sbhd" if sequence_first else "bshd"
    keys = order.replace("s", "t")
    scores = torch.einsum(f"{order},{keys}->bhst", q, k) / math.sqrt(WIDTH) + bias[:, None]
    blind = (scores == FORBIDDEN).all(-1, keepdim=True)
    weights = torch.softmax(scores.masked_fill(blind, 0.0), -1).masked_fill(blind, 0.0)
    return torch.einsum(f"bhst,{keys}->{order}", weights, v), torch.logsumexp(scores, -1)


def write_safetensors(path, tensors, metadata):
    header, data = {"__metadata__": metadata}, b""
    for name, values in tensors.items():
        raw = struct.pack(f"<{values.numel()}d", *values.flatten().tolist())
        header[name] = {"dtype": "F64", "shape": list(values.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def main():
    masks = [(kind,) for kind in KINDS] + list(itertools.combinations(KINDS[1:], 2))
    tensors = {}
    for kinds in masks:
        bias = sum(mask_of(kind) for kind in kinds)
        for layout in ("batch_first", "sequence_first"):
            inputs = [tensor(stream) for stream in (1, 2, 3, 4)]
            if layout == "sequence_first":
                inputs = [values.transpose(0, 1).contiguous() for values in inputs]
            q, k, v, grad_output = inputs
            leaves = [values.requires_grad_() for values in (q, k, v)]
            output, log_sum_exp = attention(*leaves, bias, layout == "sequence_first")
            gradients = torch.autograd.grad((output * grad_output).sum(), leaves)
            prefix = f"{'+'.join(kinds)}/{layout}/"
            tensors[prefix + "output"] = output.detach()
            tensors[prefix + "log_sum_exp"] = log_sum_exp.detach()
            for name, gradient in zip(("queries", "keys", "values"), gradients, strict=True):
                tensors[prefix + "grad_" + name] = gradient
    root = Path(__file__).resolve().parent.parent
    metadata = {"origin": f"scripts/make_sequence_vectors.py, PyTorch {torch.__version__}, float64"}
    write_safetensors(root / "tests/vectors/sequence_attention.safetensors", tensors, metadata)


if __name__ == "__main__":
    main()
