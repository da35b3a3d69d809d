#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Whole training steps of GPT-2 in plain PyTorch: forward, backward, clipping and AdamW, on random tokens.

The peer of benchmarks/train_step: the same model, the same batch, the same work per step. Prints one JSON object. The
settings that make PyTorch fast (BLAS library, malloc, waiting threads) are environment variables that must stand before
it starts: benchmarks/compare_peers.py sets them.

With --device cuda it is PyTorch as its users make it fast on a GPU: torch.compile, scaled_dot_product_attention, fused
AdamW, bfloat16 by autocast, and a vocabulary that is padded to a multiple of 64.
"""

import argparse
import json
import math
import resource
import statistics
import time

import torch
from torch import nn
from torch.nn import functional


class Block(nn.Module):
    """Pre-LN transformer block. Shapes: [batch, length, width] in and out."""

    def __init__(self, width: int, heads: int, context: int):
        super().__init__()
        self.heads = heads
        self.ln_1 = nn.LayerNorm(width)
        self.c_attn = nn.Linear(width, 3 * width)
        self.attn_proj = nn.Linear(width, width)
        self.ln_2 = nn.LayerNorm(width)
        self.c_fc = nn.Linear(width, 4 * width)
        self.mlp_proj = nn.Linear(4 * width, width)
        self.register_buffer("future", torch.ones(context, context, dtype=torch.bool).triu(1), persistent=False)

    def attention(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.c_attn(x).split(width, dim=2)
        split = (batch, length, self.heads, width // self.heads)
        q, k, v = (t.view(split).transpose(1, 2) for t in (q, k, v))
        if x.is_cuda:
            mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            return self.attn_proj(mixed.transpose(1, 2).reshape(batch, length, width))
        scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(width // self.heads))
        scores = scores.masked_fill(self.future[:length, :length], float("-inf"))
        mixed = functional.softmax(scores, dim=-1) @ v
        return self.attn_proj(mixed.transpose(1, 2).reshape(batch, length, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.ln_1(x))
        return x + self.mlp_proj(functional.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


class Gpt2(nn.Module):
    """GPT-2 with tied embeddings; returns the mean cross-entropy."""

    def __init__(self, layers: int, width: int, heads: int, vocabulary: int, context: int):
        super().__init__()
        self.wte = nn.Embedding(vocabulary, width)
        self.wpe = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads, context) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        logits = functional.linear(self.ln_f(x), self.wte.weight)
        return functional.cross_entropy(logits.float().view(-1, logits.shape[-1]), targets.view(-1))


def wait_for(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--vocabulary", type=int, default=50257)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--precision", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--steps", type=int, default=5, help="measured, after one that is not")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--eager", action="store_true", help="on a GPU: without torch.compile")
    parser.add_argument("--foreach", action="store_true", help="AdamW by torch's multi-tensor functions")
    args = parser.parse_args()

    torch.set_num_threads(args.threads)
    torch.manual_seed(1)
    on_gpu = args.device == "cuda"
    rows = (args.vocabulary + 63) // 64 * 64 if on_gpu else args.vocabulary
    model = Gpt2(args.layers, args.width, args.heads, rows, args.length).to(args.device)
    kind = {"fused": True} if on_gpu else {"foreach": args.foreach}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, **kind)
    if on_gpu and not args.eager:
        model = torch.compile(model)
    data = torch.randint(0, args.vocabulary, (args.batch, args.length + 1)).to(args.device)
    tokens, targets = data[:, :-1].contiguous(), data[:, 1:].contiguous()

    warm_up = 5 if on_gpu else 1
    seconds = []
    for _ in range(args.steps + warm_up):
        start = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(args.device, dtype=torch.bfloat16, enabled=args.precision == "bfloat16"):
            loss = model(tokens, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        wait_for(args.device)
        seconds.append(time.perf_counter() - start)
    step_seconds = statistics.median(seconds[warm_up:])
    result = {
        "program": f"PyTorch {torch.__version__}",
        "step_seconds": step_seconds,
        "tokens_per_second": args.batch * args.length / step_seconds,
        "peak_mebibytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "final_loss": loss.item(),
    }
    if on_gpu:
        result["device_mebibytes"] = torch.cuda.max_memory_allocated() / 2**20
    print(json.dumps(result))


if __name__ == "__main__":
    main()
