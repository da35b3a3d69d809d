# SPDX-License-Identifier: Apache-2.0
"""A small GPT-2 on the bytes of this folder, as the examples train it."""

import argparse
import os
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

CONTEXT, VOCABULARY = 64, 256


class Block(nn.Module):
    """Pre-LN transformer block. Shapes: [batch, length, width] in and out."""

    def __init__(self, width, heads):
        super().__init__()
        self.norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        y = self.norm(x)
        future = torch.triu(torch.full((x.shape[1], x.shape[1]), float("-inf"), device=x.device), diagonal=1)
        x = x + self.attention(y, y, y, attn_mask=future, need_weights=False)[0]
        return x + self.mlp(self.mlp_norm(x))


class TinyGpt(nn.Module):
    """Returns the mean cross-entropy of the next bytes. Shapes: tokens [batch, length + 1]."""

    def __init__(self, layers=2, width=64, heads=4):
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, width), nn.Embedding(CONTEXT, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, VOCABULARY)

    def forward(self, tokens):
        x = self.tokens(tokens[:, :-1]) + self.places.weight[: tokens.shape[1] - 1]
        for block in self.blocks:
            x = block(x)
        return functional.cross_entropy(self.head(self.norm(x)).flatten(0, 1), tokens[:, 1:].flatten())


def batches(rank, steps, size=8):
    """Each rank's own bytes of this folder's programs. Shapes: [size, CONTEXT + 1]."""
    text = b"".join(file.read_bytes() for file in sorted(Path(__file__).parent.glob("*.py")))
    data = torch.tensor(list(text))
    generator = torch.Generator().manual_seed(rank)
    for _ in range(steps):
        first = torch.randint(0, len(data) - CONTEXT - 1, (size, 1), generator=generator)
        yield data[first + torch.arange(CONTEXT + 1)]


def validation_loss(model):
    """The mean over bytes that no rank trains on in this order. Ranks: all, where the model is sharded."""
    with torch.no_grad():
        return torch.stack([model(tokens) for tokens in batches(1000, 4)]).mean()


def arguments(description, **numbers):
    """numbers: further options of the program, each an integer with its default."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seed", type=int, default=os.environ.get("DROPTEST_WEIGHTS_SEED", 1), help="of the weights")
    parser.add_argument("--network", help="JSON file; without it nothing is lost")
    for name, default in numbers.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    return parser.parse_args()
