# SPDX-License-Identifier: Apache-2.0
"""Tensor parallelism by DTensor with packet loss, under the backend "droptest"; torch 2.6 and later:

torchrun --nproc-per-node 2 examples/torch/tensor_parallel.py --network examples/torch/network.json
"""

import torch
import torch.distributed as dist
from tiny_gpt import TinyGpt, arguments, batches, validation_loss
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


def main():
    args = arguments(__doc__)
    if args.network:
        import droptest.torch.backend

        droptest.torch.backend.use(args.network)
    dist.init_process_group("droptest" if args.network else "gloo")
    network = droptest.torch.backend.network() if args.network else None
    torch.manual_seed(args.seed)
    model = TinyGpt()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model.blocks:
        parallelize_module(block, mesh, {"mlp.0": ColwiseParallel(), "mlp.2": RowwiseParallel()})
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step, tokens in enumerate(batches(0, args.steps), start=1):  # the same ones on all ranks
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
