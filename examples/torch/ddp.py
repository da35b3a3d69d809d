# SPDX-License-Identifier: Apache-2.0
"""DistributedDataParallel with packet loss:

torchrun --nproc-per-node 2 examples/torch/ddp.py --network examples/torch/network.json
"""

import torch
import torch.distributed as dist
from tiny_gpt import TinyGpt, arguments, batches, validation_loss
from torch.nn.parallel import DistributedDataParallel

import droptest.torch


def main():
    args = arguments(__doc__)
    dist.init_process_group("gloo")
    torch.manual_seed(args.seed)
    model = DistributedDataParallel(TinyGpt())
    network = droptest.torch.attach(model, args.network) if args.network else None
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step, tokens in enumerate(batches(dist.get_rank(), args.steps), start=1):
        optimizer.zero_grad()
        loss = model(tokens)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if network:
            network.log(step, training_loss=loss)
        if dist.get_rank() == 0:
            print(f"step {step}: loss {loss.item():.9g}", flush=True)
    if network:
        network.finish(validation_loss=validation_loss(model.module), seed=args.seed, unit="nats per byte")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
