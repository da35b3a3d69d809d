# SPDX-License-Identifier: Apache-2.0
"""FSDP2 (fully_shard) with packet loss; torch 2.11 and later:

torchrun --nproc-per-node 2 examples/torch/fsdp2.py --network examples/torch/network.json
"""

import torch
import torch.distributed as dist
from tiny_gpt import TinyGpt, arguments, batches, validation_loss
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import droptest.torch


def main():
    args = arguments(__doc__)
    dist.init_process_group("gloo")
    torch.manual_seed(args.seed)
    model = TinyGpt()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    network = droptest.torch.attach(model, args.network) if args.network else None
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step, tokens in enumerate(batches(dist.get_rank(), args.steps), start=1):
        optimizer.zero_grad()
        loss = model(tokens)
        loss.backward()
        optimizer.step()
        if network:
            network.log(step, training_loss=loss)
        if dist.get_rank() == 0:
            print(f"step {step}: loss {loss.item():.9g}", flush=True)
    if network:
        network.finish(validation_loss=validation_loss(model), seed=args.seed, unit="nats per byte")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
