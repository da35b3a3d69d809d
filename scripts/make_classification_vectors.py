#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/vectors/gpt2_classification.safetensors, which tests/models/classification_test.cc reads.

A GPT-2 with Hugging Face's rule for sequences (GPT2ForSequenceClassification: a linear layer without bias on the last
token of each sequence), run by PyTorch's autograd and AdamW in float64 over weights and tokens that both sides compute
from the same formula: logits, the plain loss, gradients of the class-weighted loss, and the weights after three steps
with frozen embeddings and a learning rate of its own for block 0. Each sequence is computed alone, without any padding.
Under "lora/" the same with adapters whose products are added to those of the weights: loss, and gradients of adapters.
Needs Debian's python3-torch:

    python3 scripts/make_classification_vectors.py
"""

import argparse
import math
from pathlib import Path

if __name__ == "__main__":  # before PyTorch, which may not be there
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()

import make_gpt2_vectors as tiny
import torch
import torch.nn.functional as F

tiny.LAYERS, tiny.WIDTH, tiny.HEADS, tiny.CONTEXT, tiny.VOCABULARY = 2, 16, 2, 10, 23
CLASSES, CLASS_WEIGHTS = 3, (0.5, 2.0, 1.25)
LENGTHS, LABELS = (7, 1, 10, 4), (2, 0, 1, 1)
LORA_RANK, LORA_ALPHA, LORA_TARGETS = 2, 3.0, ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
STEPS, LEARNING_RATE, BLOCK_0_FACTOR, MAX_NORM = 3, 1e-2, 0.25, 0.5


def formula_weights():
    weights = tiny.formula_weights()
    number = len(weights)
    values = [0.5 * tiny.mixed(number, i) for i in range(CLASSES * tiny.WIDTH)]
    weights["score.weight"] = torch.tensor(values, dtype=torch.float64).reshape(CLASSES, tiny.WIDTH)
    return weights


def sequences():
    """The first tokens of each row of a batch of CONTEXT columns."""
    columns = tiny.CONTEXT
    flat = [int((tiny.mixed(1000, i) + 0.5) * tiny.VOCABULARY) for i in range(len(LENGTHS) * columns)]
    return [torch.tensor([flat[row * columns : row * columns + length]]) for row, length in enumerate(LENGTHS)]


def formula_adapters(weights):
    """A and B of each target, none of them zero, numbered as models/gpt2/gpt2_tensors.cc does."""
    adapters = {}
    for layer in range(tiny.LAYERS):
        for target in LORA_TARGETS:
            inputs, outputs = weights[f"h.{layer}.{target}.weight"].shape
            for name, shape in (("lora_A", (LORA_RANK, inputs)), ("lora_B", (outputs, LORA_RANK))):
                number = len(weights) + len(adapters)
                values = [0.5 * tiny.mixed(number, i) for i in range(math.prod(shape))]
                tensor = torch.tensor(values, dtype=torch.float64).reshape(shape)
                adapters[f"h.{layer}.{target}.{name}.weight"] = tensor
    return adapters


def linear(w, name, x):
    """The layer, and its adapter apart, where there is one."""
    y = x @ w[name + ".weight"] + w[name + ".bias"]
    if name + ".lora_A.weight" not in w:
        return y
    return y + LORA_ALPHA / LORA_RANK * (x @ w[name + ".lora_A.weight"].T) @ w[name + ".lora_B.weight"].T


def hidden(w, tokens):
    """The normalised residual stream, [length, width]."""
    length, width, heads = tokens.shape[1], tiny.WIDTH, tiny.HEADS
    x = w["wte.weight"][tokens] + w["wpe.weight"][:length]
    later = torch.triu(torch.ones(length, length, dtype=torch.bool), diagonal=1)
    for layer in range(tiny.LAYERS):
        h = f"h.{layer}."
        y = F.layer_norm(x, (width,), w[h + "ln_1.weight"], w[h + "ln_1.bias"], eps=1e-5)
        q, k, v = linear(w, h + "attn.c_attn", y).split(width, dim=2)
        q, k, v = (m.reshape(1, length, heads, width // heads).transpose(1, 2) for m in (q, k, v))
        scores = (q @ k.transpose(2, 3)) / math.sqrt(width // heads)
        y = (scores.masked_fill(later, -math.inf).softmax(dim=3) @ v).transpose(1, 2).reshape(1, length, width)
        x = x + linear(w, h + "attn.c_proj", y)
        y = F.layer_norm(x, (width,), w[h + "ln_2.weight"], w[h + "ln_2.bias"], eps=1e-5)
        y = F.gelu(linear(w, h + "mlp.c_fc", y), approximate="tanh")
        x = x + linear(w, h + "mlp.c_proj", y)
    return F.layer_norm(x, (width,), w["ln_f.weight"], w["ln_f.bias"], eps=1e-5)[0]


def logits_of(w):
    return torch.stack([hidden(w, tokens)[-1] @ w["score.weight"].T for tokens in sequences()])


def train():
    w = {name: value.clone().requires_grad_() for name, value in formula_weights().items()}
    for name in ("wte.weight", "wpe.weight"):
        w[name].requires_grad_(False)
    trained = {name: p for name, p in w.items() if p.requires_grad}
    groups = [
        {
            "params": [p],
            "weight_decay": 0.1 if p.dim() == 2 else 0.0,
            "lr": LEARNING_RATE * (BLOCK_0_FACTOR if name.startswith("h.0.") else 1),
        }
        for name, p in trained.items()
    ]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95), eps=1e-4)
    labels = torch.tensor(LABELS)
    weights = torch.tensor(CLASS_WEIGHTS, dtype=torch.float64)
    out, losses, norms = {"logits": logits_of(w).detach()}, [], []
    out["plain_loss"] = F.cross_entropy(logits_of(w), labels).detach().reshape(1)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = F.cross_entropy(logits_of(w), labels, weight=weights)
        loss.backward()
        if step == 0:
            out.update({"gradient/" + name: p.grad.clone() for name, p in trained.items()})
        norms.append(float(torch.nn.utils.clip_grad_norm_(list(trained.values()), MAX_NORM)))
        losses.append(float(loss))
        optimizer.step()
    out.update({"final/" + name: p.detach() for name, p in trained.items()})
    out["losses"] = torch.tensor(losses, dtype=torch.float64)
    out["norms"] = torch.tensor(norms, dtype=torch.float64)
    return out


def with_adapters():
    weights = formula_weights()
    adapters = {name: value.requires_grad_() for name, value in formula_adapters(weights).items()}
    loss = F.cross_entropy(logits_of(weights | adapters), torch.tensor(LABELS))
    loss.backward()
    out = {"lora/gradient/" + name: p.grad for name, p in adapters.items()}
    return out | {"lora/loss": loss.detach().reshape(1)}


def main():
    torch.set_num_threads(1)
    tensors = train() | with_adapters()
    path = Path(__file__).resolve().parent.parent / "tests" / "vectors" / "gpt2_classification.safetensors"
    metadata = {"origin": f"scripts/make_classification_vectors.py, PyTorch {torch.__version__}, float64"}
    tiny.write_safetensors(path, tensors, metadata)
    print(f"{path}: losses {tensors['losses'].tolist()} norms {tensors['norms'].tolist()}")


if __name__ == "__main__":
    main()
