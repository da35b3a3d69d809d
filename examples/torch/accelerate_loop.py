# SPDX-License-Identifier: Apache-2.0
"""A training loop of Hugging Face Accelerate with packet loss:

torchrun --nproc-per-node 2 examples/torch/accelerate_loop.py --network examples/torch/network.json
"""

import torch
from accelerate import Accelerator
from tiny_gpt import TinyGpt, arguments, batches

import droptest
import droptest.torch


def main():
    args = arguments(__doc__)
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(1)
    model = TinyGpt()
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-3))
    if args.network:  # after prepare(), which makes it a DistributedDataParallel
        model.register_comm_hook(None, droptest.torch.ddp_hook(droptest.Network(args.network)))
    for step, tokens in enumerate(batches(accelerator.process_index, args.steps), start=1):
        optimizer.zero_grad()
        loss = model(tokens)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if accelerator.is_main_process:
            print(f"step {step}: loss {loss.item():.9g}", flush=True)
    accelerator.end_training()


if __name__ == "__main__":
    main()
