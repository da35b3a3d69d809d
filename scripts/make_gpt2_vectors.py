#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/vectors/gpt2_tiny.safetensors: GPT-2 in PyTorch, from which tests/models/gpt2_torch_test.cc reads.

A plain GPT-2 written here from the paper's description, run by PyTorch's autograd and AdamW in float64 (and its loss in
float32), over weights and tokens that both sides compute from the same formula. Needs Debian's python3-torch:

    python3 scripts/make_gpt2_vectors.py
"""

import argparse
import json
import math
import struct
from pathlib import Path

if __name__ == "__main__":  # before PyTorch, which may not be there
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()

import torch
import torch.nn.functional as F

LAYERS, WIDTH, HEADS, CONTEXT, VOCABULARY = 2, 32, 4, 12, 97
BATCH, LENGTH, STEPS = 2, 12, 3
LEARNING_RATE, BETAS, EPSILON, DECAY, MAX_NORM = 1e-2, (0.9, 0.95), 1e-4, 0.1, 0.5
MASK = 0xFFFFFFFF


def mixed(tensor, index):
    """A fraction in [-1/2, 1/2) with 16 bits, so that float32 holds it exactly."""
    x = (index * 2654435761 + tensor * 40503 * 65537 + 12345) & MASK
    x ^= x >> 15
    x = (x * 2246822519) & MASK
    x ^= x >> 13
    return (x >> 16) / 65536.0 - 0.5


def shapes():
    """Names and shapes in the order of models/gpt2/gpt2_tensors.cc, in Hugging Face's layout."""
    c = WIDTH
    yield "wte.weight", (VOCABULARY, c)
    yield "wpe.weight", (CONTEXT, c)
    for layer in range(LAYERS):
        h = f"h.{layer}."
        yield h + "ln_1.weight", (c,)
        yield h + "ln_1.bias", (c,)
        yield h + "attn.c_attn.weight", (c, 3 * c)
        yield h + "attn.c_attn.bias", (3 * c,)
        yield h + "attn.c_proj.weight", (c, c)
        yield h + "attn.c_proj.bias", (c,)
        yield h + "ln_2.weight", (c,)
        yield h + "ln_2.bias", (c,)
        yield h + "mlp.c_fc.weight", (c, 4 * c)
        yield h + "mlp.c_fc.bias", (4 * c,)
        yield h + "mlp.c_proj.weight", (4 * c, c)
        yield h + "mlp.c_proj.bias", (c,)
    yield "ln_f.weight", (c,)
    yield "ln_f.bias", (c,)


def formula_weights():
    weights = {}
    for number, (name, shape) in enumerate(shapes()):
        is_gain = ".ln_" in "." + name and name.endswith("weight")
        offset, scale = (1.0, 0.5) if is_gain else (0.0, 0.5)
        values = [offset + scale * mixed(number, i) for i in range(math.prod(shape))]
        weights[name] = torch.tensor(values, dtype=torch.float64).reshape(shape)
    return weights


def formula_tokens(stream):
    tokens = [int((mixed(1000 + stream, i) + 0.5) * VOCABULARY) for i in range(BATCH * LENGTH)]
    return torch.tensor(tokens).reshape(BATCH, LENGTH)


def mean_loss(w, tokens, targets):
    x = w["wte.weight"][tokens] + w["wpe.weight"][:LENGTH]
    hidden = torch.triu(torch.ones(LENGTH, LENGTH, dtype=torch.bool), diagonal=1)
    for layer in range(LAYERS):
        h = f"h.{layer}."
        y = F.layer_norm(x, (WIDTH,), w[h + "ln_1.weight"], w[h + "ln_1.bias"], eps=1e-5)
        q, k, v = (y @ w[h + "attn.c_attn.weight"] + w[h + "attn.c_attn.bias"]).split(WIDTH, dim=2)
        q, k, v = (m.reshape(BATCH, LENGTH, HEADS, WIDTH // HEADS).transpose(1, 2) for m in (q, k, v))
        scores = (q @ k.transpose(2, 3)) / math.sqrt(WIDTH // HEADS)
        y = scores.masked_fill(hidden, -math.inf).softmax(dim=3) @ v
        y = y.transpose(1, 2).reshape(BATCH, LENGTH, WIDTH)
        x = x + y @ w[h + "attn.c_proj.weight"] + w[h + "attn.c_proj.bias"]
        y = F.layer_norm(x, (WIDTH,), w[h + "ln_2.weight"], w[h + "ln_2.bias"], eps=1e-5)
        y = F.gelu(y @ w[h + "mlp.c_fc.weight"] + w[h + "mlp.c_fc.bias"], approximate="tanh")
        x = x + y @ w[h + "mlp.c_proj.weight"] + w[h + "mlp.c_proj.bias"]
    x = F.layer_norm(x, (WIDTH,), w["ln_f.weight"], w["ln_f.bias"], eps=1e-5)
    return F.cross_entropy((x @ w["wte.weight"].T).reshape(-1, VOCABULARY), targets.reshape(-1))


def train(tokens, targets):
    """The tensors of the file: gradients of the first step, losses and norms of all, weights after the last."""
    w = {name: value.clone().requires_grad_() for name, value in formula_weights().items()}
    groups = [
        {"params": [p for p in w.values() if p.dim() == 2], "weight_decay": DECAY},
        {"params": [p for p in w.values() if p.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=LEARNING_RATE, betas=BETAS, eps=EPSILON)
    out, losses, norms = {}, [], []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = mean_loss(w, tokens, targets)
        loss.backward()
        if step == 0:
            out.update({"gradient/" + name: p.grad.clone() for name, p in w.items()})
        norms.append(float(torch.nn.utils.clip_grad_norm_(list(w.values()), MAX_NORM)))
        losses.append(float(loss))
        optimizer.step()
    out.update({"final/" + name: p.detach() for name, p in w.items()})
    out["losses"] = torch.tensor(losses, dtype=torch.float64)
    out["norms"] = torch.tensor(norms, dtype=torch.float64)
    return out


def write_safetensors(path, tensors, metadata):
    header, data = {"__metadata__": metadata}, b""
    for name in sorted(tensors):
        values = tensors[name].to(torch.float64).contiguous()
        raw = struct.pack(f"<{values.numel()}d", *values.flatten().tolist())
        header[name] = {"dtype": "F64", "shape": list(values.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def main():
    torch.set_num_threads(1)
    tokens, targets = formula_tokens(0), formula_tokens(1)
    tensors = train(tokens, targets)
    weights32 = {name: value.float() for name, value in formula_weights().items()}
    tensors["loss_float32"] = mean_loss(weights32, tokens, targets).reshape(1)
    metadata = {"origin": f"scripts/make_gpt2_vectors.py, PyTorch {torch.__version__}, float64"}
    path = Path(__file__).resolve().parent.parent / "tests" / "vectors" / "gpt2_tiny.safetensors"
    write_safetensors(path, tensors, metadata)
    print(f"{path}: losses {tensors['losses'].tolist()} norms {tensors['norms'].tolist()}")


if __name__ == "__main__":
    main()
