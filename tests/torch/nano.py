# SPDX-License-Identifier: Apache-2.0
"""The model preset nano in PyTorch, data-parallel over lossy sums of one flat gradient, for run_ranks()."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path

import torch
import torch.nn.functional as F

import droptest
import droptest.torch

LAYERS, WIDTH, HEADS = 4, 128, 4
DECAY, BETAS, EPSILON, CLIP = 0.1, (0.9, 0.95), 1e-8, 1.0


def read_weights(file: str) -> dict[str, torch.Tensor]:
    """Of a safetensors file of float32."""
    raw = Path(file).read_bytes()
    (size,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + size])
    weights = {}
    for name, about in header.items():
        if name != "__metadata__":
            begin, end = (8 + size + offset for offset in about["data_offsets"])
            values = torch.frombuffer(bytearray(raw[begin:end]), dtype=torch.float32)
            weights[name] = values.reshape(about["shape"]).clone().requires_grad_()
    return weights


def in_order(weights: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    """In the order of a gradient message: the last block first, the embeddings last (docs/parallelism.md)."""
    of_block = ("ln_1.weight", "ln_1.bias", "attn.c_attn.weight", "attn.c_attn.bias", "attn.c_proj.weight",
                "attn.c_proj.bias", "ln_2.weight", "ln_2.bias", "mlp.c_fc.weight", "mlp.c_fc.bias", "mlp.c_proj.weight",
                "mlp.c_proj.bias")  # fmt: skip
    names = [f"h.{layer}.{name}" for layer in reversed(range(LAYERS)) for name in of_block]
    return [weights[name] for name in [*names, "wte.weight", "wpe.weight", "ln_f.weight", "ln_f.bias"]]


def mean_loss(w: dict[str, torch.Tensor], tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    batch, length = tokens.shape
    x = w["wte.weight"][tokens] + w["wpe.weight"][:length]
    future = torch.triu(torch.ones(length, length, dtype=torch.bool), diagonal=1)
    for layer in range(LAYERS):
        h = f"h.{layer}."
        y = F.layer_norm(x, (WIDTH,), w[h + "ln_1.weight"], w[h + "ln_1.bias"])
        q, k, v = (y @ w[h + "attn.c_attn.weight"] + w[h + "attn.c_attn.bias"]).split(WIDTH, dim=2)
        q, k, v = (m.reshape(batch, length, HEADS, WIDTH // HEADS).transpose(1, 2) for m in (q, k, v))
        scores = (q @ k.transpose(2, 3)) / math.sqrt(WIDTH // HEADS)
        y = (scores.masked_fill(future, -math.inf).softmax(dim=3) @ v).transpose(1, 2).reshape(batch, length, WIDTH)
        x = x + y @ w[h + "attn.c_proj.weight"] + w[h + "attn.c_proj.bias"]
        y = F.layer_norm(x, (WIDTH,), w[h + "ln_2.weight"], w[h + "ln_2.bias"])
        hidden = y @ w[h + "mlp.c_fc.weight"] + w[h + "mlp.c_fc.bias"]
        y = 0.5 * hidden * (1 + torch.tanh(math.sqrt(2 / math.pi) * (hidden + 0.044715 * hidden**3)))
        x = x + y @ w[h + "mlp.c_proj.weight"] + w[h + "mlp.c_proj.bias"]
    logits = F.layer_norm(x, (WIDTH,), w["ln_f.weight"], w["ln_f.bias"]) @ w["wte.weight"].T
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), targets.reshape(-1))


def samples_of(text: str, length: int) -> torch.Tensor:
    """Shapes: [samples, length + 1]; neighbours share a token."""
    tokens = torch.tensor(list(Path(text).read_bytes()))
    return torch.stack([tokens[i : i + length + 1] for i in range(0, len(tokens) - length, length)])


def train(rank, world_size, *, weights, text, source, steps, batch, length, learning_rate):
    """Mean losses over ranks by step, and the links of this rank."""
    torch.set_num_threads(1)
    w = read_weights(weights)
    samples = samples_of(text, length)
    matrices = [p for p in w.values() if p.dim() == 2]
    vectors = [p for p in w.values() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": DECAY}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=learning_rate, betas=BETAS, eps=EPSILON)
    network = droptest.Network(source)
    lossy = droptest.torch.lossy(None, network)
    losses = []
    for step in range(steps):
        first = (step * world_size + rank) * batch
        rows = samples[first : first + batch]
        optimizer.zero_grad()
        loss = mean_loss(w, rows[:, :-1], rows[:, 1:])
        loss.backward()
        flat = torch.cat([p.grad.reshape(-1) for p in in_order(w)]) / world_size
        lossy.all_reduce(flat)
        at = 0
        for parameter in in_order(w):
            parameter.grad = flat[at : at + parameter.numel()].view_as(parameter)
            at += parameter.numel()
        torch.nn.utils.clip_grad_norm_(list(w.values()), CLIP)
        optimizer.step()
        mean = loss.detach().reshape(1) / world_size
        lossy.all_reduce(mean)  # below one packet: exempt
        losses.append(mean.item())
    return {"losses": losses, "links": network.statistics().record["links"]}
