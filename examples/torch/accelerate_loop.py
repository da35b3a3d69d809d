# SPDX-License-Identifier: Apache-2.0
"""A training loop of Hugging Face Accelerate with packet loss:

torchrun --nproc-per-node 2 examples/torch/accelerate_loop.py --network examples/torch/network.json
"""

import torch
from accelerate import Accelerator
from tiny_gpt import TinyGpt, arguments, batches, validation_loss

import droptest.torch


def main():
    args = arguments(__doc__)
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(args.seed)
    model = TinyGpt()
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-3))
    network = droptest.torch.attach(model, args.network) if args.network else None
    for step, tokens in enumerate(batches(accelerator.process_index, args.steps), start=1):
        optimizer.zero_grad()
        loss = model(tokens)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if network:
            network.log(step, training_loss=loss)
        if accelerator.is_main_process:
            print(f"step {step}: loss {loss.item():.9g}", flush=True)
    if network:
        network.finish(
            validation_loss=validation_loss(accelerator.unwrap_model(model)), seed=args.seed, unit="nats per byte"
        )
    accelerator.end_training()


if __name__ == "__main__":
    main()
